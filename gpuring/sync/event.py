"""Device order by interprocess CUDA events: one per peer and slot.

Only its owner records an event; everybody else opens it from the handle in the header when they
first meet that peer.  A wait means the latest record at the time of the call, and the core asks for
a value only after its record was enqueued: so what is waited for is that record or a later one,
never an earlier.  Whoever sees an event complete raises the fence word on the owner's behalf.

An event whose owner was killed with its record pending never completes.  With gate "host" nobody's
stream ever waits for one: the poll ends when the reaper raises the dead owner's fence.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpuring._core import EventRow, Header, Peer
from gpuring.errors import DeviceError
from gpuring.sync.device import NOT_READY, DeviceSync

PROCESS_LIMIT = 4096
"""About as many interprocess events can one process make (measured on driver 580)."""

_lock = threading.Lock()
_made: dict[bytes, int] = {}
"""Handle -> event, of all events made in this process, which cannot open its own handles."""
_idle: dict[int, list[tuple[int, bytes]]] = {}
"""Device -> (event, handle) of those whose peer has left.  They are used again and never destroyed:
to ask an imported event whose original is gone is undefined (CUDA Runtime API,
cudaIpcOpenEventHandle), and somebody may be about to ask."""


class _Row(EventRow):
    """The events of one peer as seen from here; opened ones are destroyed with the row."""

    def __init__(self, _peer_id: int, _slots: int, runtime: Any) -> None:
        self.opened: list[int] = []
        weakref.finalize(self, _destroy, self.opened, runtime, os.getpid()).atexit = False


def _destroy(events: list[int], runtime: Any, pid: int) -> None:
    if os.getpid() == pid:  # after fork() a child may not touch CUDA
        for event in events:
            with contextlib.suppress(runtime.CUDARuntimeError):
                runtime.eventDestroy(event)


class EventSync(DeviceSync):
    """DeviceSync by events."""

    name = "event"

    def __init__(self, header: Header, device: int) -> None:
        super().__init__(header, device)
        self._own: dict[int, list[tuple[int, bytes]]] = {}
        self._arm()

    def join(self, peer: Peer, gate: str) -> None:
        """Makes the peer's events, or takes idle ones, and puts their handles into the header.

        Raises DeviceError if the process cannot have so many.
        """
        super().join(peer, gate)
        own = self._take_events(peer)
        row = _Row(peer.id, len(own), self._runtime)
        for index, (event, handle) in enumerate(own):
            self._header.set_event_handle(peer.number, index, handle)
            row[index] = event
        self._own[peer.number] = own
        self.rows[peer.number] = row

    def leave(self, peer: Peer) -> None:
        """Waits on the host for the peer's own events (Ctrl-C interrupts), then gives them back."""
        header, number = self._header, peer.number
        if number not in self._own:
            return
        self._finish_unsettled(peer)
        for index, (event, _) in enumerate(self._own[number]):
            self._poll(partial(self._complete, event, number, index, header.work(number, index)))
        with _lock:
            _idle.setdefault(self._device, []).extend(self._own.pop(number))

    def record(self, peer: Peer, index: int, value: int, streams: Sequence[int]) -> None:
        """Records the peer's event of the slot behind all work so far on `streams`."""
        stream = self._behind(streams)
        try:
            self._runtime.eventRecord(self._own[peer.number][index][0], stream)
        except self._error as error:
            raise DeviceError(
                f"the event of slot {index} (fence {value}) cannot be recorded on stream "
                f"{stream:#x} ({error}); is it a stream of GPU {self._device}?"
            ) from error

    def order(self, peer: Peer, stream: int, owner: int, index: int, value: int) -> bool:
        """Orders `stream` after fence[index][owner] >= value; see DeviceSync.order."""
        stream = self._usable(stream)
        row = self.rows[owner]
        if row is None or row.peer_id != self._header.peer_id(owner):
            row = _Row(self._header.peer_id(owner), self._header.slots, self._runtime)
            self.rows[owner] = row
        event = row[index] or self._open(row, owner, index, value)
        if not event or self._complete(event, owner, index, value):
            return True
        if peer.gate_host:
            return self._poll(partial(self._complete, event, owner, index, value), peer)
        try:
            self._runtime.streamWaitEvent(stream, event)
        except self._error as error:
            raise DeviceError(
                f"stream {stream:#x} cannot wait for peer {owner}'s event of slot {index} ({error})"
            ) from error
        return True

    def close(self) -> None:
        """Destroys the events opened from others.  Own ones stay for this process's later peers."""
        self.rows[:] = [None] * len(self.rows)

    def _complete(self, event: int, owner: int, index: int, value: int) -> bool:
        """Whether fence[index][owner] >= value, seen in the word or else in the event."""
        header = self._header
        if header.fence(owner, index) >= value:
            return True
        status = self._runtime.eventQuery(event)  # returned, not raised
        if status == NOT_READY:
            return False
        if status != 0:
            error = self._error(status)
            raise DeviceError(
                f"waiting for peer {owner}'s GPU work on slot {index} (fence {value}): {error}"
            ) from error
        # Exactly the value that was asked for: a higher one may be promised but not recorded yet.
        header.raise_fence(owner, index, value)
        return True

    def _open(self, row: _Row, owner: int, index: int, value: int) -> int:
        """The event of a peer met for the first time; 0 if the fence is there meanwhile.

        A peer leaves only when its fences are paid, and they never decrease.  So if the fence is
        still behind after we have the event, its owner was there all the time: the number, the id
        and the handle that we read were his, and the handle was whole.
        """
        header, runtime = self._header, self._runtime
        with _lock:
            if row[index]:  # another thread was faster
                return int(row[index])
            handle = header.event_handle(owner, index)
            event = _made.get(handle, 0)
            opened = not event
            if opened:
                try:
                    with self._cuda.Device(self._device):
                        event = runtime.ipcOpenEventHandle(handle)
                except self._error as error:
                    if header.fence(owner, index) >= value:
                        return 0
                    raise DeviceError(
                        f"peer {owner}'s event for slot {index} cannot be opened ({error}; pid "
                        f"{header.peer_pid(owner)}). Both processes must share /dev/shm and the "
                        "host's pid and IPC namespaces"
                    ) from error
            if header.fence(owner, index) >= value:
                if opened:
                    _destroy([event], runtime, os.getpid())
                return 0
            if opened:
                row.opened.append(event)
            row[index] = event
            return event

    def _take_events(self, peer: Peer) -> list[tuple[int, bytes]]:
        runtime, slots = self._runtime, self._header.slots
        flags = runtime.eventDisableTiming | runtime.eventInterprocess
        with _lock, self._cuda.Device(self._device):
            idle = _idle.setdefault(self._device, [])
            try:
                while len(idle) < slots:
                    event = runtime.eventCreateWithFlags(flags)
                    try:
                        handle = runtime.ipcGetEventHandle(event)
                    except self._error:
                        runtime.eventDestroy(event)
                        raise
                    _made[handle] = event
                    idle.append((event, handle))
            except self._error as error:
                raise DeviceError(
                    f"peer {peer.number} needs {slots} interprocess events, {len(idle)} can be had "
                    f"({error}). This process has made {len(_made)}, about {PROCESS_LIMIT} is the "
                    "limit: use fewer slots, fewer peers in one process, or sync='timeline'"
                ) from error
            taken, idle[:] = idle[:slots], idle[slots:]
            return taken

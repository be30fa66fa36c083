"""What the two synchronisers have in common: threads and their device, several streams, waiting.

One synchroniser serves an attached ring.  Streams are raw handles, as from `streams.handle`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuring import driver, streams
from gpuring._core import DeviceOrder, Header, Peer, now_ns
from gpuring.errors import DeviceError
from gpuring.memory.cuda_ipc import device_for, load_cupy
from gpuring.streams import PER_THREAD

NOT_READY = 600
"""cudaErrorNotReady: what eventQuery and streamQuery return, and do not raise, for pending work."""

CAPTURE = range(900, 909)
"""cudaErrorStreamCapture…: refused because of a capture."""

SPIN_NS = 200_000
"""A hop between two contexts takes about 150 µs."""
NAP_S = 20e-6
REAP_NS = 50_000_000


class _Thread(threading.local):
    entered = False
    event: Any = None


class DeviceSync(DeviceOrder):
    """The interface of EventSync and TimelineSync, and their common part."""

    name = ""
    """ "event" or "timeline"."""

    def __init__(self, header: Header, device: int) -> None:
        """`device`: the ordinal under which this process has the slots mapped."""
        self._header = header
        self._device = device_for(device)
        self._cuda = load_cupy().cuda
        self._runtime = self._cuda.runtime
        self._error: type[Exception] = self._runtime.CUDARuntimeError
        self._thread = _Thread()
        self._unsettled: set[tuple[int, int]] = set()

    def _arm(self, base: int = 0) -> None:
        self.arm(
            self._header,
            self._device,
            self._cuda.get_current_stream,
            driver.function,
            base,
            streams.current_stream_capsule(),
        )

    def join(self, peer: Peer, gate: str) -> None:
        """Before the peer's first verb: makes what it records with and tells the others.

        `gate` says how the peer waits for others' GPU work: "stream" or "host".
        """
        peer.gate_host = gate == "host"

    def leave(self, peer: Peer) -> None:
        """Waits on the host until the GPU has paid what the peer promised (Ctrl-C interrupts), then
        gives back what `join` made.

        Raises DeviceError if the GPU reports an error instead: its frames may be incomplete, and
        only this process's death tells the readers which.
        """
        raise NotImplementedError

    def record(self, peer: Peer, index: int, value: int, streams: Sequence[int]) -> None:
        """Enqueues "fence[index][peer] = value" behind all work so far on all of `streams`."""
        raise NotImplementedError

    def order(self, peer: Peer, stream: int, owner: int, index: int, value: int) -> bool:
        """Orders `stream` after fence[index][owner] >= value.

        With gate "stream" this enqueues a wait and returns True at once; with gate "host" it blocks
        until the fence is there and returns False if `peer.past_deadline()` came first.
        """
        raise NotImplementedError

    def close(self) -> None:
        """When no peer is left: unregisters, closes what was opened.  Raises nothing."""

    def refused(self, stream: int, status: int) -> DeviceError:
        """What to raise when the driver does not take an operation of ours."""
        if status in CAPTURE:
            return DeviceError(
                f"stream {stream:#x} is being captured into a CUDA graph, or is the default stream "
                f"while another one is ({driver.status_name(status)}). Handing a slot over cannot "
                "be part of a graph: claim, publish, acquire and release outside the capture (a "
                "slot that you have stays yours), or with stream= another stream. Capture the work "
                "between, one graph for each slot (docs/guide.md, CUDA graphs)"
            )
        return DeviceError(
            f"stream {stream:#x} does not take the ring's waits and records "
            f"({driver.status_name(status)}); is it a stream of GPU {self._device}?"
        )

    def follow(self, stream: int, others: Sequence[int]) -> None:
        """Makes `stream` wait for all work so far on `others` (streams of this process)."""
        for each in (stream, *others):
            self._usable(each)
        event = self._thread.event
        try:
            if event is None:
                # One per thread: it can be recorded anew as soon as the wait for it is enqueued.
                with self._cuda.Device(self._device):
                    event = self._thread.event = self._cuda.Event(disable_timing=True)
            for other in others:
                self._runtime.eventRecord(event.ptr, other)
                self._runtime.streamWaitEvent(stream, event.ptr)
        except self._error as error:
            raise DeviceError(
                f"stream {stream:#x} cannot be made to wait for {[hex(o) for o in others]} "
                f"({error}); are they streams of GPU {self._device}?"
            ) from error

    def settle(
        self, peer: Peer, promised: Sequence[tuple[int, int]], streams: Sequence[int]
    ) -> None:
        """After a record that failed, so that nobody knows whether it was enqueued: waits until
        `streams` are idle (Ctrl-C interrupts; `leave` finishes it), then raises the fences from the
        CPU.

        promised: (slot, value) of each.
        """
        unsettled = {(peer.number, index) for index, _ in promised}
        self._unsettled |= unsettled
        # A default stream is that of the ring's GPU, or was refused because it is another one's.
        for device in {self._device, self._runtime.getDevice()}:
            with self._cuda.Device(device):
                for stream in streams:
                    self._poll(partial(self._idle, stream))
        for index, value in promised:
            self._header.raise_fence(peer.number, index, value)
        self._unsettled -= unsettled

    def _idle(self, stream: int) -> bool:
        """Whether nothing runs on `stream` any more, or on any if it cannot be asked.  Raises
        DeviceError while it is being captured: then nobody can tell."""
        status = self._runtime.streamQuery(stream)
        if status in (0, NOT_READY):
            return bool(status == 0)
        if status in CAPTURE:
            raise self.refused(stream, status)
        # If it was destroyed, what it was given before goes on.  If the context is lost, this
        # reports the error too.
        self._finish_all()
        return True

    def _finish_all(self) -> None:
        """Until nothing runs on the GPU any more; an error says so as well.  Raises DeviceError
        while a capture forbids to wait: then nobody can tell."""
        try:
            self._runtime.deviceSynchronize()
        except self._error as error:
            if getattr(error, "status", None) in CAPTURE:
                raise DeviceError(
                    f"GPU {self._device} cannot be waited for while a thread captures a CUDA graph "
                    f"({error}). Try again when the capture has ended"
                ) from error

    def _usable(self, stream: int) -> int:
        """`stream` itself, if this thread may use it now, and it is not being captured.  Raises
        DeviceError."""
        if not self._thread.entered:
            self._enter()
        if stream <= PER_THREAD and self._runtime.getDevice() != self._device:
            raise DeviceError(
                f"the default stream of GPU {self._runtime.getDevice()} was given (it is current), "
                f"but this handle of the ring was attached under GPU {self._device}. Give a stream "
                f"explicitly, or work inside `with cupy.cuda.Device({self._device}):`"
            )
        self.refuse_capture(stream)
        return stream

    def _enter(self) -> None:
        """A thread that has not used CUDA has no context: a default stream would be refused by the
        driver, and the runtime would make a context on GPU 0.  A device chosen by the caller stays.
        """
        try:
            if self._cuda.driver.ctxGetCurrent() == 0:
                self._runtime.setDevice(self._device)
        except (self._error, self._cuda.driver.CUDADriverError) as error:
            raise DeviceError(f"GPU {self._device} cannot be used ({error})") from error
        self._thread.entered = True

    def _behind(self, streams: Sequence[int]) -> int:
        """The first of `streams`, behind all work so far on all of them.  Raises DeviceError."""
        first = self._usable(streams[0])
        if len(streams) > 1:
            self.follow(first, streams[1:])
        return first

    def _poll(self, done: Callable[[], bool], peer: Peer | None = None) -> bool:
        """Waits on the host for `done()`; False if the deadline of the peer's call came first.

        Spins, then naps without the GIL; Ctrl-C interrupts.  Clears the dead now and then: what is
        waited for may be behind one of them.
        """
        start = now_ns()
        reap_ns = start + REAP_NS
        while not done():
            if peer is not None and peer.past_deadline():
                return False
            now = now_ns()
            if now > reap_ns:
                self._header.reap()
                reap_ns = now + REAP_NS
            if now > start + SPIN_NS:
                time.sleep(NAP_S)
        return True

    def _finish_unsettled(self, peer: Peer) -> None:
        """Before a peer leaves: what an interrupted settle() left undone.  Blocks."""
        for number, index in sorted(self._unsettled):
            if number == peer.number:
                with contextlib.suppress(self._error), self._cuda.Device(self._device):
                    self._finish_all()
                self._header.raise_fence(number, index, self._header.work(number, index))
                self._unsettled.discard((number, index))

"""The consumer's side: acquire a frame, read it, release it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuring import _core, diagnosis
from gpuring.diagnosis import subscription_label
from gpuring.endpoint import Endpoint
from gpuring.errors import EndOfStream, PeerLost
from gpuring.slot import ReadSlot

if TYPE_CHECKING:
    from gpuring._core import Peer
    from gpuring.ring import Gate, Ring

_RESTART_POLL_S = 0.02


class Consumer(Endpoint):
    """Reads frames from a ring.  Made by `Ring.consumer()`; used by one thread at a time."""

    _slots: list[ReadSlot]
    _slot_type = ReadSlot
    _role = "consumer"

    def __init__(
        self, ring: Ring, peer: Peer, lossless: bool, options: tuple[Gate, bool], reattach: bool
    ) -> None:
        super().__init__(ring, peer)
        self._lossless = lossless
        self._options = options  # gate, redeliver
        self._reattach = reattach
        self._moved = False  # to a ring that we attached to ourselves, and so close

    @property
    def subscription(self) -> str:
        """The name of the subscription; consumers that share it share its frames."""
        return subscription_label(self._peer.header.subscription_name(self._peer.subscription))

    @property
    def lossless(self) -> bool:
        return self._lossless

    def acquire(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot:
        """The next frame of the subscription, in order of sequences.

        Blocks until there is one; `timeout` in seconds, 0 = do not block, None = for ever; Ctrl-C
        interrupts.  On a GPU, `stream` (default: CuPy's current one) is made to wait until the
        frame is written.  Several frames may be held at once.

        Raises RingTimeout (a TimeoutError), EndOfStream when everything was read and the producers
        are gone or the ring is closed, PeerLost when the last producer died, FrameTorn if frames
        that were released before turned out torn since, DeviceError.  No frame is held by a call
        that raises.
        """
        handle = self._handle(stream)
        index = self._peer.acquire(timeout, self._sync, handle)
        if index < 0:
            raise self._refused(index, "acquire", timeout)
        slot = self._slots[index]
        slot._begin_read(handle)
        return slot

    def latest(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot:
        """The newest frame that this consumer has not had yet; older ones count as lost.

        Only for lossy consumers.  Blocks and raises as `acquire` does.
        """
        if self._lossless:
            raise TypeError(
                f"ring {self._ring.name!r}: latest() skips frames, so it needs a lossy consumer: "
                "ring.consumer(lossless=False)"
            )
        handle = self._handle(stream)
        index = self._peer.latest(timeout, self._sync, handle)
        if index < 0:
            raise self._refused(index, "latest", timeout)
        slot = self._slots[index]
        slot._begin_read(handle)
        return slot

    def __iter__(self) -> Iterator[ReadSlot]:
        """Every frame until the end of the stream; each goes back when the loop moves on.

        With reattach=True the loop outlives the stream: it waits for a new producer or a new ring.
        """
        restarted, joins = False, 0
        while True:
            try:
                slot = self.acquire()
            except (EndOfStream, PeerLost) as end:
                if self._closed or not self._reattach:
                    if isinstance(end, EndOfStream):
                        return
                    raise
                restarted = True
                if joins == self._ring._header.joins:  # nobody has come since the last look
                    self._await_restart(joins)
                joins = self._ring._header.joins
                continue
            seq = slot.seq
            slot._restarted, restarted = restarted, False
            try:
                yield slot
            finally:
                if slot._open and slot.seq == seq:
                    slot.release()

    def _await_restart(self, joins: int) -> None:
        """Waits (Ctrl-C interrupts) until somebody joins this ring, or its name has another ring;
        moves there."""
        while self._ring._header.joins == joins:
            successor = self._ring._successor()
            if successor is not None:
                self._move(successor)
                return
            time.sleep(_RESTART_POLL_S)

    def _move(self, successor: Ring) -> None:
        subscription = None if self.subscription.startswith("#") else self.subscription
        try:
            self.close()
            peer = successor._join(subscription, self._lossless, "oldest", *self._options)
        except BaseException:
            successor.close()
            raise
        self._moved = True
        self._settle_in(successor, peer)

    def close(self) -> None:
        """Leaves the ring in order; see Endpoint.close.

        Raises FrameTorn, when it has left, if frames that were released turned out torn since.
        """
        if self._closed:
            return
        super().close()
        if self._moved:
            self._ring.close()
        if not self._ring._header.forked and self._peer.look_behind():
            raise diagnosis.refused(
                self._ring.name, self._peer, _core.TORN, verb="acquire", timeout=None
            )

    def _finish(self) -> None:
        for index, _ in self._peer.holding():
            slot = self._slots[index]
            if slot._open:
                slot.release()
            else:  # an interrupt came between the acquire and its slot: nobody has seen the frame
                self._peer.give_back(index)

"""The consumer's side: acquire a frame, read it, release it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuring import _core, diagnosis, waiting
from gpuring.diagnosis import subscription_label
from gpuring.endpoint import Endpoint
from gpuring.errors import EndOfStream, FrameTorn, PeerLost, RingError, raise_first
from gpuring.slot import ReadBatch, ReadSlot

if TYPE_CHECKING:
    from gpuring._core import Peer
    from gpuring.ring import Gate, Ring

_RESTART_POLL_S = 0.02


class Consumer(_core.ConsumerVerbs, Endpoint):
    """Reads frames from a ring.  Made by `Ring.consumer()`; used by one thread at a time."""

    _slots: list[ReadSlot]
    _slot_type = ReadSlot
    _role = "consumer"
    _batch = ReadBatch

    def __init__(
        self,
        ring: Ring,
        peer: Peer,
        lossless: bool,
        options: tuple[Gate | None, bool] | tuple[Gate | None, bool, float | None],
        reattach: bool,
    ) -> None:
        self._lossless = lossless
        self._options = options  # gate, redeliver, spin
        self._reattach = reattach
        self._moved = False  # to a ring that we attached to ourselves, and so close
        self._restarted = False  # the next frame is the first after a restart
        self._untold = []
        super().__init__(ring, peer)

    @property
    def subscription(self) -> str:
        """The name of the subscription; consumers that share it share its frames."""
        return subscription_label(self._peer.header.subscription_name(self._peer.subscription))

    @property
    def lossless(self) -> bool:
        """Whether producers wait for the subscription; otherwise they may pass it."""
        return self._lossless

    def _not_lossy(self) -> TypeError:
        return TypeError(
            f"ring {self._ring.name!r}: latest() skips frames, so it needs a lossy consumer: "
            "ring.consumer(lossless=False)"
        )

    def _put_back(self, index: int) -> None:
        self._peer.give_back(index)

    def _tell(self) -> None:
        """Raises FrameTorn for what is known and was not told."""
        seqs, self._untold = tuple(sorted(self._untold)), []
        if seqs:
            raise diagnosis.torn_behind(self._ring.name, seqs)

    def __iter__(self) -> Iterator[ReadSlot]:
        """Every frame until the end of the stream; each goes back when the loop moves on.

        With reattach=True the loop outlives the stream: it waits for a new producer or a new ring.
        A FrameTorn (see acquire) ends the loop but not the consumer: iterate again.
        """
        joins = 0
        while True:
            try:
                slot = self.acquire()
            except (EndOfStream, PeerLost) as end:
                if self._closed or not self._reattach:
                    if isinstance(end, EndOfStream):
                        return
                    raise
                self._restarted = True
                if joins == self._ring._header.joins:  # nobody has come since the last look
                    self._await_restart(joins)
                joins = self._ring._header.joins
                continue
            seq = slot.seq
            slot._restarted, self._restarted = self._restarted, False
            try:
                yield slot
            except GeneratorExit:  # an error raised here would reach nobody
                if slot._open and slot.seq == seq:
                    self._release_quietly(slot)
                raise
            except BaseException:
                if slot._open and slot.seq == seq:
                    slot.release()
                raise
            if slot._open and slot.seq == seq:
                slot.release()

    def _release_quietly(self, slot: ReadSlot) -> None:
        """Releases; a torn frame is told later, by the next acquire or at close."""
        try:
            slot.release()
        except FrameTorn as torn:
            self._untold += torn.seqs

    def _await_restart(self, joins: int) -> None:
        """Waits (Ctrl-C interrupts) until somebody joins this ring, or its name has another ring;
        moves there."""
        while self._ring._header.joins == joins:
            successor = self._ring._successor()
            if successor is not None and self._move(successor):
                return
            time.sleep(_RESTART_POLL_S)

    def _move(self, successor: Ring) -> bool:
        """Joins the same subscription of another ring, then leaves this one.  False: refused."""
        subscription = None if self.subscription.startswith("#") else self.subscription
        try:
            peer = successor._join(subscription, self._lossless, "oldest", *self._options)
        except RingError:  # closed or full meanwhile: there may be another one soon
            successor.close()
            return False
        try:
            self._leave()
        except BaseException:
            successor.close()
            raise
        self._moved = True
        self._settle_in(successor, peer)
        return True

    def _leave(self) -> None:
        try:
            super().close()
        finally:
            if self._closed:
                if not self._ring._header.forked and self._peer.released.look():
                    self._untold += self._peer.released.torn
                if self._moved:
                    self._moved = False
                    self._ring.close()

    def close(self) -> None:
        """Leaves the ring in order; see Endpoint.close.

        Raises FrameTorn, when it has left, if frames that were released turned out torn since.
        """
        errors: list[Exception] = []
        if not self._closed:
            try:
                self._leave()
            except Exception as error:
                if not self._closed:
                    raise
                errors.append(error)
        try:
            self._tell()
        except FrameTorn as torn:
            errors.append(torn)
        if errors:
            raise_first(errors)

    def _finish(self) -> list[Exception]:
        errors = super()._finish()
        for error in errors:
            if isinstance(error, FrameTorn):
                self._untold += error.seqs
        return [error for error in errors if not isinstance(error, FrameTorn)]

    # ---- in an event loop ----------------------------------------------------------------------

    async def acquire_async(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot:
        """`acquire` for asyncio: other tasks run while this one waits.

        A task that is cancelled meanwhile holds nothing.  One task at a time.  Without `stream` the
        current one is that of the moment when the frame is taken.  Raises what acquire raises.
        """
        return await waiting.answer(
            self, lambda: self.acquire(0, stream=stream), "acquire", timeout
        )

    def __aiter__(self) -> waiting.AsyncFrames:
        """Every frame until the end of the stream, as the synchronous loop."""
        return waiting.AsyncFrames(self)

    def _answers_at_once(self) -> bool:
        return self._closed or bool(self._untold)

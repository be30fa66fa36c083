"""The producer's side: claim a slot, write it, publish it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuring import waiting
from gpuring.endpoint import Endpoint
from gpuring.slot import WriteSlot
from gpuring.spec import ARRAY


class Producer(Endpoint):
    """Writes frames into a ring.  Made by `Ring.producer()`; used by one thread at a time."""

    _slots: list[WriteSlot]
    _slot_type = WriteSlot
    _role = "producer"

    def claim(
        self,
        timeout: float | None = None,
        *,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> WriteSlot:
        """The next slot, to be written and published (or abandoned).

        Blocks while a lossless subscription still needs the slot; `timeout` in seconds, 0 = do not
        block, None = for ever; Ctrl-C interrupts.  On a GPU, `stream` (default: CuPy's current one)
        is made to wait for everybody whose work on the slot is not finished.  `shape` writes a
        frame that is smaller than the slot.

        Several slots may be claimed at once; readers get them in order of their sequences.
        Raises RingFull (a TimeoutError) naming who is in the way, RingClosed, PeerLost if this peer
        was taken for dead, DeviceError.  No claim is left behind by a call that raises.
        """
        extents = self._ring.spec.fields[0].smaller(shape) if shape is not None else None
        if extents is not None and self._ring.spec.fields[0].name != ARRAY:
            raise TypeError(f"ring {self._ring.name!r} has several fields: shape= is for one")
        handle = self._handle(stream)
        before = self._peer.seq
        try:
            index = self._peer.claim(timeout, self._sync, handle)
            if index >= 0:
                slot = self._slots[index]
                slot._begin(self._peer.seq, extents, handle)
                return slot
        except BaseException:  # a Ctrl-C between the claim and its return
            self._undo(before)
            raise
        raise self._refused(index, "claim", timeout)

    def _put_back(self, index: int) -> None:
        self._peer.give_up(index)

    async def claim_async(
        self,
        timeout: float | None = None,
        *,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> WriteSlot:
        """`claim` for asyncio: other tasks run while this one waits.

        A task that is cancelled meanwhile has claimed nothing.  One task at a time.  Without
        `stream` the current one is that of the moment when the slot is claimed.  Raises what claim
        raises.
        """
        return await waiting.answer(
            self, lambda: self.claim(0, stream=stream, shape=shape), "claim", timeout
        )

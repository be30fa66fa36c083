"""The producer, which claims a slot, writes it and publishes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuring.ring import verbs, waiting
from gpuring.ring.batch import WriteBatch
from gpuring.ring.endpoint import Endpoint
from gpuring.ring.slot import WriteSlot
from gpuring.slot_layout import ARRAY


class Producer(verbs.ProducerVerbs, Endpoint):
    """Writes frames into a ring.  `Ring.producer()` makes it.  One thread at a time uses it."""

    _slots: list[WriteSlot]
    _slot_type = WriteSlot
    _role = "producer"
    _batch = WriteBatch
    _takes = ("claim", "claim_many")

    if TYPE_CHECKING:  # of _verbs.ProducerVerbs, which has their docstrings

        def claim(
            self,
            timeout: float | None = None,
            *,
            stream: Any = None,
            shape: Sequence[int] | None = None,
        ) -> WriteSlot: ...

        def claim_many(
            self, n: int, timeout: float | None = None, *, stream: Any = None
        ) -> WriteBatch: ...

    def _smaller(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a frame that is smaller than the slot."""
        extents = self._ring.spec.fields[0].smaller(shape)
        if self._ring.spec.fields[0].name != ARRAY:
            raise TypeError(f"ring {self._ring.name!r} has several fields: shape= is for one")
        return extents

    def _give_back(self, index: int) -> None:
        self._slots[index]._end()

    async def claim_async(
        self,
        timeout: float | None = None,
        *,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> WriteSlot:
        """`claim` for asyncio: other tasks run while this one waits.

        A task that is cancelled meanwhile has claimed nothing.  One task at a time may wait.
        Without `stream` it takes the stream that is current when the slot is claimed.  Raises what
        claim raises.
        """
        return await waiting.answer(
            self, lambda: self.claim(0, stream=stream, shape=shape), "claim", timeout
        )

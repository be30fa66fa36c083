"""Types of producer.pyx, which says what each does."""

from collections.abc import Sequence
from typing import Any

from gpuring.ring.batch import WriteBatch
from gpuring.ring.endpoint import Endpoint
from gpuring.ring.write_slot import WriteSlot

class Producer(Endpoint):
    def claim(
        self,
        timeout: float | None = None,
        *,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> WriteSlot: ...
    def try_claim(
        self, *, stream: Any = None, shape: Sequence[int] | None = None
    ) -> WriteSlot | None: ...
    def claim_many(
        self, n: int, timeout: float | None = None, *, stream: Any = None
    ) -> WriteBatch: ...
    async def claim_async(
        self,
        timeout: float | None = None,
        *,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> WriteSlot: ...
    def _smaller(self, shape: Sequence[int]) -> tuple[int, ...]: ...

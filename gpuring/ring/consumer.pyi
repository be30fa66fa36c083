"""Types of consumer.pyx, which says what each does."""

from collections.abc import Iterator
from typing import Any

from gpuring.native import Peer
from gpuring.ring.async_frames import AsyncFrames
from gpuring.ring.batch import ReadBatch
from gpuring.ring.endpoint import Again, Endpoint, JoinedRing
from gpuring.ring.read_slot import ReadSlot

class Consumer(Endpoint):
    _untold: list[int]
    def __init__(
        self,
        ring: JoinedRing,
        peer: Peer,
        lossless: bool,
        again: Again | None = None,
        deaths: bool = False,
    ) -> None: ...
    @property
    def subscription(self) -> str: ...
    @property
    def lossless(self) -> bool: ...
    def acquire(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot: ...
    def latest(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot: ...
    def acquire_many(
        self, n: int, timeout: float | None = None, *, stream: Any = None
    ) -> ReadBatch: ...
    async def acquire_async(
        self, timeout: float | None = None, *, stream: Any = None
    ) -> ReadSlot: ...
    def __iter__(self) -> Iterator[ReadSlot]: ...
    def __aiter__(self) -> AsyncFrames: ...
    def _tell(self) -> None: ...
    def _count_on(self, peer: Peer, successor: JoinedRing) -> None: ...

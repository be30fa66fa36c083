"""Types of batch.pyx, which says what each does."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from typing_extensions import Self

from gpuring.ring.not_copyable import Unique
from gpuring.ring.slot import ReadSlot, Slot, WriteSlot

def still_open(batch: Iterable[Slot]) -> list[Any]: ...

class WriteBatch(Unique, tuple[WriteSlot, ...]):
    def publish(self) -> None: ...
    def abandon(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class ReadBatch(Unique, tuple[ReadSlot, ...]):
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

"""Types of a client's books; what each does stands in _books.pyx."""

from collections.abc import Callable
from typing import Any

from gpuring.errors import RingError
from gpuring.ring.read_slot import ReadSlot
from gpuring.service._sleepers import Turn

Sleepers = dict[Any, None]

class Entry:
    calls: Calls
    _number: int
    _seq: int
    _sent_at: float
    _answer: Any
    _answered_below: int | None
    _error: RingError | None
    def _is_done(self) -> bool: ...
    def _has_answer(self) -> bool: ...
    def _label(self) -> str: ...

class Calls:
    limit: int
    live: dict[int, Any]
    closed: bool
    turn: Turn
    for_room: Sleepers
    def all(self) -> list[Any]: ...
    def has_room(self) -> bool: ...
    def end(self, call: Entry, error: RingError | None = ..., gone: bool = ...) -> None: ...
    def close(self, error: Callable[[Any], RingError]) -> None: ...

class HoldsAnswer(ReadSlot):
    def _done(self, well: bool) -> None: ...

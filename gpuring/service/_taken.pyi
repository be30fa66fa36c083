"""Types of a call that an engine has taken; what each does stands in _taken.pyx."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from gpuring.ring.write_slot import WriteSlot

class Taken:
    _server: Any
    _slot: Any
    _client: int
    _number: int
    _redelivered: bool
    _answered: bool
    def _request(self) -> Any: ...
    @property
    def _window(self) -> int: ...
    def _is_withdrawn(self) -> bool: ...
    def _may_send(self, writer: Any) -> bool: ...
    def _is_writing(self, writer: Any) -> bool: ...

def unanswered(batch: Iterable[Any]) -> list[Any]: ...
def exit_calls(
    batch: list[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None: ...

class SendsAnswer(WriteSlot):
    def _done(self, well: bool) -> None: ...

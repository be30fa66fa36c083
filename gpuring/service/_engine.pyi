"""Types of an engine's side of a service call; what each does stands in _engine.pyx."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any
from weakref import ref

from gpuring.ring.producer import Producer
from gpuring.ring.slot import WriteSlot
from gpuring.service._patience import Patience

TIDY_S: float

def batch_size(max_batch: int, slots: int) -> int: ...
def fill_seconds(max_wait_s: float | str | None) -> float: ...

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
    _call: ref[Any] | None
    _ending: str
    def _done(self, well: bool) -> None: ...
    def _end(self) -> None: ...
    def _of(self) -> Any: ...

class Answering(Producer):
    delivers: bool
    begun: list[Any]
    unlisted: bool

class Reach:
    writers: dict[int, Any]
    _used: dict[Any, None]
    _tidied: float
    def reach(self, client: int, now: int = ...) -> Any: ...

def is_gone(writer: Any, trust_ns: int = ..., now: int = ...) -> bool: ...

class Taker:
    _ring: Any
    _requests: Any
    _delivery: Any
    _calls: set[Any]
    _patience: Patience
    counts: Any
    _engine: bool
    _measures: Any
    def __init__(
        self,
        ring: Any,
        delivery: Reach,
        counts: Any,
        kind: type[Taken],
        kind_of_batch: type[list[Any]],
        engine: bool,
    ) -> None: ...
    def _open(self, requests: Any) -> None: ...
    def _let_go(self, call: Any) -> None: ...
    def _claim_answer(
        self, call: Any, stream: Any, shape: Any, status: int = ..., text: str = ...
    ) -> Any: ...
    def _end_cancelled(self, call: Any) -> None: ...
    def _claim_part(
        self, call: Any, writer: Any, timeout: float, stream: Any, shape: Any
    ) -> Any: ...

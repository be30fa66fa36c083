"""Types of how answers are received; what each does stands in _inbox.pyx."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from gpuring.service._books import Calls, Entry, Sleepers
from gpuring.service._sleepers import AsleepTask

SLICE_S: float

class LoopTasks:
    _mailbox: Any
    _loop: AbstractEventLoop
    _asleep: dict[object, Any]
    _queue: dict[object, Any]
    def __init__(
        self, mailbox: Inbox, loop: AbstractEventLoop, queue: dict[Any, Any], kind: type[AsleepTask]
    ) -> None: ...

class Inbox:
    service: str
    calls: Calls
    _answers: Any
    late: int
    parts: int
    def __init__(self, service: str, limit: int, parts: int = ...) -> None: ...
    def _open(self, answers: Any) -> None: ...
    _loops: dict[AbstractEventLoop, Any]
    def tasks(self) -> Any: ...
    def wait(self, call: Entry, timeout: float | None, stream: Any = ...) -> bool: ...
    def pump(
        self,
        ready: Entry | Callable[[], bool],
        deadline: float | None,
        stream: Any = ...,
        sleepers: Sleepers | None = ...,
    ) -> bool: ...
    def fileno(self) -> int: ...

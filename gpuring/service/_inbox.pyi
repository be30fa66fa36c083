"""Types of how answers are received; what each does stands in _inbox.pyx."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from gpuring.native import Peer
from gpuring.service._books import Calls, Entry, HoldsAnswer, Sleepers
from gpuring.service._sleepers import AsleepTask

SLICE_S: float

class LoopTasks:
    _mailbox: Any
    _loop: AbstractEventLoop
    _asleep: dict[object, Any]
    _queue: dict[object, Any]
    _listening: bool
    _looks_at: float
    def __init__(
        self, mailbox: Inbox, loop: AbstractEventLoop, queue: dict[Any, Any], kind: type[AsleepTask]
    ) -> None: ...
    async def until(
        self,
        ready: Entry | Callable[[], bool],
        deadline: float | None,
        sleepers: Sleepers | None = ...,
        stream: Any = ...,
    ) -> bool: ...

class Inbox:
    service: str
    calls: Calls
    _answers: Any
    peer: Peer
    late: int
    _orphaned: float | None
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
    @property
    def on_device(self) -> bool: ...
    def receive(
        self, timeout: float, stream: Any, only: Entry | None = ..., one: bool = ...
    ) -> bool: ...
    def order(self, answer: HoldsAnswer, stream: Any) -> None: ...
    def fileno(self) -> int: ...

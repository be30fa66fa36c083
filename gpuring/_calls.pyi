"""Types of the compiled path of a service call; what each does stands in _calls.pyx."""

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import ref

from gpuring._core import Header, Peer
from gpuring._patience import Patience
from gpuring._slots import ProducerVerbs, ReadSlot, WriteSlot
from gpuring.errors import RingError

SLICE_S: float
TIDY_S: float
FAILED: int
TEXT_NBYTES: int
ENVELOPES: tuple[int, int]

class Turn:
    def acquire(self, blocking: bool = ..., timeout: float = ..., /) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *_: object) -> None: ...

class Sleeper(Protocol):
    def wake(self) -> None: ...

Sleepers = dict[Any, None]

class Attempt:
    def __init__(self, turn: Turn) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *_: object) -> None: ...

def asyncio() -> Any: ...

class AsleepTask:
    loop: AbstractEventLoop
    key: Any
    ready: Callable[[], bool]
    stream: Any
    woken: Future[None]
    def __init__(
        self,
        loop: AbstractEventLoop,
        asleep: dict[Any, Any] | None = ...,
        ready: Callable[[], bool] = ...,
        stream: Any = ...,
    ) -> None: ...
    @property
    def gone(self) -> bool: ...
    def wake(self) -> None: ...
    def ring(self, error: Exception | None = ...) -> None: ...

class Thread:
    def wake(self) -> None: ...
    def sleep(self, timeout: float) -> None: ...

def has_engines(header: Header, kept: bool) -> bool: ...
def is_closed(header: Header) -> bool: ...
def nothing() -> bool: ...

class InFlight:
    _mailbox: Any
    _number: int
    _seq: int
    _expires: float | None
    _sent_at: float
    _answer: Any
    _answer_seq: int
    _answered_below: int | None
    _error: RingError | None
    _thread: int
    @property
    def _sleepers(self) -> Sleepers: ...
    def __init__(self, mailbox: Inbox, number: int, seq: int, expires: float | None) -> None: ...
    def _is_done(self) -> bool: ...
    def _has_answer(self) -> bool: ...
    def _give_up(self, error: RingError) -> None: ...
    def _outcome_of(self, done: bool, timeout: float | None, stream: Any) -> Any: ...
    def _label(self) -> str: ...

class Calls:
    limit: int
    live: dict[int, Any]
    writing: int
    closed: bool
    turn: Turn
    for_room: Sleepers
    _heirs: Sleepers
    def __init__(self, limit: int) -> None: ...
    def all(self) -> list[Any]: ...
    def has_room(self) -> bool: ...
    def end(self, call: InFlight, error: RingError | None = ..., gone: bool = ...) -> None: ...
    def close(self, error: Callable[[Any], RingError]) -> None: ...
    def enter(self, sleeper: Sleeper, sleepers: Sleepers, ready: Callable[[], bool]) -> bool: ...
    def leave(self, sleeper: Sleeper, sleepers: Sleepers) -> None: ...
    def inherit(self, heir: Sleeper) -> None: ...
    def pass_turn(self) -> None: ...

class Inbox:
    calls: Calls
    _answers: Any
    peer: Peer
    late: int
    _orphaned: float | None
    _looked: float
    def __init__(self, limit: int) -> None: ...
    def _open(self, answers: Any) -> None: ...
    _loops: dict[AbstractEventLoop, Any]
    def tasks(self) -> Any: ...
    def wait(self, call: InFlight, timeout: float | None, stream: Any = ...) -> bool: ...
    def pump(
        self,
        ready: InFlight | Callable[[], bool],
        deadline: float | None,
        stream: Any = ...,
        sleepers: Sleepers | None = ...,
    ) -> bool: ...
    def receive(self, timeout: float, stream: Any, only: InFlight | None = ...) -> None: ...
    def order(self, answer: HoldsAnswer, stream: Any) -> None: ...
    def fileno(self) -> int: ...

class Sender:
    _ring: Any
    _requests: Any
    _sending: Turn
    _mailbox: Any
    _calls: Calls
    _former: list[Any]
    id: int
    def __init__(
        self,
        ring: Any,
        requests: Any,
        mailbox: Inbox,
        turn: Turn,
        id: int,
        kept: bool,
        kind: type[InFlight],
    ) -> None: ...
    def _settle_in(self, ring: Any, requests: Any, mailbox: Inbox, id: int, kept: bool) -> bool: ...
    def _send(
        self,
        timeout: float | None,
        expires_s: float | None,
        stream: Any,
        shape: Any,
        waited: float | None = ...,
    ) -> Any: ...

class SendsRequest(WriteSlot):
    _call: ref[Any] | None
    def _done(self, well: bool) -> None: ...
    def _end(self) -> None: ...
    def _pending(self) -> Any: ...

class HoldsAnswer(ReadSlot):
    _call: ref[Any] | None
    def _done(self, well: bool) -> None: ...
    def _end(self) -> None: ...

class Taken:
    _server: Any
    _slot: Any
    _client: int
    _number: int
    _redelivered: bool
    _answered: bool
    def _request(self) -> Any: ...

def unanswered(batch: Iterable[Any]) -> list[Any]: ...

class SendsAnswer(WriteSlot):
    _call: ref[Any] | None
    _ending: str
    def _done(self, well: bool) -> None: ...
    def _end(self) -> None: ...
    def _of(self) -> Any: ...

class Answering(ProducerVerbs):
    delivers: bool
    begun: list[Any]

class Reach:
    writers: dict[int, Any]
    _used: dict[Any, None]
    _tidied: float
    def reach(self, client: int) -> Any: ...

def is_gone(writer: Any, trust_ns: int = ...) -> bool: ...

class Taker:
    _ring: Any
    _requests: Any
    _delivery: Any
    _calls: set[Any]
    _patience: Patience
    counts: Any
    def __init__(self, ring: Any, delivery: Reach, counts: Any, kind: type[Taken]) -> None: ...
    def _open(self, requests: Any) -> None: ...
    def _take(
        self, max_batch: int, max_wait_s: float | str | None, timeout: float | None, stream: Any
    ) -> list[Any]: ...
    def _let_go(self, call: Any) -> None: ...

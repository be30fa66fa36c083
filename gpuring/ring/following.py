"""At the end of a stream: waiting until it goes on, here or in the next ring of that name.

An endpoint with `reattach=True` does not report the end of the stream, but waits until the stream
goes on (`Endpoint._waits_out`).  So does a consumer that has joined between two producers of a ring
whose creator lives.  All waits use this module: the verbs, those of asyncio, `select` and `align`.
A loop over frames calls a verb again and again.

    goes_on        a look: whether the verb is to be tried again.  It moves to the next ring
    wait           looks until the stream goes on, for a verb
    wait_async     the same for asyncio
    NamesNotifier  its descriptor, for event loops
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gpuring import native
from gpuring.native import LOOK_S, NameWatch
from gpuring.registry.new_names import Arrivals
from gpuring.registry.segment import SHM
from gpuring.ring.timer import Timer

if TYPE_CHECKING:
    from gpuring.native import Notifier, Peer

LOOK_AGAIN_S = 0.05
"""A wait for several endpoints looks this often whether those at their end go on."""
_NEVER_NS = 2**63 - 1


class Follower(Protocol):
    """What this needs of an endpoint, whose module imports this one."""

    _again: Any
    _late: int
    _restarted: bool
    _at_end: Notifier | None
    _polled: bool
    _notifier: Notifier | None

    @property
    def _role(self) -> str: ...
    @property
    def _ends(self) -> tuple[int, ...]: ...
    @property
    def _peer(self) -> Peer: ...
    @property
    def _ring(self) -> Any: ...
    def _answers_nothing(self) -> bool: ...
    def _waits_out(self, result: int) -> bool: ...
    def _move(self, successor: Any) -> bool: ...


AnyFollower = TypeVar("AnyFollower", bound=Follower)


def rests(endpoint: Follower) -> bool:
    """Whether it has come to an end that it waits out."""
    if endpoint._again is None and endpoint._late < 0:
        return False  # most endpoints: without a look
    return not endpoint._answers_nothing() and endpoint._waits_out(native.look(endpoint._peer)[0])


def goes_on(endpoint: Follower) -> bool:
    """Whether its verb is to be tried again: a producer has joined since, or it was closed, or its
    end is an answer now, or another ring has the name.  Then it moves there."""
    if endpoint._answers_nothing():
        return True  # the verb says so
    if endpoint._at_end is not None and endpoint._role == "consumer":
        watch(endpoint, endpoint._at_end)  # before the look
    if endpoint._polled and isinstance(endpoint._notifier, NamesNotifier):
        endpoint._notifier.listen()  # before the look, too
    result, culprit = native.look(endpoint._peer)
    if result == native.BLOCKED and culprit is not None and culprit[0] == native.BY_HOLDER:
        return False  # it is over, unless another member gives a frame back
    if not endpoint._waits_out(result):
        if result not in endpoint._ends:
            endpoint._late = -1
        return True
    if endpoint._again is None:
        return False
    successor = endpoint._ring._successor()
    return successor is not None and endpoint._move(successor)


def wait(endpoint: Follower, deadline_ns: int) -> bool:
    """Waits, after its verb has met an end that it waits out, until that is to be tried again.
    False: the deadline has come.  Ctrl-C interrupts."""
    _begin(endpoint)
    if deadline_ns == 0:
        return goes_on(endpoint)
    with _arrivals(endpoint) as arrivals:
        while not goes_on(endpoint):
            left_s = math.inf
            if deadline_ns != _NEVER_NS:
                left_s = (deadline_ns - time.monotonic_ns()) / 1e9
                if left_s <= 0:
                    return False
            arrivals.wait(left_s)
    return True


async def wait_async(endpoint: Follower, at_most_s: float) -> None:
    """`wait` for asyncio.  Other tasks run meanwhile."""
    deadline = time.monotonic() + at_most_s
    with _arrivals(endpoint) as arrivals:
        while not goes_on(endpoint) and (left_s := deadline - time.monotonic()) > 0:
            await arrivals.wait_async(left_s)


def resting(endpoints: Iterable[AnyFollower]) -> list[AnyFollower]:
    """The endpoints that are still at an end that they wait out.  The others have moved, if they
    had to."""
    ended = [each for each in endpoints if rests(each)]
    for each in ended:
        _begin(each)
    return [each for each in ended if not goes_on(each)]


@contextlib.contextmanager
def shown_waiting(endpoints: Collection[Follower]) -> Iterator[None]:
    """Others see that these wait.  Meanwhile one that waits for several sleeps for them, too."""
    try:
        for each in endpoints:
            native.show_waiting(each._peer, True)
        yield
    finally:
        for each in endpoints:
            native.show_waiting(each._peer, False)


def _begin(endpoint: Follower) -> None:
    """Notes that the stream has ended.  For one that came later it has not begun yet."""
    endpoint._restarted |= endpoint._late != endpoint._ring._header.producers_gone


@contextlib.contextmanager
def _arrivals(endpoint: Follower) -> Iterator[Arrivals]:
    """What to wait with.  It wakes up when `goes_on` may have changed."""
    if endpoint._at_end is not None:
        raise RuntimeError(
            f"ring {endpoint._ring.name!r}: this {endpoint._role} is waiting in another thread; "
            "give each thread its own"
        )
    descriptor = -1
    with contextlib.suppress(OSError):  # without a descriptor or a thread it looks now and then
        endpoint._at_end = native.Notifier()
        descriptor = endpoint._at_end.fileno()
    try:
        yield Arrivals(descriptor)
    finally:
        endpoint._at_end = None


def watch(endpoint: Follower, notifier: Notifier) -> None:
    """At an end: has a descriptor become readable when a producer joins.  A producer goes on in
    another ring only, and no bell tells of that, but names do."""
    if endpoint._role == "consumer":
        notifier.arm(endpoint._peer, at_end=True)
    else:
        notifier.clear()


class NamesNotifier(native.Notifier):
    """The notifier of an endpoint that follows restarts.  At the end of the stream its descriptor
    also becomes readable when there is a new name in /dev/shm, which may be that of the next ring.

    Other programs may make many names there, and each would cost a look.  So after two looks in a
    short time the descriptor ignores names, and a timer makes it readable.  It does the same where
    the kernel does not report names.
    """

    def __init__(self) -> None:
        self._listens = False
        self._names: NameWatch | None = None
        self._looked = -math.inf
        self._timer = Timer()
        self._readable = select.epoll()
        for descriptor in (super().fileno(), self._timer.fd):
            self._readable.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """The descriptor of both, which stays the same."""
        return self._readable.fileno()

    def listen(self) -> None:
        """Called before each look at an end.  What comes after this makes it readable."""
        now, self._listens = time.monotonic(), True
        soon = now < self._looked + LOOK_AGAIN_S
        self._looked = now
        names = self._names
        if names is None:
            with contextlib.suppress(OSError):
                names = NameWatch(SHM)
                self._readable.register(names.fd, 0)
                self._names = names
        if names is not None:
            names.drain()
            with contextlib.suppress(OSError):  # another thread has just closed the endpoint
                self._readable.modify(names.fd, 0 if soon else select.EPOLLIN)
        self._timer.set(LOOK_AGAIN_S if soon or names is None else LOOK_S)

    def arm(self, peer: Peer, at_end: bool = False) -> bool:
        """As in the base class.  If this is no end, names make nothing readable any more."""
        if self._listens and not at_end:
            self._hear_no_names()
        return super().arm(peer, at_end)

    def set(self) -> None:
        """As in the base class.  An endpoint that is about to leave needs no watch."""
        self._hear_no_names()
        super().set()

    def _hear_no_names(self) -> None:
        self._listens = False
        self._timer.set(0)
        names, self._names = self._names, None
        if names is not None:
            with contextlib.suppress(OSError):  # another thread was faster
                self._readable.unregister(names.fd)

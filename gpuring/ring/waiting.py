"""Waiting at several rings at once, and in event loops.

    select(endpoints, timeout)      sleeps at all their doorbells, in the calling thread
    fileno(), acquire_async, …      core/notify.c turns the doorbells into descriptors

Both look with `native.ready`, which changes nothing.  Only the verb itself takes a frame or claims
a slot, with timeout 0 and with no `await` after it.  So a wait that is cancelled leaves no claim
and no hold.  asyncio is imported only where it is used.
"""

from __future__ import annotations

import itertools
import math
import reprlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gpuring import arguments, native
from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import RingTimeout
from gpuring.ring import following
from gpuring.ring.endpoint import Endpoint
from gpuring.ring.following import LOOK_AGAIN_S

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)
Slot = TypeVar("Slot")

UNINTERRUPTED_S = 0.001
"""A task that never has to wait lets others run after this time."""
FENCE_POLL_S = 0.001
"""With gate="host" a task looks again after this time, because no bell rings when a GPU is done."""
FENCE_SPINS = 20
"""For this many turns of the event loop it looks without that pause."""
SPIN_S = 0.001
"""The longest spin of a task, because an event loop has other tasks to run."""

_turns = itertools.count(1)


def select(endpoints: Iterable[AnyEndpoint], timeout: float | None = None) -> list[AnyEndpoint]:
    """Waits until one of several consumers and producers is ready, and returns those that are.

    * `endpoints`: consumers and producers, at most 128.  No other thread may use them meanwhile.
    * `timeout`: how long it may wait, in seconds.  0 only looks, None waits for ever.

    A consumer is ready when `acquire(0)` would return a frame or raise something else than
    RingTimeout (EndOfStream, PeerLost, RingClosed, …).  A producer is ready when `claim(0)` would.
    One with reattach=True is not ready at the end of its stream.  It is when the stream goes on, in
    its ring or in the next one of that name, for which this looks 20 times a second.
    Returns all that are ready, or an empty list if the time is up.  The one whose last time at the
    head of the list is the longest ago comes first.  So a program that serves only the first one
    serves all in turn.

    Another member of the subscription may take the frame in between, so serve with timeout 0.  With
    gate="host" the GPU may not be done with the frame, so serve with a short timeout.

    The wait sleeps, and Ctrl-C interrupts it.  Raises TypeError, ValueError.
    """
    if isinstance(endpoints, Endpoint) or not isinstance(endpoints, Iterable):
        raise TypeError(  # it would read the frames of a consumer
            "select takes several consumers and producers: select([consumer]), not "
            f"{reprlib.repr(endpoints)}"
        )
    waited = list(dict.fromkeys(endpoints))
    for each in waited:
        if not isinstance(each, Endpoint):
            raise TypeError(f"select takes consumers and producers, not a {type(each).__name__}")
    if not waited:
        raise ValueError("select needs a consumer or a producer to wait for")
    deadline = deadline_of(timeout)
    while True:
        ready = [endpoint for endpoint in waited if endpoint._answers_at_once()]
        resting = following.resting(waited)
        looked_at = [each for each in waited if each not in ready and each not in resting]
        for endpoint in looked_at:
            endpoint._recover()
        seconds = 0.0 if ready else min(left_s(deadline), LOOK_AGAIN_S if resting else math.inf)
        there: list[bool] = []
        with following.shown_waiting(resting if seconds else ()):
            if looked_at:
                peers = [endpoint._peer for endpoint in looked_at]
                there = native.select(peers, None if seconds == math.inf else seconds)
            else:
                time.sleep(seconds)
        answering = itertools.compress(looked_at, there)
        ready += [each for each in answering if not following.rests(each)]
        if ready or time.monotonic() >= deadline:
            break
    if ready:
        ready.sort(key=lambda endpoint: endpoint._first_in)
        ready[0]._first_in = next(_turns)
    return ready


# ---- asyncio -------------------------------------------------------------------------------------


async def answer(
    endpoint: Endpoint, attempt: Callable[[], Slot], verb: str, timeout: float | None
) -> Slot:
    """Waits until nothing blocks `attempt`, the verb with timeout 0.  Returns or raises what it
    does."""
    import asyncio

    patience_s = arguments.seconds(timeout, "timeout")
    loop = asyncio.get_running_loop()
    _refuse_a_second_task(endpoint)
    deadline = None if patience_s == math.inf else loop.time() + patience_s
    spin_ns = int(1e9 * min(patience_s, SPIN_S))  # at the first look
    spins = 0
    endpoint._recover()
    endpoint._awaited = loop
    try:
        if loop.time() - endpoint._rested_s > UNINTERRUPTED_S:
            await _rest(endpoint, loop, 0)
        while True:
            late = deadline is not None and loop.time() >= deadline
            if late or endpoint._answers_at_once() or native.ready(endpoint._peer, spin_ns):
                try:
                    return attempt()
                except RingTimeout:  # another member was faster, or the GPU is still at work
                    if late:
                        raise endpoint._refused(_why(endpoint), verb, timeout) from None
                if following.rests(endpoint):
                    at_most_s = math.inf if deadline is None else deadline - loop.time()
                    await following.wait_async(endpoint, at_most_s)
                    continue
                at_fence = endpoint._peer.culprit[0] == native.BY_FENCE
                spins += 1
                await _rest(endpoint, loop, FENCE_POLL_S if at_fence and spins > FENCE_SPINS else 0)
            else:
                await _readable([endpoint], loop, deadline)
            spin_ns = 0
    finally:
        if endpoint._awaited is loop:  # if not, this loop was closed, and another one waits
            endpoint._awaited = None


def _why(endpoint: Endpoint) -> int:
    """The result for which its verb has raised RingTimeout."""
    return native.look(endpoint._peer)[0] if following.rests(endpoint) else native.BLOCKED


# These two are methods of Producer and Consumer, whose modules import this one.


async def claim_async(
    self: Any,
    timeout: float | None = None,
    *,
    stream: Any = None,
    shape: Sequence[int] | None = None,
) -> Any:
    """`claim` for asyncio: other tasks run while this one waits.

    A task that is cancelled meanwhile has claimed nothing.  One task at a time may wait.
    Without `stream` it takes the stream that is current when the slot is claimed.  Raises what
    claim raises.
    """
    return await answer(self, lambda: self.claim(0, stream=stream, shape=shape), "claim", timeout)


async def acquire_async(self: Any, timeout: float | None = None, *, stream: Any = None) -> Any:
    """`acquire` for asyncio: other tasks run while this one waits.

    A task that is cancelled meanwhile holds nothing.  One task at a time may wait.  Without
    `stream` it takes the stream that is current when the frame is acquired.  Raises what
    acquire raises.
    """
    return await answer(self, lambda: self.acquire(0, stream=stream), "acquire", timeout)


async def select_async(
    endpoints: Sequence[AnyEndpoint], timeout: float | None
) -> list[AnyEndpoint]:
    """`select` for asyncio: other tasks run while this one waits."""
    import asyncio

    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    for endpoint in endpoints:
        _refuse_a_second_task(endpoint)
    for endpoint in endpoints:
        endpoint._awaited = loop
    try:
        while not (ready := select(endpoints, 0)):
            if deadline is not None and loop.time() >= deadline:
                break
            await _readable(endpoints, loop, deadline)
        return ready
    finally:
        for endpoint in endpoints:
            if endpoint._awaited is loop:
                endpoint._awaited = None


def _refuse_a_second_task(endpoint: Endpoint) -> None:
    other = endpoint._awaited
    if other is not None and not other.is_closed():
        raise RuntimeError(
            f"this {endpoint._role} is awaited by another task; give each task its own"
        )


async def _rest(endpoint: Endpoint, loop: AbstractEventLoop, seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)
    endpoint._rested_s = loop.time()


async def _readable(
    endpoints: Sequence[Endpoint], loop: AbstractEventLoop, deadline: float | None
) -> None:
    """Returns when one of them may have an answer, or at the deadline.  Disarms all of them."""
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    watched, timer = [], None
    try:
        for endpoint in endpoints:
            if following.rests(endpoint):  # no bell rings when another ring gets its name
                soon = loop.time() + LOOK_AGAIN_S
                deadline = soon if deadline is None else min(deadline, soon)
                continue
            notifier = endpoint._notify()
            watched.append((endpoint, notifier))
            if notifier.arm(endpoint._peer):
                return
            loop.add_reader(notifier.fileno(), wake)
        timer = loop.call_at(deadline, wake) if deadline is not None else None
        await woken
    finally:
        for endpoint, notifier in watched:
            endpoint._rested_s = loop.time()
            if not loop.is_closed():
                loop.remove_reader(notifier.fileno())
            if endpoint._awaited is loop:
                notifier.disarm()
        if timer is not None:
            timer.cancel()

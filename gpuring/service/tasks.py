"""A client in event loops: any number of tasks wait for answers and for room; none blocks a loop.

Each loop listens for all its tasks: a bell tells it that something has come, and it receives for
them as a thread would, or sleeps until the thread that receives is done.  All here is used by the
loop's own thread only, except for `wake`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

from gpuring import _core, waiting
from gpuring.errors import RingFull

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

    from gpuring._core import Notifier, Peer
    from gpuring.service.calls import Calls, Sleepers

SLICE_S = 0.05  # how long a wait goes without a look at what has become of the calls


class Task:
    """A task that sleeps, once."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self.woken = loop.create_future()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # that loop has ended, with its tasks
            if threading.get_ident() == self._thread:
                self.ring()
            else:
                self._loop.call_soon_threadsafe(self.ring)

    def ring(self, error: Exception | None = None) -> None:
        if not self.woken.done():
            if error is None:
                self.woken.set_result(None)
            else:
                self.woken.set_exception(error)

    async def sleep(self, left: float | None) -> None:
        timer = None if left is None else self._loop.call_later(left, self.ring)
        try:
            await self.woken
        finally:
            if timer is not None:
                timer.cancel()


class Receiver(Protocol):
    """What tasks need of the Mailbox of their client."""

    calls: Calls[Any]

    @property
    def service(self) -> str: ...
    @property
    def peer(self) -> Peer: ...
    def pump(
        self, ready: Callable[[], bool], deadline: float | None, stream: Any = None
    ) -> bool: ...
    def receive(self, timeout: float, stream: Any) -> None: ...


class Tasks:
    """The tasks of one loop that wait for something of one client."""

    def __init__(self, mailbox: Receiver, loop: AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._loop = loop
        self._queue: list[Task] = []  # who wants to send, in turn
        self._bells: dict[Peer, Notifier] = {}
        self._asleep: dict[Task, Any] = {}  # for whom it listens, and on which stream
        self._watched: Notifier | None = None
        self._turns = 0  # how often there was something, but not for us
        self._again: TimerHandle | None = None  # when it looks without having been rung

    # ---- for tasks -----------------------------------------------------------------------------

    async def until(
        self,
        ready: Callable[[], bool],
        deadline: float | None,
        sleepers: Sleepers,
        stream: Any = None,
    ) -> bool:
        """As Mailbox.pump."""
        calls = self._mailbox.calls
        while not self._mailbox.pump(ready, 0, stream):
            left = left_s(deadline)
            if calls.closed or left == 0:
                return False
            task = Task(self._loop)
            try:
                if calls.enter(task, sleepers, ready):
                    self._asleep[task] = stream
                    if self._again is None:
                        self._hear(receive=False)  # pump has just done it
                    await task.sleep(left)
            finally:
                calls.leave(task, sleepers)
                self._asleep.pop(task, None)
                if not self._asleep:
                    self._hear()
        return True

    @contextlib.asynccontextmanager
    async def turn_to_send(self, deadline: float | None) -> AsyncIterator[None]:
        """One task after the other, in the order in which they came.  Raises RingFull."""
        queue, mine = self._queue, Task(self._loop)
        queue.append(mine)
        try:
            while queue[0] is not mine:
                left = left_s(deadline)
                if left == 0:
                    raise RingFull(
                        f"service {self._mailbox.service!r}: other tasks are waiting to send a "
                        "request"
                    )
                await mine.sleep(left)
            yield
        finally:
            queue.remove(mine)
            if queue:
                queue[0].ring()

    async def until_claimable(
        self, peer: Peer, turn: threading.RLock, deadline: float | None, turns: int
    ) -> int:
        """Until there may be a slot for `peer`, whose users have the `turn`; the next `turns`."""
        import asyncio

        if not turn.acquire(blocking=False):
            await asyncio.sleep(SLICE_S)  # a thread waits, and was first
            return 0
        bell = self._bell(peer)
        try:
            rung = bell.arm(peer)
        finally:
            turn.release()
        if rung:
            await asyncio.sleep(_pause_s(turns))
            return turns + 1
        task, left = Task(self._loop), left_s(deadline)
        self._loop.add_reader(bell.fileno(), task.ring)
        try:
            await task.sleep(SLICE_S if left is None else min(left, SLICE_S))
        finally:
            self._unwatch(bell)
        return 0

    # ---- listening -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Nobody receives any more.  From any thread."""
        with contextlib.suppress(RuntimeError):  # that loop has ended, with its tasks
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self, receive: bool = True) -> None:
        """Receives for those who sleep, and sees to it that this is done again."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        mailbox, task, bell, pause_s = self._mailbox, self._first(), None, SLICE_S
        if task is not None and not mailbox.calls.closed and mailbox.calls.take_turn(self):
            try:
                if receive:
                    mailbox.receive(0, self._asleep[task])
                if self._first() is not None:
                    bell = self._bell(mailbox.peer)
                    if bell.arm(mailbox.peer):
                        bell, pause_s = None, _pause_s(self._turns)
                    self._turns = 0 if bell else self._turns + 1
            except Exception as error:
                task.ring(error)
                pause_s = 0  # it is the others' turn
            finally:
                mailbox.calls.pass_turn()
        self._watch(bell)
        if self._first() is not None:
            self._again = self._loop.call_later(pause_s, self._hear)

    def _first(self) -> Task | None:
        """Of those who sleep still."""
        return next((task for task in self._asleep if not task.woken.done()), None)

    def _watch(self, bell: Notifier | None) -> None:
        """Hears when that bell rings, and no other."""
        before, self._watched = self._watched, bell
        if before is not None and before is not bell:
            self._unwatch(before)
        if bell is not None and before is not bell:
            self._loop.add_reader(bell.fileno(), self._hear)

    def _unwatch(self, bell: Notifier) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(bell.fileno())
        bell.disarm()

    def _bell(self, peer: Peer) -> Notifier:
        if peer not in self._bells:
            self._bells[peer] = _core.Notifier()
        return self._bells[peer]


def _pause_s(turns: int) -> float:
    """There is something, but not for us: it came meanwhile, or the GPU is not done with it."""
    return waiting.FENCE_POLL_S if turns > waiting.FENCE_SPINS else 0


def left_s(deadline: float | None) -> float | None:
    """Seconds until a time.monotonic()."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())

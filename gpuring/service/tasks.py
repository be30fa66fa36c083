"""A client in event loops: any number of tasks wait for answers and for room; none blocks a loop.

They do as the client's threads do (mailbox.py): one task of each loop listens for all of them; the
others sleep until their call is done, there is room, or it is their turn to listen.  No loop relies
on another one: that may be busy, or have been left with its tasks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from gpuring import _core, waiting
from gpuring.errors import RingFull

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from gpuring._core import Notifier, Peer
    from gpuring.service.mailbox import Mailbox

Wakers = list[Callable[[], None]]
"""What wakes the tasks that sleep for one thing; from any thread, under `changed`."""

SLICE_S = 0.05  # how long a wait goes without a look at what has become of the calls


class Loops:
    """The event loops that have tasks of one client.  Guarded by the mailbox's `changed`."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._tasks: dict[AbstractEventLoop, Tasks] = {}

    def tasks(self) -> Tasks:
        """Those of the running loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        with self._mailbox.changed:
            if loop not in self._tasks:
                for ended in [each for each in self._tasks if each.is_closed()]:
                    del self._tasks[ended]
                self._tasks[loop] = Tasks(self._mailbox)
            return self._tasks[loop]

    # ---- for the mailbox, under `changed` ------------------------------------------------------

    def room(self) -> None:
        """There is room for a call more."""
        for tasks in self._tasks.values():
            tasks.room()

    def pass_on(self) -> None:
        """Nobody receives any more: somebody else shall."""
        for tasks in self._tasks.values():
            tasks.pass_on()

    def closed(self) -> None:
        for tasks in self._tasks.values():
            tasks.closed()


class Tasks:
    """The tasks of one loop that wait for something of one client.  Guarded by the mailbox's
    `changed`."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._changed = mailbox.changed
        self._listening = False
        self._could_listen: Wakers = []
        self._for_room: Wakers = []
        self._queue: list[Wakers] = []  # who wants to send, in turn
        self._bells: dict[Peer, Notifier] = {}

    # ---- as Loops has them ---------------------------------------------------------------------

    def room(self) -> None:
        wake(self._for_room)

    def pass_on(self) -> None:
        if not self._listening:
            wake(self._could_listen[:1])

    def closed(self) -> None:
        wake(self._could_listen + self._for_room)

    # ---- for tasks -----------------------------------------------------------------------------

    async def until_room(self, deadline: float | None) -> bool:
        """Whether there is room for a call before the deadline."""
        return await self.until(self._mailbox.has_room, deadline, self._for_room)

    async def until(
        self,
        ready: Callable[[], bool],
        deadline: float | None,
        wakers: Wakers,
        stream: Any = None,
    ) -> bool:
        """As Mailbox.pump.  Whoever makes `ready` true calls the `wakers`."""
        mailbox, listening, turns = self._mailbox, False, 0

        def missed() -> bool:  # what we would have been woken for, had we slept already
            nobody = not (listening or self._listening or mailbox.receiving)
            return mailbox.closed or nobody or ready()

        try:
            while True:
                if mailbox.pump(ready, 0, stream):
                    return True
                left = left_s(deadline)
                if mailbox.closed or left == 0:
                    return False
                with self._changed:
                    # While a thread receives, its peer must be left alone.
                    free = not mailbox.receiving and (listening or not self._listening)
                    if free or listening:
                        self._listening = listening = free
                    bell = self._bell(mailbox.peer) if listening else None
                    rung = bell is not None and bell.arm(mailbox.peer)
                turns = turns + 1 if rung else 0
                if rung:
                    await yield_to_others(turns)
                else:
                    several = (wakers,) if listening else (wakers, self._could_listen)
                    await self._sleep(several, missed, left, bell)
        finally:
            with self._changed:
                if listening:
                    self._listening = False
                self.pass_on()  # also if we were woken to listen, and have found ourselves done

    @contextlib.asynccontextmanager
    async def turn_to_send(self, deadline: float | None) -> AsyncIterator[None]:
        """One task after the other, in the order in which they came.  Raises RingFull."""
        mine: Wakers = []
        with self._changed:
            self._queue.append(mine)
        try:
            while self._queue[0] is not mine:
                left = left_s(deadline)
                if left == 0:
                    raise RingFull(
                        f"service {self._mailbox.service!r}: other tasks are waiting to send a "
                        "request"
                    )
                await self._sleep((mine,), lambda: self._queue[0] is mine, left)
            yield
        finally:
            with self._changed:
                self._queue = [each for each in self._queue if each is not mine]
                if self._queue:
                    wake(self._queue[0])

    async def until_claimable(
        self, peer: Peer, using: threading.RLock, deadline: float | None, turns: int
    ) -> int:
        """Until there may be a slot for `peer`, whose users hold `using`; the next `turns`."""
        import asyncio

        if not using.acquire(blocking=False):
            await asyncio.sleep(SLICE_S)  # a thread waits, and was first
            return 0
        bell = self._bell(peer)
        try:
            rung = bell.arm(peer)
        finally:
            using.release()
        if rung:
            await yield_to_others(turns)
            return turns + 1
        await self._sleep((), lambda: False, left_s(deadline), bell)
        return 0

    def _bell(self, peer: Peer) -> Notifier:
        if peer not in self._bells:
            self._bells[peer] = _core.Notifier()
        return self._bells[peer]

    async def _sleep(
        self,
        several: tuple[Wakers, ...],
        ready: Callable[[], bool],
        left: float | None,
        bell: Notifier | None = None,
    ) -> None:
        """Until one of the wakers is called, for `left` seconds at the most; not if it is ready.

        With an armed bell also until that rings, or for a slice.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        woken, thread = loop.create_future(), threading.get_ident()

        def ring() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that loop has ended, with its tasks
                if threading.get_ident() == thread:
                    ring()
                else:
                    loop.call_soon_threadsafe(ring)

        timer = None
        with self._changed:
            if ready():
                ring()
            for wakers in several:
                wakers.append(wake)
        try:
            if bell is not None:
                loop.add_reader(bell.fileno(), ring)
                left = SLICE_S if left is None else min(left, SLICE_S)
            if left is not None:
                timer = loop.call_later(left, ring)
            await woken
        finally:
            if timer is not None:
                timer.cancel()
            if bell is not None:
                if not loop.is_closed():
                    loop.remove_reader(bell.fileno())
                bell.disarm()
            with self._changed:
                for wakers in several:
                    wakers.remove(wake)


async def yield_to_others(turns: int) -> None:
    """There is something, but not for us: it came meanwhile, or the GPU is not done with it."""
    import asyncio

    await asyncio.sleep(waiting.FENCE_POLL_S if turns > waiting.FENCE_SPINS else 0)


def wake(wakers: Wakers) -> None:
    for each in wakers:
        each()


def left_s(deadline: float | None) -> float | None:
    """Seconds until a time.monotonic()."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())

"""A client in event loops.  Any number of tasks wait for answers and for room, and none blocks a
loop.

Each loop listens for all its tasks.  A bell tells it that something has come.  It then receives for
them as a thread would, or sleeps until the thread that receives is done.  Only the loop's own
thread uses what is here, except for `wake`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from gpuring import native
from gpuring.deadlines import left_s
from gpuring.ring import waiting
from gpuring.service import _inbox
from gpuring.service._sleepers import AsleepTask, Attempt, asyncio

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Handle, TimerHandle

    from gpuring.native import Notifier, Peer
    from gpuring.service._inbox import Inbox
    from gpuring.service._sleepers import Turn

_LOOKS = 20  # slices, after which a task that wants to send looks, in case nobody woke it


class Task(AsleepTask):
    """A task that sleeps once."""

    __slots__ = ()

    async def sleep(self, left: float) -> None:
        """Sleeps until it is woken, for `left` seconds at most."""
        timer = self.loop.call_later(left, self.ring)
        try:
            await self.woken
        finally:
            timer.cancel()


Queues = dict["AbstractEventLoop", dict[object, Task]]
"""The tasks of each loop that want to send, in turn.  They keep it when a service is replaced."""


class Tasks(_inbox.LoopTasks):
    """The tasks of one loop that wait for something of one client.

    Only the thread of the loop uses it, except for `wake`.  It belongs to one mailbox of a client.
    The queue of those that want to send is that of the loop in every mailbox of the client, so
    tasks keep their turn when the service is replaced.

    If a signal handler raises in a callback, only that callback ends.  So each callback repairs
    what the one before has left.
    """

    def __init__(self, mailbox: Inbox, loop: AbstractEventLoop, queue: dict[object, Task]) -> None:
        super().__init__(mailbox, loop, queue, Task)
        self._bells: dict[Peer, Notifier] = {}
        self._watched: Notifier | None = None  # armed or readable; it has a reader
        self._reader: Notifier | None = None  # known to the loop; it may be disarmed
        self._signals = 0  # how often there was something, but not for us
        self._tick: TimerHandle | None = None  # when it looks without a bell
        self._next: Handle | None = None  # when it looks because it was woken

    # ---- for tasks -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def turn_to_send(
        self, deadline: float, late: Callable[[str], Exception]
    ) -> AsyncIterator[None]:
        """Lets one task after the other send, in the order in which they came.  Raises the error
        that `late` makes; its argument says who sends meanwhile."""
        queue, mine = self._queue, Task(self._loop)
        queue.pop(mine.key, None)
        queue[mine.key] = mine
        try:
            while _first(queue) is not mine:
                left = left_s(deadline)
                if left == 0:
                    raise late("other tasks are")
                await mine.sleep(min(left, _LOOKS * _inbox.SLICE_S))
                mine = queue[mine.key] = Task(self._loop)
            yield
        finally:
            queue.pop(mine.key, None)
            if (heir := _first(queue)) is not None:
                heir.ring()

    async def until_claimable(self, peer: Peer, turn: Turn, deadline: float, turns: int) -> int:
        """Waits until there may be a slot for `peer`, whose users take the `turn`.  Returns the
        next `turns`."""
        bell, rung = self._bell(peer), False
        with Attempt(turn) as mine:
            if mine:
                rung = bell.arm(peer)
        if not mine:
            await asyncio().sleep(_inbox.SLICE_S)  # a thread waits and has the turn
            return 0
        if rung:
            await asyncio().sleep(_pause_s(turns))
            return turns + 1
        task = Task(self._loop)

        def claimable() -> None:
            self._unwatch(bell)
            task.ring()

        self._loop.add_reader(bell.fileno(), claimable)
        try:
            await task.sleep(min(left_s(deadline), _inbox.SLICE_S))
        finally:
            self._unwatch(bell)
        return 0

    # ---- listening -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Called by any thread when nobody receives any more."""
        with contextlib.suppress(RuntimeError):  # that loop has ended, with its tasks
            self._loop.call_soon_threadsafe(self._hear)

    def _listen(self) -> None:
        """Begins to listen in the next turn of the loop.  Tasks that run in this one release
        answers and send requests meanwhile.  Each release would ring a bell that is armed."""
        self._look_later()
        self._listening = True
        self._soon(0)

    def _look_later(self) -> None:
        """Lets the loop look after a slice, unless it will anyway."""
        if self._tick is None or self._tick.when() < self._loop.time():
            self._tick = self._loop.call_later(_inbox.SLICE_S, self._look)
            self._looks_at = time.monotonic() + _inbox.SLICE_S

    def _look(self) -> None:
        """Called once in a slice.  It wakes those whom an interrupt has kept from being woken.  If
        nobody has slept lately, the loop lets go of us: the client may have been dropped."""
        self._tick = None
        if self._sleeper() is None and not self._listening:
            self._leave()
            return
        for task in list(self._asleep.values()):
            if task.ready():
                task.ring()
        self._hear()

    def _hear(self) -> None:
        """Receives for the tasks that sleep, and arranges the next look."""
        if self._loop.is_closed():  # while tasks were still asleep
            self._leave()
            return
        self._look_later()
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._listening = True
        calls, task, bell = self._mailbox.calls, self._sleeper(), None
        if task is not None and not calls.closed:
            for heir in (None, self):  # whoever gives the turn up in between wakes this loop
                if heir is not None:
                    calls.inherit(heir)
                mine = False
                try:
                    with Attempt(calls.turn) as mine:
                        if mine:
                            bell = self._receive(task)
                finally:
                    if mine:
                        calls.pass_turn()
                if mine:
                    break
        self._watch(bell)
        if not self._asleep:
            self._listening = False
            if calls.closed:
                self._leave()

    def _leave(self) -> None:
        """Leaves nothing in the loop."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self._watch(None)
        if self._reader is not None:
            bell, self._reader = self._reader, None
            self._unwatch(bell)

    def _receive(self, task: Task) -> Notifier | None:
        """Returns the bell that rings when there is something for this loop, or None if the loop
        looks again by itself.

        On a GPU it receives what is written, but at most one answer that is not (Inbox.receive).
        The task that gets it runs before the stream waits for the next one.

        A bell that is watched is armed only when nothing was received.  Until then it is readable,
        so the loop looks again in its next turn, and who answers need not wake anybody."""
        box = self._mailbox
        try:
            received = box.receive(0, task.stream, None, box.on_device)
            if self._sleeper() is None:
                return None
            bell = self._bell(box.peer)
            if (received and self._watched is bell) or not bell.arm(box.peer) or received:
                self._signals = 0
                return bell
            self._soon(_pause_s(self._signals))
            self._signals += 1
        except Exception as error:
            task.ring(error)
            self._soon(0)  # now for the other tasks
        return None

    def _soon(self, pause_s: float) -> None:
        """Lets the loop look again after `pause_s` seconds."""
        if self._next is not None:
            self._next.cancel()
        loop = self._loop
        self._next = loop.call_later(pause_s, self._hear) if pause_s else loop.call_soon(self._hear)

    def _sleeper(self) -> Task | None:
        """The first task that still sleeps."""
        return _first(self._asleep)

    def _watch(self, bell: Notifier | None) -> None:
        """Listens to that bell; with None to no bell any more.  The loop keeps its reader until
        nobody has slept for a slice: tasks mostly come back soon."""
        if bell is None:
            self._watched = None  # first, so that a bell in `_watched` is always watched
            if (before := self._bells.get(self._mailbox.peer)) is not None:
                before.clear()
        elif self._watched is not bell:
            if self._reader is not bell:
                self._loop.add_reader(bell.fileno(), self._hear)
                self._reader = bell
            self._watched = bell

    def _unwatch(self, bell: Notifier) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(bell.fileno())
        bell.disarm()

    def _bell(self, peer: Peer) -> Notifier:
        if peer not in self._bells:
            self._bells[peer] = native.Notifier()
        return self._bells[peer]


def _first(tasks: dict[object, Task]) -> Task | None:
    """Returns the first task, and removes those before it that are gone."""
    gone = []
    try:
        for key, task in tasks.items():
            if not task.gone:
                return task
            gone.append(key)
    finally:
        for key in gone:
            tasks.pop(key, None)
    return None


def _pause_s(turns: int) -> float:
    """How long to wait when there was something, but not for this loop: another one took it, or the
    GPU has not written it yet."""
    return waiting.FENCE_POLL_S if turns > waiting.FENCE_SPINS else 0

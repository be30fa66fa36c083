"""The doorbell: no sleeper misses its wake-up, whoever dies on the way to the bell.

This is why the other models may say "wait until a word changes".  The time limit of every futex
sleep is left out on purpose, because it would hide each mistake.  The words are `frame` (what the
sleeper wants), one peer entry, the bell and the waiters.  `wakes` stands for the kernel: a futex
sleeper sleeps until it changes.  A second ring (`frame2`, …) is for an actor that sleeps at several
bells.  `armed`, `fd`, `kicks`, `listed` and `mutex` belong to one process, whose notifier thread
(core/notify.c) turns bells into descriptors.  Reapers work under LOCK, as in `membership.py`.
"""

from .explore import World, explore
from .program import Actor
from .steps import fetch_add, load, load_both, lock, store, wait
from .words import FREE, LEAVING, LIVE, Peer

FRAME, ENTRY, BELL, WAITERS, WAKES, BYTE = range(6)
FRAME2, BELL2, WAITERS2, WAKES2 = range(6, 10)
ARMED, FD, KICKS, LISTED, MUTEX, LOCK = range(10, 16)
NAMES = ["frame", "peer[0]", "bell", "waiters", "wakes", "byte[0]"]
NAMES += ["frame2", "bell2", "waiters2", "wakes2"]
NAMES += ["armed", "fd", "kicks", "listed", "mutex", "LOCK"]
WAKER = 1  # the tag that owns byte[0]


class Doorbell:
    def __init__(self, off=()):
        self.off = off

    def fix(self, name):
        return name not in self.off

    # ------------------------------------------------------------------ the two verbs

    def sleep_until(self, wanted):
        """`wanted(frame, entry)`: the condition, looked at word by word."""
        while True:
            if self.fix("D2"):
                yield fetch_add(WAITERS, 1)  # raised BEFORE the look
            if self.fix("D1"):
                bell = yield load(BELL)  # loaded BEFORE the condition
            frame = yield load(FRAME)
            entry = yield load(ENTRY)
            there = wanted(frame, entry)
            frame = entry = None
            if not self.fix("D1"):
                bell = yield load(BELL)
            if not self.fix("D2"):
                yield fetch_add(WAITERS, 1)
            if not there:
                yield from self._futex_wait(bell)
            yield fetch_add(WAITERS, -1)
            if there:
                return
            bell = None

    def ring(self, waiters=WAITERS, bell=BELL, wakes=WAKES):
        """Ring after a change (and a full fence).  Skipped when nobody waits."""
        if (yield load(waiters)):
            yield fetch_add(bell, 1)
            yield fetch_add(wakes, 1)  # futex_wake(all)

    def _futex_wait(self, expected):
        bell, wakes = yield load_both(BELL, WAKES)  # the kernel compares and queues at one instant
        if bell == expected:
            yield wait((WAKES, wakes))

    def select(self):
        """Sleep until there is a frame in one of two rings."""
        while True:
            yield fetch_add(WAITERS, 1)
            yield fetch_add(WAITERS2, 1)
            bell = yield load(BELL)
            bell2 = yield load(BELL2)
            there = (yield load(FRAME)) or (yield load(FRAME2))
            if not there:
                yield from self._futex_waitv(bell, bell2)
            yield fetch_add(WAITERS, -1)
            yield fetch_add(WAITERS2, -1)
            if there:
                return
            bell = bell2 = None

    def _futex_waitv(self, expected, expected2):
        bell, wakes = yield load_both(BELL, WAKES)  # the kernel queues at one after the other
        if bell != expected:
            return
        bell2, wakes2 = yield load_both(BELL2, WAKES2)
        if bell2 == expected2:
            second = ((WAKES2, wakes2),) if self.fix("D11") else ()
            yield wait((WAKES, wakes), *second)

    # ------------------------------------------------------------------ event loop, notifier

    def poll_until(self, wanted):
        """Arms, and waits for the descriptor, until frame `wanted` is there."""
        while True:
            yield lock(MUTEX, 1)
            if self.fix("D9"):
                yield fetch_add(WAITERS, 1)  # announced BEFORE the look
            bell = yield load(BELL)
            there = (yield load(FRAME)) >= wanted or (yield load(ENTRY)) != LIVE
            if not self.fix("D9"):
                yield fetch_add(WAITERS, 1)
            if there:
                yield fetch_add(WAITERS, -1)
                yield store(MUTEX, 0)
                return
            if self.fix("D10"):
                yield store(FD, 0)  # drained BEFORE the notifier thread can see that it is armed
            yield store(ARMED, wanted)
            if self.fix("D7") and (yield load(LISTED)) != bell + 1:
                yield fetch_add(KICKS, 1)  # unless the notifier thread sleeps at that very value
            bell = there = None
            yield store(MUTEX, 0)
            if not self.fix("D10"):
                yield store(FD, 0)
            yield wait((FD, 0))

    def notifier_thread(self, me):
        while True:
            yield lock(MUTEX, 2)
            kicks = yield load(KICKS)
            armed = yield load(ARMED)
            listed = 0  # a bell is listed with its value + 1
            if armed:
                if self.fix("D8"):
                    listed = 1 + (yield load(BELL))  # loaded BEFORE the condition
                there = (yield load(FRAME)) >= armed or (yield load(ENTRY)) != LIVE
                if not self.fix("D8"):
                    listed = 1 + (yield load(BELL))
                if there:
                    yield store(ARMED, 0)
                    yield fetch_add(WAITERS, -1)
                    yield store(FD, 1)
                armed = there = None
            yield store(LISTED, listed)  # it stays there for a while, though nobody is armed
            yield store(MUTEX, 0)
            if listed:
                bell, wakes = yield load_both(BELL, WAKES)
                if bell == listed - 1:
                    yield wait((WAKES, wakes), (KICKS, kicks))
                bell = wakes = None
            else:
                yield wait((KICKS, kicks))
            kicks = armed = listed = None

    # ------------------------------------------------------------------ who changes what is awaited

    def change_and_ring(self, a, value):
        if self.fix("D4"):
            yield store(a, value)
            yield from self.ring()
        else:
            yield from self.ring()
            yield store(a, value)

    def publisher(self, me):
        yield from self.change_and_ring(FRAME, 1)

    def publisher2(self, me):
        yield store(FRAME2, 1)
        yield from self.ring(WAITERS2, BELL2, WAKES2)

    def second_publisher(self, me):
        yield wait((FRAME, 0))
        yield from self.change_and_ring(FRAME, 2)

    def leaver(self, me):
        if self.fix("D6"):
            yield from self.change_and_ring(ENTRY, LEAVING)  # visible as gone, still reapable
            yield store(ENTRY, FREE)
            yield store(BYTE, 0)
        else:
            yield store(ENTRY, FREE)
            yield store(BYTE, 0)
            yield from self.ring()

    def reaper(self, me):
        while True:
            entry, byte = yield load_both(ENTRY, BYTE)
            if entry == FREE or byte:
                yield wait((ENTRY, entry), (BYTE, byte))
            else:
                yield lock(LOCK, me.tag)
                entry = yield load(ENTRY)
                if entry != FREE:  # another one may have cleared it meanwhile
                    # what sleepers look at; in the core: words, and the count of producers
                    yield store(ENTRY, LEAVING if self.fix("D12") else FREE)
                    if self.fix("D3"):
                        yield from self.ring()  # always: the dead may have changed a word, not rung
                    yield store(ENTRY, FREE)  # last: if this one dies, too, the next one rings
                yield store(LOCK, 0)
            entry = byte = None

    def frame_sleeper(self, me):
        yield from self.sleep_until(_frame_or_end)

    def end_sleeper(self, me):
        yield from self.sleep_until(_end)

    def select_sleeper(self, me):
        yield from self.select()

    def poller(self, me):
        yield from self.poll_until(1)

    def poller_of_two(self, me):
        yield from self.poll_until(1)
        yield from self.poll_until(2)

    # ------------------------------------------------------------------ worlds

    def cast(self, *scripts, kills=0, mortal=("publisher", "leaver")):
        """`scripts`: names of the methods above; publisher or leaver has entry 0."""
        self.actors, self.kills = [], kills
        for tag, name in enumerate(scripts, WAKER + 1):
            me = Peer(tag=WAKER if name in ("publisher", "leaver") else tag)
            script = getattr(self, name)
            daemon = name in ("reaper", "notifier_thread")
            self.actors.append(Actor(f"{name} {tag}", script, me, name in mortal, daemon))
        return self

    def explore(self):
        """-> Report."""
        memory = (0, LIVE, 0, 0, 0, WAKER, *[0] * 10)
        return explore(World(memory, NAMES, self.actors, self.kills, frozenset([BYTE, LOCK])))


def _frame_or_end(frame, entry):
    return frame or entry != LIVE


def _end(frame, entry):
    return entry != LIVE

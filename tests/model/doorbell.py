"""The doorbell: no sleeper misses its wake-up, whoever dies on the way to the bell.

Why the other models may say "wait until a word changes".  The 50 ms backstop of every futex sleep
is left out on purpose, it would hide each mistake.  Words: `frame` (what the sleeper wants), one
peer entry, bell and waiters; `wakes` is the kernel's: a futex sleeper sleeps until it moves.
"""

from .explore import Actor, World, explore
from .steps import NONE, fetch_add, load, load_both, store, wait
from .words import FREE, LEAVING, LIVE, Peer

FIXES = frozenset(["D1", "D2", "D3", "D4", "D6"])
FRAME, ENTRY, BELL, WAITERS, WAKES, BYTE = range(6)
NAMES = ["frame", "peer[0]", "bell", "waiters", "wakes", "byte[0]"]
WAKER = 1  # the tag that owns byte[0]


class Doorbell:
    def __init__(self, fixes=FIXES):
        self.fixes = fixes

    # ------------------------------------------------------------------ the two verbs

    def sleep_until(self, wanted):
        """`wanted(frame, entry)`: the condition, looked at word by word."""
        while True:
            if "D2" in self.fixes:
                yield fetch_add(WAITERS, 1)  # raised BEFORE the look
            if "D1" in self.fixes:
                bell = yield load(BELL)  # loaded BEFORE the condition
            frame = yield load(FRAME)
            entry = yield load(ENTRY)
            there = wanted(frame, entry)
            frame = entry = None
            if "D1" not in self.fixes:
                bell = yield load(BELL)
            if "D2" not in self.fixes:
                yield fetch_add(WAITERS, 1)
            if not there:
                yield from self._futex_wait(bell)
            yield fetch_add(WAITERS, -1)
            if there:
                return
            bell = None

    def ring(self):
        """After the change (and a full fence); skipped when nobody waits."""
        if (yield load(WAITERS)):
            yield fetch_add(BELL, 1)
            yield fetch_add(WAKES, 1)  # futex_wake(all)

    def _futex_wait(self, expected):
        bell, wakes = yield load_both(BELL, WAKES)  # the kernel compares and queues at one instant
        if bell == expected:
            yield wait(NONE, (WAKES, wakes))

    # ------------------------------------------------------------------ who changes what is awaited

    def change_and_ring(self, a, value):
        if "D4" in self.fixes:
            yield store(a, value)
            yield from self.ring()
        else:
            yield from self.ring()
            yield store(a, value)

    def publisher(self, me):
        yield from self.change_and_ring(FRAME, 1)

    def leaver(self, me):
        if "D6" in self.fixes:
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
            if entry != FREE and byte == 0:
                yield store(ENTRY, FREE)
                if "D3" in self.fixes:
                    yield from self.ring()  # always: the dead may have changed a word and not rung
            else:
                yield wait(NONE, (ENTRY, entry), (BYTE, byte))
            entry = byte = None

    def frame_sleeper(self, me):
        yield from self.sleep_until(_frame_or_end)

    def end_sleeper(self, me):
        yield from self.sleep_until(_end)

    # ------------------------------------------------------------------ worlds

    def cast(self, *scripts, kills=0, mortal=("publisher", "leaver")):
        """`scripts`: names of the methods above; publisher or leaver has entry 0."""
        self.actors, self.kills = [], kills
        for tag, name in enumerate(scripts, WAKER + 1):
            me = Peer(tag=WAKER if name in ("publisher", "leaver") else tag)
            script = getattr(self, name)
            self.actors.append(Actor(f"{name} {tag}", script, me, name in mortal, name == "reaper"))
        return self

    def explore(self):
        """-> Report."""
        memory = (0, LIVE, 0, 0, 0, WAKER)
        return explore(World(memory, NAMES, self.actors, self.kills, frozenset([BYTE])))


def _frame_or_end(frame, entry):
    return frame or entry != LIVE


def _end(frame, entry):
    return entry != LIVE

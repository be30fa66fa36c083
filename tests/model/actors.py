"""What the explored processes do, and the worlds they live in.  Scripts keep books for the invariants.

Every verb is taken from `protocol.Ring`; a script only calls them and notes in `me` what a user would
know: the frames it holds, those it published, those it has read and released.
"""

from .explore import Actor, World
from .invariants import Invariants, show
from .steps import NONE, apply, load_both, wait
from .words import CONSUMER, FREE, NOBODY, EndOfStream, Peer, PeerLost, RingClosed


def run(memory, verb):
    """Run one verb to its end on a list, undisturbed.  -> its result."""
    result = None
    try:
        while True:
            enabled, result = apply(memory, verb.send(result))
            if not enabled:
                raise AssertionError("a verb that runs alone must not wait")
    except StopIteration as stop:
        return stop.value


# ---------------------------------------------------------------------- scripts


def producing(ring, frames, *, join=False, leave=True, abandon=()):
    """Claim and publish `frames` times; the claims numbered in `abandon` carry nothing."""

    def script(me):
        if join:
            yield from ring.join(me)
        try:
            for k in range(frames):
                c = yield from ring.claim(me)
                me.writing = (c,)
                if k in abandon:
                    yield from ring.abandon(me, c)
                else:
                    yield from ring.publish(me, c)
                    me.published += (c,)
                me.writing = ()
                del c
        except RingClosed:
            me.ended = True
        if leave:
            yield from ring.leave(me)

    return script


def consuming(
    ring, frames=99, *, join=None, leave=True, keep=1, gives_back=(), newest=False, hoard=False
):
    """Acquire up to `frames` frames or to the end of the stream, holding up to `keep` at a time.

    The frames taken k-th, k in `gives_back`, are given back unread.  `hoard`: never release.
    """

    def script(me):
        if join is not None:
            yield from ring.join(me, join)
        try:
            for k in range(frames):
                s = yield from (ring.latest(me) if newest else ring.acquire(me))
                me.holding += (s,)
                if k in gives_back:
                    me.holding = me.holding[:-1]
                    yield from ring.give_back(me, s)
                elif len(me.holding) == keep and not hoard:
                    yield from _release_oldest(ring, me)
                del s
        except (EndOfStream, PeerLost):
            me.ended = True
        while me.holding and not hoard:
            yield from _release_oldest(ring, me)
        if leave and not hoard:
            yield from ring.leave(me)

    return script


def _release_oldest(ring, me):
    s = me.holding[0]
    yield from ring.release(me, s)
    me.holding, me.done = me.holding[1:], me.done + (s,)


def reaping(ring, victims):
    """A watchdog: reaps whoever of the entries `victims` is dead, for ever."""

    def script(me):
        while True:
            watch = ()
            for p in victims:
                entry, byte = yield load_both(ring.peer[p], ring.byte[p])  # a probe: reap looks again
                if entry != FREE and byte == 0:
                    watch = ()
                    yield from ring.reap(p, me.tag)
                    break
                watch += ((ring.peer[p], entry), (ring.byte[p], byte))
            else:
                entry = byte = p = None
                yield wait(NONE, *watch)

    return script


def closing(ring):
    def script(me):
        yield from ring.close()

    return script


# ---------------------------------------------------------------------- a world


class Cast:
    """Collects the actors of one world; whoever is not `late` has joined before the exploring starts."""

    def __init__(self, ring, kills=0, horizon=None):
        self.ring, self.kills, self.horizon = ring, kills, horizon
        self.memory, self.actors = list(ring.initial), []

    def producer(self, frames, *, late=False, mortal=False, **how):
        me = Peer(tag=len(self.actors) + 1)
        script = producing(self.ring, frames, join=late, **how)
        return self._add(f"P{me.tag}", me, script, mortal, None if late else "next")

    def consumer(self, frames=99, *, u=0, lossy=False, at="next", late=False, mortal=False, **how):
        me = Peer(tag=len(self.actors) + 1, role=CONSUMER, u=u, lossy=lossy)
        script = consuming(self.ring, frames, join=at if late else None, **how)
        return self._add(f"{'Y' if lossy else 'L'}{me.tag}", me, script, mortal, None if late else at)

    def reaper(self, *victims, mortal=False):
        return self._add(
            f"R{len(self.actors) + 1}", Peer(tag=len(self.actors) + 1, role=NOBODY),
            reaping(self.ring, victims), mortal, None, daemon=True,
        )  # fmt: skip

    def closer(self):
        me = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"X{me.tag}", me, closing(self.ring), False, None)

    def _add(self, name, me, script, mortal, at, daemon=False):
        if at is not None:
            run(self.memory, self.ring.join(me, at))
        self.actors.append(Actor(name, script, me, mortal, daemon))
        return self

    def world(self):
        rules = Invariants(self.ring, self.horizon or self.ring.slots * 99)
        return World(
            tuple(self.memory), self.ring.names, self.actors, self.kills, self.ring.locks,
            rules.legal, rules.safe, rules.final, show,
        )  # fmt: skip

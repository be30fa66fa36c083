"""What the explored processes do, and the worlds they live in.  Takes no step of its own.

Every verb is taken from `protocol.Ring`; a script only calls them and notes in `me` what a user
would know, for the invariants: the frames it writes and holds, and that its stream has ended.
"""

import dataclasses

from .explore import World, explore
from .invariants import Invariants, show
from .program import Actor
from .steps import load, load_both, owner, phase, run, store, wait, word
from .words import (
    CONSUMER,
    FREE,
    GIVEN_UP,
    HELD,
    NOBODY,
    PRODUCER,
    READY,
    WRITING,
    EndOfStream,
    Peer,
    PeerLost,
    Reaped,
    RingClosed,
    start,
)

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
                me.writing = ()
                del c
        except RingClosed:
            pass
        if leave:
            yield from ring.leave(me)

    return script


def consuming(
    ring,
    frames=None,
    *,
    join=None,
    alone=False,
    leave=True,
    keep=1,
    gives_back=0,
    together=False,
    newest=False,
):
    """Acquire `frames` frames, or all to the end of the stream, holding up to `keep` at a time.

    The first `gives_back` frames are given back unread: at once, or `together` when all of them are
    held, the last one first.  keep=None: never release.  It joins at once, or when the durable
    subscription has no member (`alone`).
    """

    def script(me):
        while alone and not (yield load(ring.unread_since[me.u])):
            yield wait((ring.unread_since[me.u], 0))
        if join is not None:
            yield from ring.join(me, join)
        left, back = frames, gives_back
        try:
            while left != 0:
                s = yield from (ring.latest(me) if newest else ring.acquire(me))
                left = left and left - 1
                me.holding += (s,)
                if back and len(me.holding) == (back if together else 1):
                    back -= len(me.holding)
                    while me.holding:
                        s, me.holding = me.holding[-1], me.holding[:-1]
                        yield from ring.give_back(me, s)
                elif not back and len(me.holding) == keep:
                    yield from _release_oldest(ring, me)
                del s
        except (EndOfStream, PeerLost):
            me.ended = True
        while me.holding and keep:
            yield from _release_oldest(ring, me)
        if leave:
            yield from ring.leave(me)

    return script


def _release_oldest(ring, me):
    s = me.holding[0]
    yield from ring.release(me, s)
    me.holding = me.holding[1:]
    me.had += ring.counting


def reaping(ring, victims):
    """A watchdog that reaps the dead among the entries `victims`, for ever."""

    def script(me):
        while True:
            watch = ()
            for p in victims:
                entry, byte = yield load_both(
                    ring.peer[p], ring.byte[p]
                )  # a probe: reap looks again
                if entry != FREE and byte == 0:
                    watch = ()
                    yield from ring.reap(p, me.tag)
                    break
                watch += ((ring.peer[p], entry), (ring.byte[p], byte))
            else:
                entry = byte = p = None
                yield wait(*watch)

    return script


def giving_up(ring, u):
    """A watchdog for which the patience of subscription u is over as soon as nobody is a member."""

    def script(me):
        while True:
            sb, since = yield load_both(ring.sub[u], ring.unread_since[u])
            if since and start(sb) != GIVEN_UP:
                sb = since = None
                yield from ring.give_up(u, me.tag)
            else:
                yield wait((ring.sub[u], sb), (ring.unread_since[u], since))

    return script


def subscribing(ring, at):
    def script(me):
        yield from ring.subscribe(me.u, me.tag, at)

    return script


def unsubscribing(ring, u):
    def script(me):
        yield from ring.unsubscribe(u, me.tag)

    return script


def meddling(ring, rounds=1, ends=False):
    """A thread that uses a peer while another thread leaves with it.  The peer may be gone at any
    time.

    It may keep a slot that it gets, or end it by itself.  It notes nothing in `me`, because the
    slot can be taken away from it.
    """

    def script(me):
        try:
            for _ in range(rounds):
                s = yield from (ring.claim(me) if me.role == PRODUCER else ring.acquire(me))
                if ends and me.role == PRODUCER:
                    yield from ring.publish(me, s)
                elif ends:
                    yield from ring.release(me, s)
                s = None
        except (Reaped, EndOfStream, PeerLost, RingClosed):
            pass

    return script


def leaving(ring):
    def script(me):
        yield from ring.leave(me)

    return script


def robbing(ring, p):
    """Somebody closes the descriptor of p's locks.  p is taken for dead, although it lives."""

    def script(me):
        yield store(ring.byte[p], 0)

    return script


def sweeping(ring):
    """A watchdog that looks for words whose owner's entry is FREE."""

    def script(me):
        while True:
            watch, found = (), False
            for a in (*ring.slot, *(a for row in ring.take for a in row)):
                w = yield load(a)
                watch += ((a, w),)
                if phase(w) == (WRITING if a in ring.slot else HELD):
                    entry = yield load(ring.peer[owner(w)])
                    watch += ((ring.peer[owner(w)], entry),)
                    found = found or entry == FREE
            w = entry = a = None
            if found:
                watch = ()
                yield from ring.clear_orphans(me.tag)
            else:
                yield wait(*watch)

    return script


def closing(ring):
    def script(me):
        yield from ring.close()

    return script


def judging(ring, i, p, producer_id, value):
    """A reader of a frame that no GPU has written.  Whenever it asks after the fence, the frame is
    torn."""

    def script(me):
        while (reached := (yield load(ring.fence[p][i]))) < value:
            yield wait((ring.fence[p][i], reached))
        reached = None
        if not (yield from ring.torn(i, p, producer_id, value)):
            raise AssertionError("a torn frame is taken for whole")

    return script


# ---------------------------------------------------------------------- a world


class Cast:
    """Collects the actors of one world.  An actor that is not `late` joins before the world
    starts."""

    def __init__(self, ring, kills=0, horizon=None):
        self.ring, self.kills, self.horizon = ring, kills, horizon
        self.memory, self.actors, self.lossless = list(ring.initial), [], set()
        self.robs = self.unsubscribes = False

    def producer(self, frames, *, late=False, mortal=False, **how):
        me = Peer(tag=len(self.actors) + 1)
        script = producing(self.ring, frames, join=late, **how)
        return self._add(f"P{me.tag}", me, script, mortal, None if late else "next")

    def consumer(
        self, frames=None, *, u=0, lossy=False, at="next", late=False, mortal=False, **how
    ):
        me = Peer(tag=len(self.actors) + 1, role=CONSUMER, u=u, lossy=lossy)
        if not lossy:
            self.lossless.add(u)
        if self.ring.durable and not late:
            self.durable(u, lossy=lossy)
        script = consuming(self.ring, frames, join=at if late else None, **how)
        return self._add(
            f"{'Y' if lossy else 'L'}{me.tag}", me, script, mortal, None if late else at
        )

    def reaper(self, *victims, mortal=False):
        return self._add(
            f"R{len(self.actors) + 1}",
            Peer(tag=len(self.actors) + 1, role=NOBODY),
            reaping(self.ring, victims),
            mortal,
            None,
            daemon=True,
        )

    def impatient(self, u=0, mortal=False):
        me = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"G{me.tag}", me, giving_up(self.ring, u), mortal, None, daemon=True)

    def durable(self, u=0, **terms):
        """A durable subscription that is there before all else."""
        run(self.memory, self.ring.subscribe(u, tag=1, **terms))
        begins, owed = start(self.memory[self.ring.sub[u]]), self.memory[self.ring.owed[u]]
        self.memory[self.ring.began[u]] = begins - owed
        return self

    def published(self, frames, u=0):
        """A producer has published these frames and left, and subscription u is given up."""
        run(self.memory, self.ring.give_up(u, tag=1))
        run(self.memory, producing(self.ring, frames, join=True)(Peer(tag=1)))
        self.memory[self.ring.came] += 1
        return self

    def subscriber(self, u=0, at="next", mortal=False):
        self.lossless.add(u)
        me = Peer(tag=len(self.actors) + 1, role=NOBODY, u=u)
        return self._add(f"D{me.tag}", me, subscribing(self.ring, at), mortal, None)

    def unsubscriber(self):
        self.unsubscribes = True
        me = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"U{me.tag}", me, unsubscribing(self.ring, 0), True, None)

    def threads(self, role, frames=1, *, ends=False, mortal=False, u=0):
        """A peer with two threads.  One uses the peer, and the other one leaves with it."""
        me = Peer(tag=len(self.actors) + 1, role=role, u=u)
        if role == CONSUMER:
            self.lossless.add(u)
        self._add(f"A{me.tag}", me, leaving(self.ring), mortal, "next")
        other = dataclasses.replace(me, shared=True)
        return self._add(f"B{me.tag}", other, meddling(self.ring, frames, ends), mortal, None)

    def robbed(self, role, *, u=0):
        """A peer that is taken for dead while it lives."""
        me = Peer(tag=len(self.actors) + 1, role=role, u=u, shared=True)
        self.robs = True
        self._add(f"B{me.tag}", me, meddling(self.ring), False, "next")
        thief = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"X{thief.tag}", thief, robbing(self.ring, me.p), False, None)

    def orphan(self, role, p, u=0):
        """The last thing that a robbed peer did, whose entry p is FREE by now: the first claim of
        the ring, or the hold of its first frame (nobody else's role matters for that)."""
        ring, s = self.ring, self.ring.slots
        self.robs = True
        self.memory[ring.slot[0]] = word(s, p, WRITING if role == PRODUCER else READY)
        if role == CONSUMER:
            self.memory[ring.take[u][0]] = word(s, p, HELD)
            self.memory[ring.unread[u]] = 1 << s
        return self

    def sweeper(self, mortal=False):
        me = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"S{me.tag}", me, sweeping(self.ring), mortal, None, daemon=True)

    def closer(self):
        me = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"X{me.tag}", me, closing(self.ring), False, None)

    def judge(self, *frame):
        me = Peer(tag=len(self.actors) + 1, role=NOBODY)
        return self._add(f"J{me.tag}", me, judging(self.ring, *frame), False, None, daemon=True)

    def _add(self, name, me, script, mortal, at, daemon=False):
        if at is not None:
            run(self.memory, self.ring.join(me, at))
            self.memory[self.ring.came] += me.role == PRODUCER
        self.actors.append(Actor(name, script, me, mortal, daemon))
        return self

    def explore(self):
        """-> Report."""
        return explore(self.world())

    def world(self):
        horizon = self.horizon or self.ring.slots * 99
        rules = Invariants(self.ring, self.lossless, horizon, self.robs, self.unsubscribes)
        return World(
            tuple(self.memory),
            self.ring.names,
            self.actors,
            self.kills,
            self.ring.locks,
            rules.legal,
            rules.safe,
            rules.note,
            show,
        )

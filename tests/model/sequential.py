"""The verbs of `protocol.py`, run one after the other: the oracle that the C core is held to.

Nobody interleaves, so a verb that has to wait raises `Blocked` instead; what it changed before
stays changed, as in the core.  Peers are named by their entry in the peer table.
"""

from .protocol import Ring
from .steps import NONE, apply, owner, phase, seq
from .words import (
    CONSUMER,
    DONE,
    FREE,
    HELD,
    LOSSLESS,
    OPEN,
    READY,
    TORN,
    VOID,
    WRITING,
    EndOfStream,
    Peer,
    PeerLost,
    Reaped,
    RingClosed,
    TableFull,
    mode,
    start,
)

__all__ = [
    "Blocked", "EndOfStream", "PeerLost", "Reaped", "RingClosed", "SequentialModel", "TableFull",
]  # fmt: skip

SLOT = {WRITING: "WRITING", READY: "READY", VOID: "VOID", TORN: "TORN"}
TAKE = {OPEN: "OPEN", HELD: "HELD", DONE: "DONE"}
PEER = ("FREE", "LIVE", "LEAVING")
SUB = (None, "lossless", "lossy")


class Blocked(Exception):
    """The verb would have to wait."""


class SequentialModel:
    """`gpu=False`: the CPU stores the fences.  `gpu=True`: fences are reached at `finish`."""

    def __init__(self, slots=4, subscriptions=4, peers=8, *, gpu=False):
        clocks = "device" if gpu else True
        self.ring = Ring(slots, subscriptions, peers, clocks=clocks, counting=True)
        self.memory = list(self.ring.initial)
        self._peers = {}  # entry -> Peer, of the living
        self._frames = {}  # seq -> what its record said when it was published
        self._names = {}  # u -> the subscription's name, valid while sub[u] is not FREE
        self._tags = 0

    # ------------------------------------------------------------------ membership

    def join_producer(self):
        """-> the peer's number.  Raises TableFull."""
        return self._join(Peer(tag=self._new_tag()), "next")

    def join_consumer(self, subscription, lossless=True, start="next"):
        """-> the peer's number.  `start`: "next", "oldest" or a sequence.

        Raises ValueError for the other mode, TableFull without a free entry or subscription.
        """
        u = self._index(subscription)
        me = Peer(tag=self._new_tag(), role=CONSUMER, u=u, lossy=not lossless)
        sb = self.memory[self.ring.sub[u]]
        if sb != FREE and (mode(sb) == LOSSLESS) != lossless:
            raise ValueError("the subscription has the other mode")
        p = self._join(me, start)
        self._names[u] = subscription
        return p

    def leave(self, x):
        """x has nothing claimed and nothing held.  Blocked while its GPU owes work (`gpu=True`)."""
        self._run(self.ring.leave(self._peers[x]))
        del self._peers[x]

    def kill(self, x):
        """The process dies: the kernel drops its locks, nothing else happens."""
        tag = self._peers.pop(x).tag
        for a in self.ring.locks:
            if self.memory[a] == tag:
                self.memory[a] = 0

    def reap(self, x):
        """Clear what the dead x left behind; harmless when x is alive, or gone."""
        self._run(self.ring.reap(x, self._new_tag()))

    def close(self):
        self._run(self.ring.close())

    # ------------------------------------------------------------------ frames

    def claim(self, p):
        """-> seq.  Raises Blocked, RingClosed."""
        return self._run(self.ring.claim(self._peers[p]))

    def publish(self, p, seq):
        me, i = self._peers[p], seq % self.ring.slots
        self._run(self.ring.publish(me, seq))
        self._frames[seq] = i, p, me.id, self.memory[self.ring.rec[i]]

    def abandon(self, p, seq):
        self._run(self.ring.abandon(self._peers[p], seq))

    def acquire(self, c):
        """-> seq.  Raises Blocked, EndOfStream, PeerLost."""
        return self._run(self.ring.acquire(self._peers[c]))

    def latest(self, c):
        """-> seq.  Raises as acquire."""
        return self._run(self.ring.latest(self._peers[c]))

    def release(self, c, seq):
        self._run(self.ring.release(self._peers[c], seq))

    def give_back(self, c, seq):
        """The frame was acquired but not read."""
        self._run(self.ring.give_back(self._peers[c], seq))

    def finish(self, x):
        """x's GPU has done all its work (`gpu=True`)."""
        for work, fence in zip(self.ring.work[x], self.ring.fence[x], strict=True):
            self.memory[fence] = self.memory[work]

    # ------------------------------------------------------------------ what can be seen

    def lost(self, c):
        """Sequences that the lossy consumer c was made to skip."""
        return self._peers[c].lost

    def torn(self, seq):
        """What check() says: the frame's fence is there, and only because a reaper raised it."""
        i, p, _, value = frame = self._frames[seq]
        return self.memory[self.ring.fence[p][i]] >= value and self._run(self.ring.torn(*frame))

    def words(self):
        """Every word a test may compare, unpacked; an owner of None is nobody."""
        ring, m = self.ring, self.memory
        return {
            "slot": [_unpack(m[a], SLOT) for a in ring.slot],
            "take": [[_unpack(m[a], TAKE) for a in row] for row in ring.take],
            "tear": [
                [(m[ring.tear[p][i]], m[ring.reached[p][i]]) for p in range(ring.peers)]
                for i in range(ring.slots)
            ],
            "sub": [(SUB[mode(m[a])], start(m[a])) if m[a] != FREE else None for a in ring.sub],
            "peer": [PEER[m[a] & 3] for a in ring.peer],
            "work": [[m[a] for a in row] for row in ring.work],
            "fence": [[m[a] for a in row] for row in ring.fence],
            "sub_mask": sum(m[a] << k * ring.word_bits for k, a in enumerate(ring.sub_mask)),
            "closed": bool(m[ring.closed]),
            "frontier": max(seq(m[a]) for a in ring.slot) + 1,  # the smallest unclaimed sequence
        }

    # ------------------------------------------------------------------ inside

    def _run(self, verb):
        """Take every step of one verb.  -> its result."""
        result = None
        try:
            while True:
                op = verb.send(result)
                enabled, result = apply(self.memory, op)
                if not enabled:
                    verb.close()
                    raise Blocked
        except StopIteration as stop:
            return stop.value

    def _join(self, me, at):
        self._run(self.ring.join(me, at))
        self._peers[me.p] = me
        return me.p

    def _new_tag(self):
        self._tags += 1
        return self._tags

    def _index(self, name):
        """-> u of the subscription called `name`, or of the first FREE one.  Raises TableFull."""
        taken = [self.memory[a] != FREE for a in self.ring.sub]
        named = [u for u, there in enumerate(taken) if there and self._names[u] == name]
        if not named and all(taken):
            raise TableFull
        return named[0] if named else taken.index(False)


def _unpack(w, phases):
    return seq(w), None if owner(w) == NONE else owner(w), phases[phase(w)]

"""The ring's words: what each is called, where it lies in the model's memory, how it is packed.

`Peer` is what one process keeps to itself.  Nothing here takes a step.
`fix("H1")` asks whether a fix is on: all are, but a mutant (`mutants.py`) is a ring with one `off`.
"""

from dataclasses import dataclass

from .steps import NONE, word

WRITING, READY, VOID, TORN = 1, 2, 3, 4  # slot phases
OPEN, HELD, DONE = 1, 2, 3  # take phases
FREE, LIVE, LEAVING = 0, 1, 2  # peer states
PRODUCER, CONSUMER, NOBODY = 0, 1, 2  # peer roles
LOSSLESS, LOSSY = 1, 2  # subscription modes; the whole word is FREE == 0 where there is none
NOT_ENDED, LEFT, DIED = 0, 1, 2  # how the last producer ended
DURABLE = 4  # beside the mode, in a subscription's word
GIVEN_UP = 1 << 20  # the start of a durable subscription that nobody waits for any more
COUNTED = 1 << 16  # in `owed`: what was lost from `resume` on is among it
MARKING = 1 << 63  # in a tear's id: what it reached is being written


class RingClosed(Exception):
    """The ring was closed; nothing of the claim is left behind."""


class EndOfStream(Exception):
    """Closed, or the last of all producers left, and everything published was read."""


class PeerLost(Exception):
    """The last of all producers died, or one did before, and everything published was read."""


class Reaped(Exception):
    """A word was not what I had put there: I was declared dead.  Nothing was changed."""


class TableFull(Exception):
    """No free entry in the peer table."""


@dataclass
class Peer:
    """What one process keeps to itself.  No other process reads any of it."""

    tag: int  # names the process in the kernel's lock words; never 0.  Threads of one have it alike
    role: int = PRODUCER
    u: int = 0  # consumers: the subscription
    lossy: bool = False
    p: int = NONE  # entry in the peer table, from join
    id: int = 0  # tells the owners of one entry apart (two clocks)
    start: int = 0
    pos: int = 0  # where the next look begins
    due: int = 0  # how much of what my durable subscription is owed I am told with my next frame
    due_with: int = 0  # the frame that told it
    paid: int = 0  # of this, what was told with a frame that I am done with
    seen: int = 0  # the value of redo[u] that pos takes into account
    lost: int = 0  # sequences that a lossy member was made to skip
    counted: int = 0  # of these, what its durable subscription's count has
    top: int = (
        0  # every sequence below is accounted for; a look from further back counts nothing twice
    )
    skipped: int = 0  # lost since the last frame that was handed out
    before: tuple = ()  # (frame in hand, what was lost just before it), where losses are counted
    # Of the frame that the last acquire gave: who published it, and what says that it is written.
    producer: int = NONE
    producer_id: int = 0
    value: int = 0
    shared: bool = False  # by threads of which one may leave; or its locks may be lost
    cpu: bool = False  # it has no GPU: what it does with a slot is done when it ends the slot
    # Noted by the actors for the invariants; the verbs do not look at it.
    writing: tuple = ()  # claimed, not yet published
    holding: tuple = ()  # acquired, not yet released
    ended: bool = False  # it was told that the stream is over
    had: int = 0  # frames that it has released, where losses are counted


def peer_word(state, role, u):
    return state | role << 2 | u << 4


def sub_word(start, kind):
    return start << 3 | kind


def start(sb):
    return sb >> 3


def mode(sb):
    return sb & 3


def durable(sb):
    return sb & DURABLE


def producers_word(died, left, live, how):
    """How many died and have left so far, how many are LIVE, how the last one ended."""
    return died << 14 | left << 6 | live << 2 | how


def producers(w):
    """-> (died, left, live, how)."""
    return w >> 14, w >> 6 & 255, w >> 2 & 15, w & 3


def ends_word(id, left, died):
    """For all owners of an entry: id of the last one that was counted, how many left and died."""
    return id << 8 | left << 4 | died


def ends(w):
    """-> (id, left, died)."""
    return w >> 8, w >> 4 & 15, w & 15


def bits(mask, first=0):
    return tuple(first + u for u in range(mask.bit_length()) if mask >> u & 1)


class Words:
    """The words of one ring, as addresses into a flat memory (a list or tuple of integers)."""

    def __init__(
        self,
        slots=2,
        subs=1,
        peers=3,
        *,
        off=(),
        clocks=False,
        event=False,
        threads=False,
        redeliver=True,
        counting=False,
        word_bits=64,
        producers=1,
        durable=False,
    ):
        self.slots, self.subs, self.peers = slots, subs, peers
        self.off, self.clocks, self.redeliver = off, clocks, redeliver
        self.event = event  # sync "event": a fence that is behind may have been reached
        # Whether peers have threads, or lose their locks while they live.  Without either this is
        # off, because the looks of a verb at its own entry would only multiply the states.
        self.threads = threads
        self.counting = (
            counting  # `lost` is kept: off in most explorations, it only multiplies states
        )
        self.in_all = producers  # how many have to come and go before the stream ends
        self.durable = durable  # subscriptions may be
        self.word_bits = word_bits  # how many subscriptions share a word of the mask
        self.names, self.initial = [], []
        S, U, P = range(slots), range(subs), range(peers)
        row = self._row
        self.slot = row("slot[{}]", S, lambda i: word(i, NONE, VOID))
        self.take = tuple(row(f"take[{u}][{{}}]", S, word(0, NONE, DONE)) for u in U)
        self.sub = row("sub[{}]", U, FREE)
        self.redo = row("redo[{}]", U, 0)
        self.peer = row("peer[{}]", P, FREE)
        self.claim_hint = self._word("claim_hint", slots)
        # Superset of the subscriptions announced, in words that are loaded one after the other.
        self.sub_mask = row("sub_mask[{}]", range(-(-subs // word_bits)), 0)
        self.producers = self._word("producers", 0)
        self.ends = row("ends[{}]", P, 0)
        self.joins = self._word("joins", 0)
        self.id = row("id[{}]", P, 0)
        self.closed = self._word("closed", 0)
        self.lock = self._word("LOCK", 0)  # kernel lock words: who holds it; dropped at death
        self.byte = row("byte[{}]", P, 0)
        if clocks:
            self.work = tuple(row(f"work[{p}][{{}}]", S, 0) for p in P)
            self.fence = tuple(row(f"fence[{p}][{{}}]", S, 0) for p in P)
            self.rec = row("rec[{}].fence", S, 0)
            self.rec_producer = row("rec_producer[{}]", S, 0)
            self.tear = tuple(row(f"tear[{p}][{{}}]", S, 0) for p in P)  # id | MARKING
            self.reached = tuple(row(f"reached[{p}][{{}}]", S, 0) for p in P)
            self.process = row(
                "process[{}]", P, 0
            )  # what a pidfd tells: 0 once the GPU work is gone
        if durable:
            self.unread_since = row("unread_since[{}]", U, 0)  # 0: it has a member
            self.resume = row("resume[{}]", U, 0)
            self.owed = row("owed[{}]", U, 0)  # with COUNTED
            self.untold = row("untold[{}]", P, 0)
            self.lost = row("lost[{}]", U, 0)
        if threads:  # of a process, by its tag: its verbs in progress
            self.inside = row("inside[{}]", range(8), 0)
        # Ghosts, not words of the ring; only `invariants.py` looks at them.
        self.unread = row("unread[{}]", U, 0)  # frames (bits) that subscription u still has to read
        if durable:
            self.had = row("had[{}]", U, 0)  # frames (bits) that it has read
            self.told = row("told[{}]", U, 0)  # what members were told, and are done with
            # Where it began, as if the frames that it is owed had come just before.
            self.began = row("began[{}]", U, 0)
        self.came = self._word("came", 0)  # producers that ever joined
        if clocks == "device":  # how far p's GPU came by itself, whoever raised its fence since
            self.paid = tuple(row(f"paid[{p}][{{}}]", S, 0) for p in P)
        self.ended_at = self._word("ended_at", 0)  # the frontier when the stream was first over
        self.locks = frozenset([self.lock, *self.byte, *(self.process if clocks else ())])

    def _word(self, name, value):
        self.names.append(name)
        self.initial.append(value)
        return len(self.names) - 1

    def _row(self, name, indices, value):
        value_of = value if callable(value) else lambda i: value
        return tuple(self._word(name.format(i), value_of(i)) for i in indices)

    def fix(self, name):
        return name not in self.off

"""Subscriptions: where they begin, and how long they stay.  All of it runs under LOCK.

Read it beside gpuring/native/core/subscriptions.c.  Only the holder of LOCK writes the words of a
subscription, and the take words of a durable one without a member.  So `load_all` may read them in
one step.
"""

from .steps import NONE, fetch_add, fetch_and_not, fetch_or, load, load_all, lock, phase, seq, store
from .steps import word as claim_word
from .words import (
    CONSUMER,
    COUNTED,
    DONE,
    DURABLE,
    FREE,
    GIVEN_UP,
    LIVE,
    LOSSLESS,
    LOSSY,
    READY,
    durable,
    mode,
    peer_word,
    start,
    sub_word,
)


class Subscriptions:
    # ------------------------------------------------------------------ begin, end

    def _begin_subscription(self, u, at, kind, owed=0):
        if self.fix("H11"):
            for i in range(self.slots):
                yield store(self.take[u][i], claim_word(0, NONE, DONE))
        if self.durable:
            yield store(self.lost[u], 0)
            yield store(self.unread_since[u], 1 if durable(kind) else 0)
            yield store(self.owed[u], owed)
        s = yield from self._first(at)
        if self.durable:
            yield store(self.resume[u], s if durable(kind) and self.fix("H18") else 0)
        if self.fix("M2"):
            yield fetch_or(*self._bit(u))  # before the announcement
        yield from self._announce(u, s, kind)
        if not self.fix("M2"):
            yield fetch_or(*self._bit(u))
        if self.durable:
            yield store(self.resume[u], 0)

    def _first(self, at):
        """-> where a subscription is to start that shall start at "next", "oldest" or an int."""
        N, f = self.slots, (yield from self._frontier())
        oldest = max(N, f + 1 - N)
        return f if at == "next" else oldest if at == "oldest" else max(at, oldest)

    def _announce(self, u, s, kind):
        """Announce the subscription, twice if need be.  -> where it starts."""
        N = self.slots
        yield store(self.sub[u], sub_word(s, kind))  # announce
        f = yield from self._frontier()  # one claim may have missed the announcement
        if self.fix("H5") and mode(kind) == LOSSLESS and s < f + 1 - N:
            s = f + 1 - N
            yield store(self.sub[u], sub_word(s, kind))
        return s

    def _bit(self, u):
        """-> (address, bit) of a subscription in the mask."""
        return self.sub_mask[u // self.word_bits], 1 << u % self.word_bits

    def _frontier(self):
        f = yield load(self.claim_hint)
        while seq((yield load(self.slot[f % self.slots]))) >= f:
            f += 1
        return f

    def _lose_last_member(self, u):
        """Remove it, unless it is durable.  A reaper repeats this, so the first time stays."""
        if self.durable and self.fix("H12"):
            sb, since = yield load_all(self.sub[u], self.unread_since[u])
            if durable(sb):
                if not since:
                    yield store(self.unread_since[u], 1)
                return
        yield from self._remove_subscription(u)

    def _remove_subscription(self, u):
        yield store(self.sub[u], FREE)
        yield fetch_and_not(*self._bit(u))  # after it is FREE

    def _has_other_member(self, p, u):
        for x in range(self.peers):
            w = yield load(self.peer[x])
            if x != p and w == peer_word(LIVE, CONSUMER, u):
                return True
        return False

    # ------------------------------------------------------------------ durable

    def _first_missing(self, u, f):
        """-> the first sequence before f that it is not done with, or f."""
        sb, resume, owed, *takes = yield load_all(
            self.sub[u], self.resume[u], self.owed[u], *self.take[u]
        )
        s = start(sb)
        if (
            resume and not owed & COUNTED and s >= resume
        ):  # given up, and no member has counted yet what that cost
            return resume
        if mode(sb) == LOSSLESS:
            s = max(s, f - self.slots)  # no claim has passed what it is not done with
        else:  # it has met all before its newest take
            s = max(s, *(seq(t) + 1 for t in takes if phase(t) == DONE), 0)
        while s < f and _had(takes, s):
            s += 1
        return min(s, f)

    def _missed(self, u, s, to):
        """-> how many sequences from s to `to` it was not done with."""
        takes = yield load_all(*self.take[u])
        return sum(not _had(takes, x) for x in range(s, to))

    def missing(self, u):
        """-> how many frames it has not had.  Exact while it has no member and nobody publishes."""
        f = yield from self._frontier()
        s = yield from self._first_missing(u, f)
        lost = yield from self._missed(u, s, f - self.slots)
        takes = yield load_all(*self.take[u])
        for x in range(max(s, f - self.slots), f):
            w = yield load(self.slot[x % self.slots])
            lost += not _had(takes, x) and seq(w) == x and phase(w) == READY
        return lost + ((yield load(self.owed[u])) & ~COUNTED)

    def _untold(self, u):
        """-> how much it is owed of which no other member was told."""
        told = 0
        if not (yield load(self.owed[u])) & ~COUNTED:
            return 0
        for p in range(self.peers) if self.fix("H20") else ():
            if (yield load(self.peer[p])) == peer_word(LIVE, CONSUMER, u):
                n = yield load(self.untold[p])
                if n and (yield load(self.byte[p])):
                    told += n
                n = None
        return max(((yield load(self.owed[u])) & ~COUNTED) - told, 0)  # last, see _pay

    def _take_up(self, me):
        """Join one that is there.  -> whether it was announced again.

        The joiner's entry is LIVE, so nobody gives it up any more.
        """
        u, again = me.u, False
        if (yield load(self.owed[u])) & COUNTED:
            yield from self._end_counting(u)
        sb, since, noted = yield load_all(self.sub[u], self.unread_since[u], self.resume[u])
        if since:
            f = yield from self._frontier()
            s = yield from self._first_missing(u, f)
            f = None
            again = bool(noted and start(sb) >= noted) or mode(sb) == LOSSY
            if again:
                yield store(self.resume[u], s)
                begins = yield from self._first(s)
                begins = yield from self._announce(u, begins, sb & 7)
                lost = yield from self._missed(u, s, begins)
                begins = None
                if not self.fix("H16"):
                    yield from self._end_counting(u)
                yield store(self.owed[u], ((yield load(self.owed[u])) & ~COUNTED) + lost | COUNTED)
                lost = None
            s = None
            yield store(self.unread_since[u], 0)
            yield from self._end_counting(u)
        sb = since = noted = None
        me.due = yield from self._untold(u)
        if me.due:
            if self.fix("H21"):
                yield store(self.untold[me.p], me.due)
            else:
                yield store(self.owed[u], 0)
            yield fetch_add(self.lost[u], me.due)
        return again

    def _end_counting(self, u):
        """Count what was lost from `resume` on as owed.  A process that is killed on the way leaves
        the rest to the next holder of LOCK."""
        yield store(self.resume[u], 0)
        yield fetch_and_not(self.owed[u], COUNTED)

    def _pay(self, me):
        """A member is done with the frame that told it what was owed."""
        due, me.due, me.due_with = me.due, 0, 0
        if self.fix("H21"):
            yield fetch_add(self.owed[me.u], -due)
            yield store(self.untold[me.p], 0)
        me.paid += due

    def give_up(self, u, tag):
        """The patience of u is over, as somebody saw who had not got LOCK yet."""
        yield lock(self.lock, tag)
        sb, since = yield load_all(self.sub[u], self.unread_since[u])
        over = durable(sb) and start(sb) != GIVEN_UP
        over = over and (
            not self.fix("H13") or (since and not (yield from self._has_other_member(NONE, u)))
        )
        if over:
            f = yield from self._frontier()
            if (yield load(self.owed[u])) & COUNTED:
                yield from self._end_counting(u)
            s = yield from self._first_missing(u, f)
            f = None
            if self.fix("H14"):
                yield store(self.resume[u], s)
            yield store(self.sub[u], sub_word(GIVEN_UP, sb & 7))
            if not self.fix("H14"):
                yield store(self.resume[u], s)
        yield store(self.lock, 0)
        # ring: producers wait for it no more

    def subscribe(self, u, tag, at="next", lossy=False, owed=0):
        """Make a durable subscription, or make the one that is there durable."""
        yield lock(self.lock, tag)
        sb = yield load(self.sub[u])
        if sb == FREE:
            kind = (LOSSY if lossy else LOSSLESS) | DURABLE
            yield from self._begin_subscription(u, at, kind, owed)
        else:
            yield fetch_add(self.owed[u], owed)
            yield store(self.sub[u], sb | DURABLE)
        yield store(self.lock, 0)

    def unsubscribe(self, u, tag):
        """Make it end with its last member, so at once if it has none."""
        yield lock(self.lock, tag)
        sb = yield load(self.sub[u])
        if sb != FREE:
            if (yield from self._has_other_member(NONE, u)):
                yield store(self.sub[u], sb & ~DURABLE)
            else:
                yield from self._remove_subscription(u)
        yield store(self.lock, 0)
        # ring: producers may have waited for it


def _had(takes, s):
    t = takes[s % len(takes)]
    return seq(t) == s and phase(t) == DONE

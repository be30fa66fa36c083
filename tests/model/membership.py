"""Join, leave, reap, close: the verbs that change who is here.  All but close run under LOCK.

LOCK and byte[p] are kernel locks, which are dropped in the instant in which their holder dies.  So
a verb may be cut off anywhere under LOCK, and the next holder finds the words half changed.
Therefore every step can be repeated, and "entry FREE" is the last store.
"""

from .steps import (
    NONE,
    cas,
    fetch_add,
    load,
    load_all,
    lock,
    owner,
    phase,
    seq,
    store,
    wait,
    word,
)
from .subscriptions import Subscriptions
from .words import (
    CONSUMER,
    DIED,
    DONE,
    FREE,
    HELD,
    LEAVING,
    LEFT,
    LIVE,
    LOSSLESS,
    LOSSY,
    MARKING,
    NOT_ENDED,
    OPEN,
    PRODUCER,
    READY,
    TORN,
    VOID,
    WRITING,
    TableFull,
    ends,
    ends_word,
    mode,
    peer_word,
    producers,
    producers_word,
    start,
)


class Membership(Subscriptions):
    # ------------------------------------------------------------------ join

    def join(self, me, at="next"):
        """Enter the table; a consumer then enters subscription u at "next", "oldest" or an int."""
        if self.fix("A4"):
            yield lock(self.lock, me.tag)
        if not self.fix("A5") and me.role == CONSUMER:
            yield from self._subscribe(me, at)
        yield from self._enter(me)
        if self.fix("A5") and me.role == CONSUMER:  # entry before subscription
            yield from self._subscribe(me, at)
        if self.fix("A4"):
            yield store(self.lock, 0)

    def _enter(self, me):
        live = peer_word(LIVE, me.role, me.u)
        if self.threads and self.fix("A8"):
            yield from self._clear_orphans()  # before one could be taken for mine
        for p in range(self.peers):
            if (yield load(self.peer[p])) != FREE:
                continue
            if not self.fix("A4"):  # the draft: no LOCK, and LIVE before the byte
                if (yield cas(self.peer[p], FREE, live)):
                    me.p = p
                    yield lock(self.byte[p], me.tag)
                    return
                continue
            if self.clocks and self.fix("G8") and (yield from self._behind(p)):
                continue
            if not (yield cas(self.byte[p], 0, me.tag)):  # try-lock
                continue
            # still FREE: it was looked at under LOCK, and only LOCK's holder changes it
            if self.clocks:
                yield store(self.process[p], me.tag)
            me.id = (yield load(self.joins)) + 1
            yield store(self.joins, me.id)
            yield store(self.id[p], me.id)
            if self.durable:
                yield store(self.untold[p], 0)
            yield store(self.peer[p], live)
            me.p = p
            if me.role == PRODUCER:
                yield from self._count_producers(NONE, NOT_ENDED)
            return
        yield store(self.lock, 0)
        raise TableFull

    def _subscribe(self, me, at):
        """Become a member of u, which begins now if it is not there."""
        u, kind = me.u, LOSSY if me.lossy else LOSSLESS
        sb = yield load(self.sub[u])
        if sb != FREE and mode(sb) != kind:
            raise ValueError("the subscription has the other mode")
        new, sb = sb == FREE, None
        if new:
            yield from self._begin_subscription(u, at, kind)
        elif self.durable:
            again = yield from self._take_up(me)
        me.seen = yield load(self.redo[u])
        me.start = start((yield load(self.sub[u])))
        me.pos = me.top = me.start
        if new:
            return
        if not (self.durable and again and self.fix("H17")):
            # not announced again: what came before belongs to the other members
            me.pos = me.top = max(me.start, (yield from self._frontier()) - self.slots)

    def _behind(self, p):
        """Does p's GPU still owe work on any slot?"""
        for i in range(self.slots):
            v = yield load(self.work[p][i])
            if (yield load(self.fence[p][i])) < v:
                return True
        return False

    # ------------------------------------------------------------------ leave

    def leave(self, me):
        """The caller has published, abandoned, released or given back whatever it held."""
        if self.clocks and self.fix("G8"):  # drain
            for i in range(self.slots):
                yield from self._until_fence(self.fence[me.p][i], (yield load(self.work[me.p][i])))
        if self.fix("A1"):
            yield lock(self.lock, me.tag)
        if me.role == PRODUCER:
            yield from self._clear_dead_producers(me.p)
            yield from self._count_producers(me.p, LEFT)
        yield store(self.peer[me.p], peer_word(LEAVING, me.role, me.u))
        if me.role == CONSUMER:
            yield from self._drop_subscription(me.p, me.u)
        if self.fix("A1"):
            yield store(self.lock, 0)
        # ring: visible as gone, still reapable
        if self.threads and self.fix("A7"):  # [edge L] none begins any more
            while n := (yield load(self.inside[me.tag])):
                yield wait((self.inside[me.tag], n))
            n = None
        yield lock(self.lock, me.tag)
        if self.threads and self.fix("A10") and (yield from self._clear_words(me.p, me.role, me.u)):
            yield fetch_add(self.redo[me.u])
        yield store(self.peer[me.p], FREE)
        p, me.p = me.p, NONE
        yield store(self.byte[p], 0)
        yield store(self.lock, 0)

    def _drop_subscription(self, p, u):
        """Nobody but p was a member, if no other one is LIVE."""
        if self.fix("H6") and not (yield from self._has_other_member(p, u)):
            yield from self._lose_last_member(u)

    def _count_producers(self, p, how):
        """Producer p has ended `how`; NONE: another one has joined."""
        counts = False
        if p != NONE:
            x, e = yield load_all(self.id[p], self.ends[p])
            last, left, died = ends(e)
            counts = last != x or not self.fix("E7")  # else a reaper repeats what was done
            if counts:
                e = ends_word(x, left + (how == LEFT), died + (how == DIED))
                yield store(self.ends[p], e)
            x = e = last = left = died = None
        was, *words = yield load_all(self.producers, *self.peer, *self.ends)
        entries, counted = words[: self.peers], [ends(e) for e in words[self.peers :]]
        live = sum(
            w == peer_word(LIVE, PRODUCER, 0) for q, w in enumerate(entries) if q != p
        )  # of a producer u is 0
        left, died = sum(e[1] for e in counted), sum(e[2] for e in counted)
        if p != NONE and not counts and producers(was)[:2] == (died, left) and self.fix("E8"):
            how = producers(was)[3]  # it was not the last one that ended
        was = words = entries = counted = counts = None
        yield store(self.producers, producers_word(died, left, live, how))

    # ------------------------------------------------------------------ reap

    def reap(self, p, tag):
        """Clear a dead peer's claims; nothing happens when p is not dead (any more)."""
        if self.fix("A2"):
            yield lock(self.lock, tag)
        entry = yield load(self.peer[p])
        if entry != FREE and (yield load(self.byte[p])) == 0:  # looked at under LOCK
            pidfd = self.clocks and self.fix("G1")  # without clocks: gone when the byte is free
            if not pidfd or (yield load(self.process[p])) == 0:  # GPU gone
                yield from self._reap(p, entry)
        if self.fix("A2"):
            yield store(self.lock, 0)
        # ring, unconditionally

    def _clear_dead_producers(self, but):
        """Under LOCK, so that who dies first is counted first (E9)."""
        words = yield load_all(*self.peer, *self.byte)
        entries, bytes_ = words[: self.peers], words[self.peers :]
        dead = tuple(
            p
            for p in range(self.peers)
            if p != but and entries[p] >> 2 & 3 == PRODUCER and bytes_[p] == 0
        )
        words = entries = bytes_ = None
        for p in dead:
            if not self.clocks or (yield load(self.process[p])) == 0:  # GPU gone
                yield from self._reap(p, (yield load(self.peer[p])))
        p = dead = None

    def _reap(self, p, entry):
        role, u = entry >> 2 & 3, entry >> 4
        if self.clocks:
            for i in range(self.slots):
                yield from self._raise_fence(p, i, role)
            i = None
        yield from self._clear_words(p, role, u)
        if role == CONSUMER:
            yield fetch_add(self.redo[u])  # always: the previous reaper may have died before it
            yield from self._drop_subscription(p, u)
        else:
            yield from self._count_producers(p, LEFT if entry & 3 == LEAVING else DIED)
        yield store(self.peer[p], FREE)  # last: a half-done reap is repeated

    def _clear_words(self, p, role, u):
        """Clear what p has in hand.  -> whether a frame was opened again, so that `redo` has to
        rise."""
        opened = False
        for i in range(self.slots):
            if role == PRODUCER:
                w = yield load(self.slot[i])
                if owner(w) == p and phase(w) == WRITING:
                    yield cas(self.slot[i], w, word(seq(w), NONE, VOID))
                w = None
            else:
                t = yield load(self.take[u][i])
                if owner(t) == p and phase(t) == HELD:
                    opened = True
                    new = word(seq(t), NONE, OPEN) if self.redeliver else word(seq(t), NONE, DONE)
                    yield cas(self.take[u][i], t, new)
                t = None
        return opened

    # ------------------------------------------------------------------ orphans

    def clear_orphans(self, tag):
        """Clear words of FREE entries, which belonged to peers that were taken for dead though they
        lived."""
        yield lock(self.lock, tag)
        yield from self._clear_orphans()
        yield store(self.lock, 0)

    def _clear_orphans(self):
        for i in range(self.slots):
            w = yield load(self.slot[i])
            if phase(w) == WRITING and (yield load(self.peer[owner(w)])) == FREE:
                yield cas(self.slot[i], w, word(seq(w), NONE, VOID))
            w = None
            for u in range(self.subs):
                t = yield load(self.take[u][i])
                if phase(t) == HELD and (yield load(self.peer[owner(t)])) == FREE:
                    if self.fix("A11"):  # in use, so that a reaper goes on where we are killed
                        yield store(self.peer[owner(t)], peer_word(LEAVING, CONSUMER, u))
                    yield cas(self.take[u][i], t, word(seq(t), NONE, OPEN))
                    yield fetch_add(self.redo[u])
                    if self.fix("A11"):
                        yield store(self.peer[owner(t)], FREE)
                t = None

    def _raise_fence(self, p, i, role):
        """Write torn marks, then raise p's fence up to its promise and never beyond."""
        v = yield load(self.work[p][i])
        reached = yield load(self.fence[p][i])
        if reached >= v:
            return
        raised = v if self.fix("G3") else (yield load(self.claim_hint)) << 16
        if not self.fix("G4"):
            yield store(self.fence[p][i], raised)
        if role == PRODUCER:
            w = yield load(self.slot[i])
            mine = owner(w) == p and phase(w) == READY
            if mine or self.fix("G5"):
                yield from self._mark_torn(p, i, reached)
            if mine and not self.event and (yield load(self.rec[i])) > reached:
                yield cas(self.slot[i], w, word(seq(w), p, TORN))
        yield store(self.fence[p][i], raised)

    def _mark_torn(self, p, i, reached):
        """Note that entry p died with work pending on slot i.  Repeatable until its fence is
        raised."""
        x = yield load(self.id[p])
        row = p if self.fix("T1") else 0
        if self.fix("T4"):
            yield store(self.tear[row][i], x | MARKING)
        else:
            yield store(self.tear[row][i], x)
        yield store(self.reached[row][i], reached)
        yield store(self.tear[row][i], x)

    # ------------------------------------------------------------------ close

    def close(self):
        """Consumers drain what is READY, producers get RingClosed."""
        yield store(self.closed, 1)

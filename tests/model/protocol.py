"""The host-order protocol as an executable specification.  Shared words are touched by yields only.

Read it beside docs/protocol.md: same names, same order of steps.  The verbs on frames are here,
join, leave, reap and close in `membership.py`, subscriptions in `subscriptions.py`, the words in
`words.py`.

`# two clocks` marks where host order meets device order; `order.py` has those steps.  The doorbell
is not here: `wait` wakes on change, and `doorbell.py` shows why that is allowed.
"""

from .membership import Membership
from .order import Order
from .steps import NONE, cas, fetch_add, load, owner, phase, seq, store, wait, word
from .words import (
    DIED,
    DONE,
    HELD,
    LIVE,
    LOSSLESS,
    OPEN,
    PRODUCER,
    READY,
    TORN,
    VOID,
    WRITING,
    EndOfStream,
    PeerLost,
    Reaped,
    RingClosed,
    Words,
    bits,
    mode,
    peer_word,
    producers,
    start,
)


class Ring(Membership, Order, Words):
    """Every verb is a generator; `me` is the caller's own `Peer` record."""

    # ------------------------------------------------------------------ around every verb

    def _begin(self, me):
        """[edge L] Counts the verb first, and then looks at the entry: another thread of the
        process may be leaving.

        It is left out for a peer without another thread and without anybody who takes it for dead,
        because the answer would always be the same.
        """
        if not me.shared:
            return
        if self.fix("A12"):
            yield fetch_add(self.inside[me.tag])
        if self.fix("A9"):
            mine = (yield load(self.peer[me.p])) == peer_word(LIVE, me.role, me.u)
            mine = (yield load(self.id[me.p])) == me.id and mine
        else:  # the next owner of the number writes its id first
            mine = (yield load(self.id[me.p])) == me.id
            mine = (yield load(self.peer[me.p])) == peer_word(LIVE, me.role, me.u) and mine
        if not self.fix("A12"):
            yield fetch_add(self.inside[me.tag])
        if not mine:
            yield from self._end(me)
            raise Reaped

    def _end(self, me):
        if me.shared:
            yield fetch_add(self.inside[me.tag], -1)

    def _wait(self, me, *watch):
        """Wait.  In the core the verb returns here, and the sleeper calls it again."""
        yield from self._commit(me)
        yield from self._end(me)
        if me.shared:
            watch += ((self.peer[me.p], peer_word(LIVE, me.role, me.u)),)
        yield wait(*watch)
        yield from self._begin(me)

    # ------------------------------------------------------------------ producer

    def claim(self, me):
        """-> c, with slot[c % N] == (c, me, WRITING)."""
        yield from self._begin(me)
        try:
            c = yield from self._claim(me)
        except RingClosed:
            yield from self._end(me)
            raise
        yield from self._end(me)
        return c

    def _claim(self, me):
        while True:  # restart:
            if self.fix("C1") and (yield load(self.closed)):  # else a full ring keeps them waiting
                raise RingClosed
            c = yield from self._claim_from(me, (yield load(self.claim_hint)))
            if c is not None:
                return c

    def _claim_from(self, me, c):
        while True:  # next:
            i = c % self.slots
            w = yield load(self.slot[i])
            if seq(w) >= c:  # somebody claimed c: help, go on
                yield cas(self.claim_hint, c, c + 1)
                c, w = c + 1, None
                continue
            # here seq(w) == c - N and c is the frontier
            if phase(w) == WRITING:
                yield from self._wait(me, (self.slot[i], w), *self._closing())
                return None
            masks = None if self.fix("M1") else (yield from self._masks())
            if not (yield from self._gate(me, c, w)):
                return None
            if not self.fix("H9") and (yield load(self.closed)):  # the draft: only before the swap
                raise RingClosed
            if not (yield cas(self.slot[i], w, word(c, me.p, WRITING))):  # the linearisation point
                w = None
                continue
            last, w = NONE if self.fix("G2") else owner(w), None
            yield cas(self.claim_hint, c, c + 1)
            if self.fix("H9") and (yield load(self.closed)):
                yield store(self.slot[i], word(c, me.p, VOID))
                raise RingClosed
            if (yield from self._holder(c, masks)):  # of the masks of now: a joiner may have come
                yield store(self.slot[i], word(c, me.p, VOID))
                c += 1
                continue
            yield from self._order_after_all(me, i, last)
            return c

    def _words_in_use(self, fix):
        """The words of the mask, which are loaded one after the other."""
        return range(len(self.sub_mask) if self.fix(fix) else 1)

    def _masks(self):
        masks = ()
        for k in self._words_in_use("M3"):
            masks += ((yield load(self.sub_mask[k])),)
        return masks

    def _gate(self, me, c, w):
        """The look before the swap: False after a wait for whoever is in the way."""
        i, held = c % self.slots, False
        for k in self._words_in_use("M3"):
            for u in bits((yield load(self.sub_mask[k])), k * self.word_bits):
                sb = yield load(self.sub[u])
                t = yield load(self.take[u][i])
                if mode(sb) == LOSSLESS and start(sb) <= c - self.slots:
                    unread = phase(w) == READY and (seq(t), phase(t)) != (c - self.slots, DONE)
                    if unread or phase(t) == HELD:  # VOID and TORN need no DONE, but no holder
                        watch = (self.slot[i], w), (self.sub[u], sb), (self.take[u][i], t)
                        yield from self._wait(me, *watch, *self._closing())
                        return False
                held = held or phase(t) == HELD
        t = None
        if held and self.fix("H2"):  # no storm of VOIDs while readers hold every slot
            holders = yield from self._holders_of_every_slot()
            if holders:
                yield from self._wait(me, *holders, *self._closing())
                return False
        return True

    def _closing(self):
        return ((self.closed, 0),) if self.fix("C1") else ()

    def _holders_of_every_slot(self):
        """-> one (address, HELD word) for each slot, or () when some slot has none."""
        found = ()
        for i in range(self.slots):
            held = yield from self._held(i, "M5")
            if not held:
                return ()
            found += (held,)
        return found

    def _held(self, i, fix):
        """-> (address, word) of one take word of slot i that is HELD, or None."""
        for k in self._words_in_use(fix):
            for u in bits((yield load(self.sub_mask[k])), k * self.word_bits):
                t = yield load(self.take[u][i])
                if phase(t) == HELD:
                    return self.take[u][i], t
        return None

    def _holder(self, c, masks):
        """The look after the swap: does any HELD word stand on the slot, whatever its sequence?"""
        i = c % self.slots
        for k in self._words_in_use("M4"):
            mask = masks[k] if masks else (yield load(self.sub_mask[k]))
            for u in bits(mask, k * self.word_bits):
                t = yield load(self.take[u][i])
                if phase(t) == HELD and (self.fix("H1") or seq(t) == c - self.slots):
                    return True
        return False

    def publish(self, me, c, phase=READY):
        i = c % self.slots
        yield from self._begin(me)
        if phase == READY or self.fix("G6"):
            v = yield from self._promise(me, i, c)  # two clocks
            if self.clocks:
                yield store(self.rec_producer[i], me.id)
                yield store(self.rec[i], v)
            v = None
        yield from self._exit(me, self.slot[i], word(c, me.p, WRITING), word(c, me.p, phase))
        yield from self._end(me)

    def abandon(self, me, c):
        """Exactly publish, with VOID: the user's kernels may run, so the fence is needed too."""
        yield from self.publish(me, c, VOID)

    # ------------------------------------------------------------------ consumer

    def acquire(self, me):
        """-> s, with take[u][s % N] == (s, me, HELD) and the slot still showing s."""
        yield from self._begin(me)
        try:
            s = yield from self._acquire(me)
        except EndOfStream:
            yield from self._end(me)
            raise
        except PeerLost:  # each of its own: a paused verb is known by its place
            yield from self._end(me)
            raise
        yield from self._end(me)
        return s

    def _acquire(self, me):
        while True:  # again:
            if self.fix("H4"):
                r = yield load(self.redo[me.u])
                if r != me.seen:  # something was re-opened: back to the oldest still there
                    me.seen, r = r, None
                    oldest = (yield load(self.claim_hint)) - self.slots  # low is harmless
                    me.pos = min(me.pos, max(me.start, oldest))
                    oldest = None
                r = None
            over = (yield from self._over()) if self.fix("H3") else None  # BEFORE the look
            s = yield from self._look(me, over)
            if s is not None:
                return s

    def _look(self, me, over):
        take, s = self.take[me.u], me.pos
        while True:  # look:
            i = s % self.slots
            self._count_lost(me, s, missed=False)
            t = yield load(take[i])
            opened = seq(t) == s and phase(t) == OPEN
            met = me.lossy and s < me.top  # counted or had before a redo sent us back
            if (seq(t) >= s and not opened) or (met and not opened):  # another's, or done with
                n = max(s + 1, seq(t) - self.slots + 1)  # older ones are gone
                if seq(t) > s and phase(t) == OPEN and owner(t) == me.p and self.fix("E6"):
                    self._count_lost(me, n)  # I gave it back: nobody had those before it
                s, t = n, None
                continue
            w = yield load(self.slot[i])
            me.pos = s  # a call that is blocked goes on from here
            if seq(w) < s:  # unclaimed
                over = over or (yield from self._over())
                return (yield from self._end_or_wait(me, over, (self.slot[i], w)))
            redo = (self.redo[me.u], me.seen)
            if seq(w) == s and phase(w) == WRITING:
                yield from self._wait(me, (self.slot[i], w), (take[i], t), redo)
                return None
            if seq(w) > s:
                if self.fix("H7") and (yield load(take[i])) != t:  # by another member
                    t = w = None
                    continue
                n = max(s + 1, seq(w) - self.slots + 1)
                self._count_lost(me, n)
                s, t, w = n, None, None
                continue
            if phase(w) in (VOID, TORN):
                self._count_lost(me, s + 1, missed=phase(w) == VOID)
                s, t, w = s + 1, None, None
                continue
            w = None
            # t may be OPEN s, or an older DONE, or another member's doomed HELD
            if not (yield cas(take[i], t, word(s, me.p, HELD))):
                t = None
                continue
            t = None
            p = yield from self._confirm(me, s)
            if p is None:
                self._count_lost(me, s + 1)
                yield from self._undo(me, s)
                s += 1
                continue
            me.pos = s + 1
            self._hand_out(me, s)
            yield from self._commit(me)
            yield from self._order_after_producer(me, s, p)
            return s

    def _confirm(self, me, s):
        """The look after the swap: -> who published the frame; None when the slot has moved on.
        (Only here: under a lossy holder the word may become another producer's VOID.)"""
        w = yield load(self.slot[s % self.slots])
        return owner(w) if seq(w) == s else None

    def _undo(self, me, s):
        """Undo a hold that came too late.  The loss is counted first, because the word then says
        DONE."""
        a = self.take[me.u][s % self.slots]
        if self.fix("H19"):
            yield from self._commit(me)
        if self.fix("H8"):  # failure is harmless: another member replaced my hold
            yield cas(a, word(s, me.p, HELD), word(s, me.p, DONE), True)
        else:
            yield store(a, word(s, me.p, DONE))

    def _count_lost(self, me, n, missed=True):
        """Everything below n is accounted for; what was not yet is lost, if it was missed."""
        if me.lossy and self.counting:
            lost = max(0, n - me.top) if missed else 0
            me.lost += lost
            me.skipped += lost
            me.top = max(me.top, n)
        elif not me.lossy and missed and not self.fix("H7"):
            me.lost += 1

    def _commit(self, me):
        """A verb that returns adds what it has counted to the count of all members."""
        if self.durable and me.lost != me.counted:
            yield fetch_add(self.lost[me.u], me.lost - me.counted)
            me.counted = me.lost

    def _hand_out(self, me, s):
        """Hand out frame s, which reports what was lost before it."""
        self._count_lost(me, s + 1, missed=False)
        if me.due:
            me.due_with = s
        if me.lossy and self.counting:
            me.before += ((s, me.skipped),)
            me.skipped = 0

    def _forget(self, me, s):
        """Frame s is given back.  If only losses were met behind it, `high` goes back to s.

        Then the frame and these losses are met again, and the losses are counted again.
        """
        behind = me.skipped if me.pos > s else 0
        if me.lossy and me.top == s + 1 + behind and self.fix("E5"):
            me.top = s
            me.lost -= behind
            me.skipped -= behind
        me.skipped += self._lost_before(me, s)

    def _lost_before(self, me, s):
        """-> what was lost just before frame s, which is not in hand any more."""
        lost = dict(me.before).get(s, 0)
        me.before = tuple(each for each in me.before if each[0] != s)
        return lost

    def _over(self):
        """-> (is the stream over: None or the exception to raise, the words that said so)."""
        closed = yield load(self.closed)
        if closed:
            return EndOfStream, ((self.closed, 1),)
        if self.fix("E3"):  # one word, one load: no instant is missed
            w = yield load(self.producers)
            died, left, live, how = producers(w)
            over = None if live else self._how_it_ended(died, left, how)
            return over, ((self.closed, 0), (self.producers, w))
        watch = ((self.closed, 0),)
        for p in range(self.peers):
            w = yield load(self.peer[p])
            watch += ((self.peer[p], w),)
            if w == peer_word(LIVE, PRODUCER, 0):
                return None, watch
        w = yield load(self.producers)
        died, left, _, how = producers(w)
        return self._how_it_ended(died, left, how), (*watch, (self.producers, w))

    def _how_it_ended(self, died, left, how):
        """No producer is LIVE.  -> None while some are still to come."""
        if left + died < self.in_all:
            return None
        return PeerLost if how == DIED or left < self.in_all else EndOfStream

    def _end_or_wait(self, me, over, unclaimed):
        """`unclaimed` (slot, word) at my position.  -> None to look again, or raise the end."""
        ending, watch = over
        redo = (self.redo[me.u], me.seen) if self.fix("H4") else unclaimed
        if ending is None:
            yield from self._wait(me, unclaimed, redo, *watch)
            return None
        for i in range(self.slots):  # may another member still hand a frame back?
            t = yield load(self.take[me.u][i])
            if phase(t) == HELD and owner(t) != me.p:
                yield from self._wait(me, (self.take[me.u][i], t), unclaimed, redo)
                return None
            # Re-opened, redo not bumped yet.  Below the start it was counted as lost.
            if phase(t) == OPEN and self.fix("E1") and (seq(t) >= me.start or not self.fix("H15")):
                w = yield load(self.slot[i])
                if seq(w) == seq(t) and phase(w) == READY:
                    me.pos = seq(t)
                    return None
        if self.fix("H4") and (yield load(self.redo[me.u])) != me.seen:
            return None
        yield from self._commit(me)
        raise ending

    def latest(self, me):
        """Lossy only: as acquire, but the newest READY frame at or after pos."""
        while True:  # again:
            over, watch = yield from self._over()
            s, busy, unclaimed = -1, False, ()
            for i in range(self.slots):
                w = yield load(self.slot[i])
                unclaimed += ((self.slot[i], w),)
                if phase(w) == READY and seq(w) >= me.pos:
                    s = max(s, seq(w))
                elif phase(w) == WRITING and seq(w) >= me.pos:
                    busy = True
            if s < 0:  # nothing; a claim under way may still be published
                yield from self._commit(me)
                if over is None or busy:
                    yield wait(*unclaimed, *watch)
                    continue
                raise over
            unclaimed = watch = ()
            i = s % self.slots
            t = yield load(self.take[me.u][i])
            if seq(t) > s or (seq(t) == s and phase(t) != OPEN):  # another member's
                me.pos = s + 1
                self._count_lost(me, s + 1, missed=False)
            elif (yield cas(self.take[me.u][i], t, word(s, me.p, HELD))):
                p = yield from self._confirm(me, s)
                self._count_lost(me, s)
                if self.fix("H19"):
                    yield from self._commit(me)
                for old in range(max(me.pos, s + 1 - self.slots), s):  # what I gave back (E4)
                    a, opened = self.take[me.u][old % self.slots], word(old, me.p, OPEN)
                    if (yield load(a)) == opened:
                        yield cas(a, opened, word(old, me.p, DONE), True)
                a = opened = old = None
                me.pos = s + 1
                if p is None:
                    self._count_lost(me, s + 1)
                    yield from self._undo(me, s)
                else:
                    self._hand_out(me, s)
                    yield from self._commit(me)
                    yield from self._order_after_producer(me, s, p)
                    return s

    def release(self, me, s):
        yield from self._begin(me)
        yield from self._promise(me, s % self.slots, s)  # two clocks
        if me.due and me.due_with == s:
            yield from self._pay(me)
        yield from self._exit(
            me, self.take[me.u][s % self.slots], word(s, me.p, HELD), word(s, me.p, DONE)
        )
        self._lost_before(me, s)
        yield from self._end(me)

    def give_back(self, me, s):
        """Taken but never read (its stream could not be ordered): anybody may take it again."""
        yield from self._begin(me)
        yield from self._exit(
            me, self.take[me.u][s % self.slots], word(s, me.p, HELD), word(s, me.p, OPEN)
        )  # our name stays: nobody died with it
        self._forget(me, s)
        me.pos = min(me.pos, s)
        if self.fix("E2"):
            yield fetch_add(self.redo[me.u])
        yield from self._end(me)

    # ------------------------------------------------------------------ both

    def _exit(self, me, a, mine, new):
        """The only way out of WRITING and HELD: from exactly the word that I put there."""
        if not (yield cas(a, mine, new)):
            yield from self._end(me)
            raise Reaped

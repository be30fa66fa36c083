"""What must hold of every write and in every state.  Pure functions of the memory and the books.

The numbers are those of the invariants in docs/protocol.md.
"""

import functools
import re

from .steps import ADD, CAS, NONE, owner, phase, run, seq, word
from .words import (
    CONSUMER,
    COUNTED,
    DONE,
    FREE,
    GIVEN_UP,
    HELD,
    LIVE,
    LOSSLESS,
    MARKING,
    OPEN,
    PRODUCER,
    READY,
    TORN,
    VOID,
    WRITING,
    bits,
    durable,
    mode,
    peer_word,
    producers,
    start,
)

SLOT_PHASES = {WRITING: "WRITING", READY: "READY", VOID: "VOID", TORN: "TORN"}
TAKE_PHASES = {OPEN: "OPEN", HELD: "HELD", DONE: "DONE"}


def show(name, value):
    """A word as people write it."""
    phases = {"slot": SLOT_PHASES, "take": TAKE_PHASES}.get(name.split("[")[0])
    if phases:
        who = "-" if owner(value) == NONE else owner(value)
        return f"({seq(value)},{who},{phases[phase(value)]})"
    if name.startswith("peer"):
        return ("FREE", "LIVE", "LEAVING")[value & 3]
    if name.startswith("sub["):
        kept = " and durable" if durable(value) else ""
        return f"{('FREE', 'LOSSLESS', 'LOSSY')[mode(value)]}{kept} from {start(value)}"
    return str(value)


class Invariants:
    def __init__(self, ring, lossless, horizon, robbed=False, unsubscribed=False):
        """`lossless`: subscriptions that may not miss a frame; `horizon`: no claim goes beyond;
        `robbed`: some peer loses its locks though it lives, and may leave an orphan;
        `unsubscribed`: somebody ends a durable subscription."""
        self.ring, self.lossless, self.horizon = ring, lossless, horizon
        self.robbed, self.unsubscribed = robbed, unsubscribed
        self.legal = functools.cache(self._legal)
        self.names = [re.sub(r"\[.*|\..*", "", name) for name in ring.names]

    # ------------------------------------------------------------------ each write

    def _legal(self, a, old, new):
        """May the word at `a` go from old to new?"""
        name, N = self.names[a], self.ring.slots
        ok = True
        if name == "slot":
            if seq(new) == seq(old):
                ok = (phase(old), phase(new)) in ((WRITING, READY), (WRITING, VOID), (READY, TORN))
            else:
                ok = seq(new) == seq(old) + N and phase(old) != WRITING and phase(new) == WRITING
            ok = ok and seq(new) % N == self.ring.slot.index(a) and seq(new) <= self.horizon
        elif name == "take" and new != word(0, NONE, DONE):
            if seq(new) == seq(old):
                ok = (phase(old), phase(new)) in (
                    *((OPEN, HELD), (HELD, OPEN), (HELD, DONE)),
                    (OPEN, DONE),  # E4
                )
            else:
                ok = seq(new) > seq(old) and phase(new) == HELD
        elif name == "tear":  # only rises, in T4's draft too
            ok = new & ~MARKING >= old & ~MARKING
        elif name == "sub":
            ok = new != FREE or not durable(old) or self.unsubscribed
        elif name == "producers":
            (died, left, live, how), was = producers(new), producers(old)
            ok = died >= was[0] and left >= was[1]
            ok = ok and (how == was[3] or (died, left, live) != was[:3])
        elif name in ("work", "fence", "reached", "id", "joins", "claim_hint", "closed", "redo"):
            ok = new > old
        if ok:
            return None
        if name == "slot" and seq(new) > self.horizon:
            return f"invariant 7: VOIDs without end, claim {seq(new)}"
        what = f"{self.ring.names[a]} {show(name, old)} -> {show(name, new)}"
        number = {"slot": "1/2", "take": "2", "claim_hint": "13", "sub": "12"}.get(name, "8")
        return f"invariant {number}: illegal change {what}"

    def note(self, m, op, old, new):
        """Keep the ghosts: a frame is unread from READY (or the subscription's start) to DONE."""
        a, ring = op[1], self.ring
        name = self.names[a]
        if name == "slot" and phase(new) in (READY, TORN):
            for u in self.lossless:
                bit = 1 << seq(new)
                was = m[ring.unread[u]]
                m[ring.unread[u]] = was | bit if phase(new) == READY else was & ~bit
        elif name == "take" and phase(new) == DONE:
            for u, row in enumerate(ring.take):
                if a in row:
                    m[ring.unread[u]] &= ~(1 << seq(new))
                    if ring.durable and op[0] == CAS and not op[4]:
                        m[ring.had[u]] |= 1 << seq(new)
        elif name == "sub":
            u = ring.sub.index(a)
            for w, t in (
                ((m[b], m[c]) for b, c in zip(ring.slot, ring.take[u], strict=True))
                if mode(new) == LOSSLESS
                else ()
            ):
                had = old != FREE and (seq(t), phase(t)) == (seq(w), DONE)
                if phase(w) == READY and seq(w) >= start(new) and not had:
                    m[ring.unread[u]] |= 1 << seq(w)
            if ring.durable and old == FREE:
                m[ring.began[u]], m[ring.had[u]] = start(new) - m[ring.owed[u]], 0
            elif ring.durable and start(old) < start(new) < GIVEN_UP and not m[ring.resume[u]]:
                m[ring.began[u]] += start(new) - start(old)  # announced for the second time
        elif name == "resume" and new == 0:
            u = ring.resume.index(a)
            if not self._has_member(m, u) and not m[ring.owed[u]] & COUNTED:
                # a durable one has begun
                m[ring.began[u]] = start(m[ring.sub[u]]) - m[ring.owed[u]]
        elif name == "owed" and op[0] == ADD and new < old:
            m[ring.told[ring.owed.index(a)]] += old - new
        elif name == "peer" and new == peer_word(LIVE, PRODUCER, 0):
            m[ring.came] += 1
        elif name == "closed" or (
            name == "producers" and producers(new)[2] == 0 and m[ring.came] >= ring.in_all
        ):
            m[ring.ended_at] = m[ring.ended_at] or max(m[b] >> 16 for b in ring.slot) + 1

    # ------------------------------------------------------------------ each state

    def safe(self, m, books):
        """`books[k]` is actor k's Peer, None when it is dead."""
        return (
            self._slots_without_gap(m)
            or self._frames_whole(m, books)
            or self._nothing_missed(m, books)
            or self._kept(m)
            or self._owed(m, books)
            or self._entries(m, books)
            or self._clocks(m)
        )

    def _slots_without_gap(self, m):
        ring = self.ring
        seqs = [m[a] >> 16 for a in ring.slot]
        f = max(seqs) + 1
        if f - min(seqs) != ring.slots:
            return f"invariant 1: slots show {sorted(seqs)}"
        if m[ring.claim_hint] > f:
            return f"invariant 13: claim_hint {m[ring.claim_hint]} beyond the frontier {f}"
        return None

    def _frames_whole(self, m, books):
        """Nobody writes a slot that is held, and no two members hold the same frame."""
        ring, held, written = self.ring, {}, set()
        for me in books:
            if me is None:
                continue
            for c in me.writing:
                if m[ring.slot[c % ring.slots]] != word(c, me.p, WRITING):
                    return f"invariant 2: {c} is being written, but its word says otherwise"
                written.add(c % ring.slots)
            for s in me.holding:
                if held.setdefault((me.u, s), me) is not me:
                    return f"invariant 5: frame {s} is held by two members of subscription {me.u}"
                w = m[ring.slot[s % ring.slots]]
                if seq(w) == s and phase(w) not in (READY, TORN):
                    return f"invariant 3: frame {s} is held, but its slot is not READY"
                if seq(w) != s and phase(w) == READY:
                    return f"invariant 3: frame {s} is held, but the slot went on to {seq(w)} READY"
                if m[ring.take[me.u][s % ring.slots]] != word(s, me.p, HELD):
                    return f"invariant 2: frame {s} is held, but its take word says otherwise"
            if me.lost and not me.lossy:
                return f"invariant 4: lossless subscription {me.u} counted {me.lost} lost"
        for _, s in held:
            if s % ring.slots in written:
                return f"invariant 3: frame {s} is held while its slot is written"
        return None

    def _nothing_missed(self, m, books):
        """No frame is overwritten unread, none is unread where the stream is said to end."""
        ring = self.ring
        for me in books:
            if me is None or not me.start or me.p == NONE or me.shared:
                continue
            if m[ring.peer[me.p]] != peer_word(LIVE, CONSUMER, me.u):  # on its way out
                continue
            if me.ended and not m[ring.ended_at]:
                return "invariant 4: the stream is said to end, and a producer is there or to come"
            if me.ended and ring.durable and not me.holding:
                wrong = self._read_or_lost(m, books, me.u)
                if wrong:
                    return wrong
            if me.lossy:
                had = me.had + len(me.holding)
                alone = ring.counting and not ring.durable
                if alone and me.ended and had + me.lost != me.top - me.start:
                    return f"invariant 4: {me.lost} lost and {had} had of {me.top - me.start}"
                continue
            for s in bits(m[ring.unread[me.u]] >> me.start << me.start):
                w = m[ring.slot[s % ring.slots]]
                if seq(w) != s:
                    return (
                        f"invariant 4: frame {s} overwritten, subscription {me.u} did not read it"
                    )
                if me.ended and s not in me.holding and (s < m[ring.ended_at] or m[ring.closed]):
                    return f"invariant 4: the stream is said to end, without frame {s}"
        return None

    def _read_or_lost(self, m, books, u, missing=0, void=0):
        """Each frame was read once, or reported as lost once to a member that lives, or is missing.

        A member that dies may have counted a loss, and the next member counts it again.  Then the
        sum over all members has it twice.
        """
        ring = self.ring
        every = max(seq(m[a]) for a in ring.slot) + 1 - m[ring.began[u]]
        had = bin(m[ring.had[u]]).count("1") + missing
        told = sum(me.paid + me.lost for me in books if me and me.u == u)
        lost = m[ring.lost[u]]
        if had + told > every or had + lost + void < every:
            lost = f"{told} told as lost and {lost} counted"
            return f"invariant 4: {lost}, {had} had or missing, of {every}"
        return None

    def _owed(self, m, books):
        """What a durable subscription is owed while it has no member and nobody publishes."""
        ring = self.ring
        for u, sb in enumerate(m[a] for a in ring.sub) if ring.durable else ():
            phases = [phase(m[a]) for a in ring.slot]
            if m[ring.lock] or WRITING in phases or not durable(sb) or self._has_member(m, u):
                continue
            missing = run(list(m), ring.missing(u))
            wrong = self._read_or_lost(m, books, u, missing, phases.count(VOID))
            if wrong:
                return wrong
            every = max(seq(m[a]) for a in ring.slot) + 1 - m[ring.began[u]]
            known = bin(m[ring.had[u]]).count("1") + missing + m[ring.told[u]]
            if mode(sb) == LOSSLESS and known + phases.count(VOID) < every:
                return f"invariant 4: {known} had, told or to be told, of {every}"
        return None

    def _kept(self, m):
        """What a durable subscription still has to read while it has no member."""
        ring = self.ring
        for u in self.lossless if ring.durable else ():
            sb = m[ring.sub[u]]
            if self._has_member(m, u) or m[ring.resume[u]] or not durable(sb):
                continue  # what is gone will be counted
            for s in bits(m[ring.unread[u]] >> start(sb) << start(sb)):
                if seq(m[ring.slot[s % ring.slots]]) != s:
                    return f"invariant 4: frame {s} overwritten, which {u} is to read"
        return None

    def _has_member(self, m, u):
        return any(m[a] == peer_word(LIVE, CONSUMER, u) for a in self.ring.peer)

    def _entries(self, m, books):
        ring = self.ring
        for a in ring.slot:
            if self.robbed:
                break
            if phase(m[a]) == WRITING and m[ring.peer[owner(m[a])]] == FREE:
                return "invariant 12: WRITING by a FREE entry"
        for u, row in enumerate(ring.take):
            for a in row:
                if phase(m[a]) == HELD and m[ring.peer[owner(m[a])]] == FREE and not self.robbed:
                    return "invariant 12: HELD by a FREE entry"
            if m[ring.sub[u]] != FREE:
                address, bit = ring._bit(u)
                if not m[address] & bit and ring.fix("M2"):
                    return f"invariant 12: subscription {u} is announced, its mask bit is not set"
                if not ring.durable and all(
                    m[a] == FREE or m[a] >> 2 & 3 != CONSUMER or m[a] >> 4 != u for a in ring.peer
                ):
                    return f"invariant 12: subscription {u} without a member"
        for me in books:
            if me is None or me.p == NONE or me.shared:
                continue
            if m[ring.peer[me.p]] == FREE:
                return f"invariant 12: peer {me.p} lives, its entry is FREE"
            member = me.start and m[ring.peer[me.p]] == peer_word(LIVE, CONSUMER, me.u)
            if member and m[ring.sub[me.u]] == FREE:
                return f"invariant 12: peer {me.p} is a member of nothing"
        return None

    def _clocks(self, m):
        ring = self.ring
        if ring.clocks:
            for p in range(ring.peers):
                for i in range(ring.slots):
                    if m[ring.fence[p][i]] > m[ring.work[p][i]]:
                        return f"invariant 8: fence[{p}][{i}] beyond work"
        return None

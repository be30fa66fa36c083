"""What must hold: for every write, in every state, and when everybody has finished.  Pure functions.

The numbers are those of the invariants in docs/protocol.md.
"""

import functools
import re

from .steps import NONE, owner, phase, seq, word
from .words import (
    CONSUMER, DONE, FREE, HELD, LIVE, OPEN, READY, TORN, VOID, WRITING, peer_word, start,
)  # fmt: skip

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
        return f"{('FREE', 'LOSSLESS', 'LOSSY')[value & 3]} from {start(value)}"
    return str(value)


class Invariants:
    def __init__(self, ring, horizon):
        self.ring, self.horizon = ring, horizon
        self.legal = functools.lru_cache(None)(self._legal)
        self.names = [re.sub(r"\[.*|\..*", "", name) for name in ring.names]

    # ------------------------------------------------------------------ each write

    def _legal(self, k, a, old, new):
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
                ok = (phase(old), phase(new)) in ((OPEN, HELD), (HELD, OPEN), (HELD, DONE))
            else:
                ok = seq(new) > seq(old) and phase(new) == HELD
        elif name in ("work", "fence", "torn", "claim_hint", "closed", "redo"):
            ok = new > old
        if ok:
            return None
        if name == "slot" and seq(new) > self.horizon:
            return f"invariant 7: VOIDs without end, claim {seq(new)}"
        what = f"{self.ring.names[a]} {show(name, old)} -> {show(name, new)}"
        number = {"slot": "1/2", "take": "2", "claim_hint": "13"}.get(name, "8")
        return f"invariant {number}: illegal change {what}"

    # ------------------------------------------------------------------ each state

    def safe(self, m, books):
        """`books[k]` is actor k's Peer, None when it is dead."""
        return (
            self._slots_without_gap(m)
            or self._frames_whole(m, books)
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
        """Nobody writes under a holder, nobody holds what another member holds."""
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
        for u, s in held:
            if s % ring.slots in written:
                return f"invariant 3: frame {s} is held while its slot is written"
        return None

    def _entries(self, m, books):
        ring = self.ring
        for a in ring.slot:
            if phase(m[a]) == WRITING and m[ring.peer[owner(m[a])]] == FREE:
                return "invariant 12: WRITING by a FREE entry"
        for u, row in enumerate(ring.take):
            for a in row:
                if phase(m[a]) == HELD and m[ring.peer[owner(m[a])]] == FREE:
                    return "invariant 12: HELD by a FREE entry"
            if m[ring.sub[u]] != FREE:
                if not m[ring.sub_mask] >> u & 1:
                    return f"invariant 12: subscription {u} is announced, its mask bit is not set"
                if all(m[a] == FREE or m[a] >> 2 & 3 != CONSUMER or m[a] >> 4 != u for a in ring.peer):
                    return f"invariant 12: subscription {u} without a member"
        for me in books:
            if me is None or me.p == NONE:
                continue
            if m[ring.peer[me.p]] == FREE:
                return f"invariant 12: peer {me.p} lives, its entry is FREE"
            if me.role == CONSUMER and me.start and m[ring.sub[me.u]] == FREE:
                if m[ring.peer[me.p]] == peer_word(LIVE, CONSUMER, me.u):
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

    # ------------------------------------------------------------------ the end

    def final(self, m, books, dead):
        """Everybody has finished or is dead: each frame was read once in each subscription."""
        published = {s for me in books for s in me.published}
        torn = {seq(m[a]) for a in self.ring.slot if phase(m[a]) == TORN}
        for u in range(self.ring.subs):
            members = [me for me in books if me.role == CONSUMER and me.u == u]
            read = [s for me in members for s in me.done]
            if len(read) != len(set(read)):
                return f"invariant 5: subscription {u} read a frame twice: {sorted(read)}"
            if not set(read) <= published:
                return f"invariant 4: subscription {u} read {sorted(read)}, never published"
            ended = [me for me in members if me.ended]
            if ended and not ended[0].lossy:
                wanted = {s for s in published - torn if s >= min(me.start for me in ended)}
                missing = wanted - set(read)
                dropped = 0 if self.ring.redeliver else len(dead)
                if len(missing) > dropped:
                    return f"invariant 4: subscription {u} ended without frames {sorted(missing)}"
        return None

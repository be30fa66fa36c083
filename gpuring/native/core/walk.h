/* A consumer's walk along the sequences to its next frame, and the end of the stream where there is
 * none. acquire and gr_look share it (acquire.c): the verb commits its cursor, and the look throws
 * it away. Nothing shared is written before that.
 */
#pragma once

#include "trace.h"
#include "transition.h"

/* Whether the stream is over. A reader loads this before it looks at a slot: only if the producers
 * were gone first, and nothing was there afterwards, has it reached the end (H3). Partners:
 * gr_close and gr_count_producers. A stale value costs another look, after their bell. */
static inline enum gr_result end_of_stream(const struct gr_ring *ring) {
    if (gr_load_sc(&ring->head->closed)) return GR_ENDED;
    const uint64_t word = gr_load_sc(&ring->head->producers), in_all = ring->producers_in_all;
    if (live_of(word) || left_of(word) + died_of(word) < in_all) return GR_BLOCKED;
    return end_of(word) == GR_DIED || left_of(word) < in_all ? GR_PEER_LOST : GR_ENDED;
}

/* How far a consumer has walked along the sequences, and what it has passed. A verb commits it,
 * and a look throws it away. */
struct cursor {
    uint64_t pos, seen, high; /* as in struct gr_peer */
    uint64_t lost, torn;      /* counted on the way */
};

static inline struct cursor cursor_of(const struct gr_peer *me) {
    return (struct cursor){me->cursor.pos, me->cursor.seen, me->cursor.high, 0, 0};
}

static inline void commit(struct gr_peer *me, struct cursor *at) {
    /* A walk may go back to a frame that was opened again, but it does not forget what was met. */
    GR_ASSERT(at->high >= me->cursor.high && at->seen >= me->cursor.seen);
    me->cursor.pos = at->pos;
    me->cursor.seen = at->seen;
    me->cursor.high = at->high;
    if (at->torn) {
        count(&me->ring->peer[me->self.number].torn, at->torn);
        if (gr_traced(me->ring)) gr_trace(me, 0, GR_DID_TEAR, at->torn, 0, 0);
    }
    at->torn = 0;
    if (!at->lost) return;
    /* It adds up over calls that found no frame, until a frame is handed out. */
    me->last.lost += at->lost;
    count_lost_of(me, at->lost);
    at->lost = 0;
}

/* Notes that all sequences below `to` have been met: taken, lost, or taken by another member. */
static inline void met(struct cursor *at, uint64_t to) {
    if (at->high < to) at->high = to;
}

/* A torn frame is counted as torn, not as lost. */
static inline void count_torn(struct cursor *at, uint64_t s) {
    at->torn += s >= at->high; /* otherwise it was counted when it was met first */
    met(at, s + 1);
}

static inline void count_lost(const struct gr_peer *me, struct cursor *at, uint64_t from,
                              uint64_t to) {
    if (from < at->high) from = at->high; /* those were counted when they were met first */
    if (to <= from) return;
    met(at, to);
    /* What a lossless member finds gone was void, or another member took it (H7: that was counted
     * as lost). */
    if (me->self.mode != GR_LOSSY) return;
    at->lost += to - from;
}

/* Called when nothing is left at the position and the stream is over. GR_OK: look again. A frame
 * that another member holds may come back. A frame that was opened again counts as the next one,
 * even if its redo count has not been raised yet: a reaper does that only after it has opened the
 * frame (E1). */
static enum gr_result last_look(const struct gr_peer *me, uint64_t *pos, uint64_t seen,
                                enum gr_result end, struct gr_culprit *culprit) {
    const struct gr_ring *ring = me->ring;
    if (gr_load_sc(&ring->sub[me->self.u].redo) != seen) return GR_OK;
    const uint64_t start = start_of(gr_load_sc(&ring->sub[me->self.u].word));
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < ring->slots; i++) {
        const struct gr_take *take = take_of(ring, i, me->self.u);
        uint64_t t = gr_load_sc(&take->word);
        if (phase_of(t) == GR_HELD && owner_of(t) != me->self.number)
            return blocked(culprit, GR_BY_HOLDER, owner_of(t), me->self.u, seq_of(t),
                           gr_load_relaxed(&take->since_ns));
        uint64_t w = gr_load_sc(&ring->slot[i].word);
        /* Below the start, it was counted as lost when the subscription was taken up (H15). */
        if (phase_of(t) == GR_OPEN && seq_of(t) >= start && seq_of(w) == seq_of(t) &&
            phase_of(w) == GR_READY) {
            /* The walk would look elsewhere, and come back here. */
            if (seq_of(t) % ring->slots != i) return GR_DAMAGED;
            if (seq_of(t) < oldest) oldest = seq_of(t);
        }
    }
    if (oldest == UINT64_MAX) return end;
    *pos = oldest;
    return GR_OK;
}

/* What the walk found at its position: the index of the slot, which is READY, and the take word,
 * by which nobody has that sequence. */
struct found {
    uint64_t index, take;
};

/* Walks to the next frame in order. GR_OK: it is at at->pos. Nothing shared is written. A sleeper
 * calls this, too, so everything that a waker changes is loaded with sc [edge D, sleeper];
 * partner: gr_ring_bell. A stale word would cost a lost wake-up. The hint is the exception: a
 * stale one makes the walk start at an older sequence, and costs a few more loads. */
static ALWAYS_INLINE enum gr_result walk(const struct gr_peer *me, struct cursor *at,
                                         struct found *found, struct gr_culprit *culprit) {
    const struct gr_ring *ring = me->ring;
    const uint64_t n = ring->slots;

again:;
    uint64_t redo = gr_load_sc(&ring->sub[me->self.u].redo);
    if (redo != at->seen) { /* a frame was opened again: start over (H4) */
        uint64_t start = start_of(gr_load_sc(&ring->sub[me->self.u].word));
        uint64_t hint = gr_load_acquire(&ring->head->claim_hint), oldest = hint > n ? hint - n : 0;
        at->seen = redo;
        if (oldest < start) oldest = start;
        if (at->pos > oldest) at->pos = oldest;
    }
    const enum gr_result end = end_of_stream(ring);
    for (;;) {
        const uint64_t s = at->pos, i = s % n;
        const gr_word *word = &take_of(ring, i, me->self.u)->word;
        uint64_t t = gr_load_sc(word);
        bool open = seq_of(t) == s && phase_of(t) == GR_OPEN;
        bool done_with = me->self.mode == GR_LOSSY && s < at->high; /* taken, or counted as lost */
        /* Another member has it, or this one met it before redo sent it back. */
        if (!open && (seq_of(t) >= s || done_with)) {
            if (seq_of(t) > s && seq_of(t) % n != i) return GR_DAMAGED;
            if (seq_of(t) < s && seq_of(gr_load_sc(&ring->slot[i].word)) < s)
                return GR_DAMAGED; /* this member has met what was never claimed */
            at->pos = seq_of(t) >= s + n ? seq_of(t) - n + 1 : s + 1; /* older ones are gone */
            /* This member gave back a later frame of the slot. Nobody else has had the sequences
             * that it passes again. */
            if (seq_of(t) > s && phase_of(t) == GR_OPEN && owner_of(t) == me->self.number)
                count_lost(me, at, s, at->pos);
            met(at, at->pos);
            continue;
        }
        uint64_t w = gr_load_sc(&ring->slot[i].word);
        if (seq_of(w) % n != i) return GR_DAMAGED;
        if (seq_of(w) < s) { /* not claimed yet */
            if (end == GR_BLOCKED)
                return blocked(culprit, GR_BY_NO_FRAME, GR_NONE, me->self.u, s, 0);
            uint64_t next = s; /* a variable of its own keeps the cursor out of memory */
            enum gr_result result = last_look(me, &next, at->seen, end, culprit);
            if (result != GR_OK) return result;
            at->pos = next;
            goto again;
        }
        if (seq_of(w) == s && phase_of(w) == GR_WRITING)
            return blocked(culprit, GR_BY_PRODUCER, owner_of(w), me->self.u, s,
                           gr_load_relaxed(&ring->slot[i].since_ns));
        /* The producer has passed s, unless another member has taken it since the first look
         * (H7). */
        if (seq_of(w) > s) {
            if (gr_load_sc(word) != t) continue;
            at->pos = seq_of(w) >= s + n ? seq_of(w) - n + 1 : s + 1;
            count_lost(me, at, s, at->pos);
            continue;
        }
        if (phase_of(w) != GR_READY) { /* void, or torn before anybody read it */
            if (phase_of(w) == GR_TORN) count_torn(at, s);
            else count_lost(me, at, s, s + 1);
            at->pos = s + 1;
            continue;
        }
        *found = (struct found){i, t};
        return GR_OK;
    }
}

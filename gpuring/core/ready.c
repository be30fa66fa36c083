/* Would claim or acquire be blocked now?  The look of the verb without its swap: nothing is written.
 *
 * For who waits at several rings, and for who waits on behalf of another thread (notify.c), which may not
 * touch the peer.  A verb may still find itself blocked after "ready": a fellow was faster, or a claim
 * turned void under a lossy reader; then the words have moved, and the next look sees them.  The other
 * way round there is no slack: where the verb would have an answer, this may not say GR_BLOCKED, or
 * somebody sleeps through it.  tests/test_ready.py and test_machine.py hold it to the verbs.
 *
 * Every load of a word that a waker changes is sc: it is the sleeper's look of edge D (wait.c).  A stale
 * value would need a change after our announcement, and that one rings.
 */
#include "ring.h"

/* The gate of gr_claim, at the frontier, which is *claimable if it is open; *word: that of its slot. */
static enum gr_result look_to_claim(const struct gr_peer *me, uint64_t *claimable, uint64_t *word) {
    struct gr_ring *ring = me->ring;
    const uint64_t n = ring->slots;
    if (load_sc(&ring->head->closed)) return GR_CLOSED;
    for (;;) {
        uint64_t c = gr_frontier(ring), i = c % n, w = load_sc(&ring->slot[i].word);
        if (seq_of(w) >= c) continue; /* somebody claimed it since */
        if (seq_of(w) != c - n) return GR_DAMAGED;
        if (phase_of(w) == GR_WRITING) return GR_BLOCKED;
        uint64_t subs = sub_mask_of(ring);
        bool held = false;
        for (each_bit(u, subs)) {
            uint64_t sub = load_sc(&ring->sub[u].word);
            uint64_t t = load_sc(&take_of(ring, i, u)->word);
            held |= phase_of(t) == GR_HELD;
            if (mode_of(sub) != GR_LOSSLESS || start_of(sub) > c - n) continue;
            if (phase_of(t) == GR_HELD) return GR_BLOCKED;
            if (phase_of(w) == GR_READY && seq_of(t) != c - n) return GR_BLOCKED;
            if (phase_of(w) == GR_READY && phase_of(t) != GR_DONE) return GR_BLOCKED;
        }
        *claimable = c, *word = w;
        return held && gr_every_slot_held(ring, subs) ? GR_BLOCKED : GR_OK;
    }
}

/* Nothing is left and the stream is over: the end, unless a fellow holds a frame that may come back. */
static enum gr_result look_at_the_end(const struct gr_peer *me, enum gr_result end) {
    for (uint32_t i = 0; i < me->ring->slots; i++) {
        uint64_t t = load_sc(&take_of(me->ring, i, me->u)->word);
        if (phase_of(t) == GR_HELD && owner_of(t) != me->number) return GR_BLOCKED;
    }
    return end; /* or a frame that was opened again: an answer either way */
}

/* The walk of gr_acquire from the peer's position, which stays where it is. */
static enum gr_result look_to_acquire(const struct gr_peer *me) {
    const struct gr_ring *ring = me->ring;
    const uint64_t n = ring->slots;
    uint64_t s = me->pos;
    if (load_sc(&ring->sub[me->u].redo) != me->seen) { /* acquire would start over (H4) */
        uint64_t start = start_of(load_sc(&ring->sub[me->u].word));
        uint64_t hint = load_acquire(&ring->head->claim_hint), oldest = hint > n ? hint - n : 0;
        if (oldest < start) oldest = start;
        if (s > oldest) s = oldest;
    }
    const enum gr_result end = end_of(ring->head);
    for (;;) {
        uint64_t i = s % n;
        const struct gr_take *take = take_of(ring, i, me->u);
        uint64_t t = load_sc(&take->word);
        bool open = seq_of(t) == s && phase_of(t) == GR_OPEN;
        if (!open && (seq_of(t) >= s || (me->mode == GR_LOSSY && s < me->high))) {
            if (seq_of(t) > s && seq_of(t) % n != i) return GR_DAMAGED;
            if (seq_of(t) < s && seq_of(load_sc(&ring->slot[i].word)) < s) return GR_DAMAGED;
            s = seq_of(t) >= s + n ? seq_of(t) - n + 1 : s + 1;
            continue;
        }
        uint64_t w = load_sc(&ring->slot[i].word);
        if (seq_of(w) % n != i) return GR_DAMAGED;
        if (seq_of(w) < s) return end == GR_BLOCKED ? GR_BLOCKED : look_at_the_end(me, end);
        if (seq_of(w) > s) {
            if (load_sc(&take->word) == t) s = seq_of(w) >= s + n ? seq_of(w) - n + 1 : s + 1;
            continue;
        }
        if (phase_of(w) == GR_WRITING) return GR_BLOCKED;
        if (phase_of(w) == GR_READY) return GR_OK;
        s++; /* void, or torn before anybody read it */
    }
}

enum gr_result gr_ready(const struct gr_peer *me) {
    if (gr_forked(me->ring)) return GR_FORKED;
    if (!is_mine(me)) return GR_REAPED;
    uint64_t c, w;
    return me->role == GR_PRODUCER ? look_to_claim(me, &c, &w) : look_to_acquire(me);
}

/* Whether slot[index] is still as the look found it, and nobody reads it. */
static bool is_at_rest(const struct gr_ring *ring, uint64_t index, uint64_t word) {
    for (each_bit(u, sub_mask_of(ring)))
        if (phase_of(load_sc(&take_of(ring, index, u)->word)) == GR_HELD) return false;
    return load_sc(&ring->slot[index].word) == word;
}

/* Host gate: GR_OK if a claim would have a slot now; seq says which, and pending[] what it would then have to
 * wait for.  Who waits before he claims burns no sequence when his time is up.  Only a hint: the claim
 * itself lists anew what is pending.
 *
 * A promise may be listed here whose fence operation is not enqueued yet, for the slot is not ours; an event
 * would say "done" of the operation before it.  Who promises writes or holds the slot until it is enqueued:
 * so if afterwards nobody does [edge Q], all that was listed is.  Else nothing is said to be pending. */
enum gr_result gr_claimable(struct gr_peer *me) {
    uint64_t c, w;
    if (gr_forked(me->ring)) return GR_FORKED;
    if (!is_mine(me)) return GR_REAPED;
    enum gr_result result = look_to_claim(me, &c, &w);
    if (result != GR_OK) return result;
    const uint64_t i = c % me->ring->slots;
    me->seq = c;
    gr_list_pending(me, (uint32_t)i);
    if (me->pendings && !is_at_rest(me->ring, i, w)) me->pendings = 0;
    return GR_OK;
}

/* The verbs of producers: claim, publish, abandon; and promises, which consumers make, too.
 * acquire.c and release.c have those of consumers. docs/protocol.md argues why all of this is
 * right, and tests/model explores the same protocol.
 *
 * Edges. Each label is named at both of its ends; docs/holes.md explains edges and holes (H1, …).
 *
 *   P  publish             publish: record, work; READY  ->  acquire, latest: slot word; record
 *   R  release             release: reads; DONE          ->  claim's gate: take word
 *   H  hold or overwrite   claim: CAS slot, load take    ||  acquire: CAS take, load slot
 *   J  join                join: store sub, load slot    ||  claim: CAS slot, load sub
 *   C  close               close: store closed, load slot||  claim: CAS slot, load closed
 *   D  doorbell (bell.c, wait.c)
 *   L  leave               leave: store LEAVING, load inside  ||  verb: count inside, load entry
 *
 * The pairs with || are store-buffering pairs: each side announces, then looks, all of it sc, so
 * at least one side sees the other.
 *
 * Only the owner that a claim word names, or the reaper of a dead owner, leaves WRITING or HELD,
 * and always by CAS from exactly the word that the owner stored. A failed CAS means that the peer
 * was reaped, and changes nothing.
 */
#include "claim.h"

#include "annex.h"
#include "bell.h"
#include "handles.h"
#include "trace.h"
#include "transition.h"

/* ---- the frontier ---------------------------------------------------------------------------- */

/* The smallest unclaimed sequence. The hint is at most that, so a stale hint costs a few more
 * loads. The slot words are sc for join, which reads the frontier after its announcement [edge J,
 * joiner]. */
uint64_t gr_frontier(struct gr_ring *ring) {
    uint64_t f = gr_load_acquire(&ring->head->claim_hint), n = ring->slots;
    for (;;) {
        uint64_t seq = seq_of(gr_load_sc(&ring->slot[f % n].word));
        if (seq < f) return f;
        f = seq + 1; /* claims are totally ordered, so all up to seq are claimed */
    }
}

/* Raises the hint behind c, which is claimed. Returns the sequence to look at next. A stale hint
 * costs the next claim a few loads, and the CAS never raises it beyond the frontier. */
static inline uint64_t help_hint(struct gr_ring *ring, uint64_t c) {
    uint64_t hint = c;
    bool helped = atomic_compare_exchange_strong_explicit(
        &ring->head->claim_hint, &hint, c + 1, memory_order_acq_rel, memory_order_acquire);
    return helped || hint <= c ? c + 1 : hint;
}

/* ---- the gate -------------------------------------------------------------------------------- */

/* Whether a claim would be in vain for as long as nobody releases: readers hold every slot, so
 * each claim would turn void, and the next one, too (H2). A stale word costs one void sequence, or
 * one wait that ends with the bell of the release. */
static bool every_slot_held(const struct gr_ring *ring) {
    for (uint32_t i = 0; i < ring->slots; i++) {
        bool held = false;
        gr_each_sub(u, ring)
            held |= phase_of(gr_load_sc(&take_of(ring, i, u)->word)) == GR_HELD;
        if (!held) return false;
    }
    return true;
}

/* Whether c may be claimed where its slot i showed w, a word from before the frontier. GR_OK,
 * GR_BLOCKED or GR_DAMAGED. It writes nothing: a claim checks the gate before its swap, and a peer
 * that waits for a claim checks it before it sleeps.
 *
 * [edge R, claimer] partner: leave_held. A stale take word shows less progress, and costs a wait.
 * [edge J, claimer] partner: announce. A subscription that is announced after this check starts
 * beyond c - n.
 * [edge D, sleeper] partner: gr_ring_bell. Everything that a waker changes is loaded with sc, or a
 * sleeper could miss its bell. */
static ALWAYS_INLINE enum gr_result gate(const struct gr_ring *ring, uint64_t c, uint64_t i,
                                         uint64_t w, struct gr_culprit *culprit) {
    const uint64_t n = ring->slots;
    if (seq_of(w) != c - n) return GR_DAMAGED; /* the hint is at most the frontier */
    if (phase_of(w) == GR_WRITING)
        return blocked(culprit, GR_BY_PRODUCER, owner_of(w), GR_NONE, c - n,
                       gr_load_relaxed(&ring->slot[i].since_ns));
    uint64_t holder = GR_NONE, held_in = GR_NONE;
    gr_each_sub(u, ring) {
        uint64_t sub = gr_load_sc(&ring->sub[u].word);
        const struct gr_take *take = take_of(ring, i, u);
        uint64_t t = gr_load_sc(&take->word);
        bool held = phase_of(t) == GR_HELD;
        if (mode_of(sub) == GR_LOSSLESS && start_of(sub) <= c - n) {
            bool done = seq_of(t) == c - n && phase_of(t) == GR_DONE;
            if (held)
                return blocked(culprit, GR_BY_HOLDER, owner_of(t), u, seq_of(t),
                               gr_load_relaxed(&take->since_ns));
            if (phase_of(w) == GR_READY && !done) /* void and torn frames are not waited for */
                return blocked(culprit, GR_BY_SUBSCRIPTION, GR_NONE, u, c - n,
                               gr_load_relaxed(&ring->slot[i].time_ns));
        }
        if (held) holder = owner_of(t), held_in = u;
    }
    if (held_in != GR_NONE && every_slot_held(ring))
        return blocked(culprit, GR_BY_HOLDER, holder, held_in,
                       seq_of(gr_load_sc(&take_of(ring, i, held_in)->word)),
                       gr_load_relaxed(&take_of(ring, i, held_in)->since_ns));
    return GR_OK;
}

enum gr_result gr_look_to_claim(const struct gr_peer *me, uint64_t *c, struct gr_culprit *culprit) {
    struct gr_ring *ring = me->ring;
    if (gr_load_sc(&ring->head->closed)) return GR_CLOSED;
    for (;;) {
        *c = gr_frontier(ring);
        uint64_t i = *c % ring->slots, w = gr_load_sc(&ring->slot[i].word);
        if (seq_of(w) < *c) return gate(ring, *c, i, w, culprit);
        /* *c has been claimed since. */
    }
}

/* ---- claim, publish, abandon ----------------------------------------------------------------- */

/* Lists in pending[] what a writer of the slot has to wait for: the unfinished GPU work of every
 * peer on it. This peer's own work counts, too: if it ran on another stream it could come late,
 * and its fence operation would lower the fence (G12). Edges P and R carry `work`: a promise that
 * was made before the slot became free is seen here. */
void gr_list_pending(struct gr_peer *me, uint32_t index) {
    const struct gr_ring *ring = me->ring;
    const gr_word *work = work_of(ring, index, 0), *fence = fence_of(ring, index, 0);
    me->last.index = index;
    me->last.pendings = 0;
    gr_each_peer(p, ring) add_pending(me, p, &fence[p], gr_load_acquire(&work[p]));
}

/* GR_OK: slot[index] = (seq, me, WRITING), and pending[] lists what the stream must wait for.
 * GR_BLOCKED, GR_CLOSED: no claim is left behind, but sequences may have been voided on the
 * way. */
static ALWAYS_INLINE enum gr_result claim(struct gr_peer *me) {
    struct gr_ring *ring = me->ring;
    struct gr_head *head = ring->head;
    const uint64_t n = ring->slots;
    uint64_t voided = 0;
    /* A claim that waits at a full ring must hear of a close, too (C1). */
    if (gr_load_sc(&head->closed)) return GR_CLOSED;

    for (uint64_t c = gr_load_acquire(&head->claim_hint);;) {
        uint64_t i = c % n, w = gr_load_sc(&ring->slot[i].word);
        if (seq_of(w) >= c) { /* c is claimed: help the hint on */
            uint64_t next = help_hint(ring, c);
            /* The hint is never more than one claim behind. A word that is laps ahead of it was
             * made up, and helping the hint on to there could take for ever. */
            if (seq_of(w) % n != i || seq_of(w) > next + n) return GR_DAMAGED;
            c = next;
            continue;
        }
        enum gr_result result = gate(ring, c, i, w, &me->last.culprit);
        if (result != GR_OK) return result;

        if (phase_of(w) == GR_READY) gr_annex_overwrites(ring, &ring->slot[i], c - n);
        const uint64_t mine = claim_word(c, me->self.number, GR_WRITING);
        GR_FAULT("claim: looked");
        /* [edges H, J, C, claimer] announce; the looks follow. This is the linearisation point. */
        if (!gr_cas(&ring->slot[i].word, w, mine)) continue;
        GR_FAULT("claim: swapped");
        help_hint(ring, c);
        GR_FAULT("claim: hinted");

        /* [edge C, claimer] partner: gr_close, after which readers look at the slots. A close
         * between the first look and the swap is seen here; otherwise a frame would be published
         * after the end (H9). */
        if (gr_load_sc(&head->closed)) {
            gr_cas(&ring->slot[i].word, mine, claim_word(c, me->self.number, GR_VOID));
            gr_ring_bell(ring);
            return GR_CLOSED;
        }
        /* [edge H, claimer] partner: hold. Look again: a lossy reader may have taken the slot
         * since the gate. A hold of any sequence counts, because a reader may hold a frame for
         * more than a lap (H1). The claim turns void, which costs the ring one slot for one
         * lap. */
        bool held = false;
        gr_each_sub(u, ring) {
            const struct gr_take *take = take_of(ring, i, u);
            uint64_t t = gr_load_sc(&take->word);
            if (phase_of(t) != GR_HELD) continue;
            held = true;
            blocked(&me->last.culprit, GR_BY_HOLDER, owner_of(t), u, seq_of(t),
                    gr_load_relaxed(&take->since_ns));
        }
        if (held) {
            gr_cas(&ring->slot[i].word, mine, claim_word(c, me->self.number, GR_VOID));
            GR_FAULT("claim: voided");
            gr_ring_bell(ring);
            /* Nothing bounds a row of voids, so a call whose time is up stops after one lap. */
            if (++voided >= n && gr_now_ns() >= me->wait.deadline_ns) return GR_BLOCKED;
            c = c + 1;
            continue;
        }

        /* Sequences are claimed in order; and the word stays ours, unless this process has lost
         * its locks and was taken for dead (A8). */
        GR_ASSERT(c >= me->last.seq);
        GR_ASSERT(gr_load_sc(&ring->slot[i].word) == mine || !gr_has_its_files(ring));
        me->last.seq = c;
        me->last.lost = 0;
        gr_list_pending(me, (uint32_t)i);
        gr_store_relaxed(&ring->slot[i].since_ns, (uint64_t)gr_now_coarse_ns());
        gr_annex_clear_slot(&ring->slot[i]);
        prefetch_next(me);
        if (gr_traced(ring)) gr_trace(me, 0, GR_DID_CLAIM, c, 0, 0);
        GR_FAULT("claim: claimed");
        return GR_OK;
    }
}

enum gr_result gr_claim(struct gr_peer *me) {
    enum gr_result result = gr_begin_taking(me);
    if (result != GR_OK) return result;
    result = claim(me);
    gr_end(me);
    return result;
}

/* The value that says "this peer's work on this slot for this frame is done". It is stored before
 * the fence operation is enqueued, and so before any word that could make others wait for it.
 * Returns 0, and stores nothing, if this peer is not LIVE any more: its number may belong to
 * another peer. */
uint64_t gr_promise(struct gr_peer *me, uint32_t index, uint64_t seq) {
    if (gr_begin(me) != GR_OK) return 0;
    gr_word *work = work_of(me->ring, index, me->self.number);
    uint64_t next = gr_load_relaxed(work) + 1, value = seq << 16;
    /* Nobody raises a fence beyond what was promised (G3). */
    GR_ASSERT(gr_load_acquire(fence_of(me->ring, index, me->self.number)) < next);
    if (value < next) value = next;
    /* Relaxed is enough: whoever must see it has seen the word that follows (edges P and R). */
    gr_store_relaxed(work, value);
    GR_FAULT("promised");
    gr_end(me);
    return value;
}

static enum gr_result leave_writing(struct gr_peer *me, uint32_t index, uint64_t seq,
                                    unsigned phase) {
    struct gr_slot *slot = &me->ring->slot[index];
    /* [edge P, publisher] carries data, record and work; partner: hold. A stale word shows
     * WRITING, and costs the reader another wait, which the bell ends. */
    if (!gr_cas(&slot->word, claim_word(seq, me->self.number, GR_WRITING),
                claim_word(seq, me->self.number, phase)))
        return GR_REAPED;
    GR_FAULT("publish: ready");
    gr_ring_bell(me->ring);
    return GR_OK;
}

/* value: from gr_promise, and its fence operation is enqueued. 0: a CPU has written the frame, so
 * nothing is promised. */
enum gr_result gr_publish(struct gr_peer *me, uint32_t index, uint64_t seq, uint64_t value,
                          uint32_t ndim, const uint64_t *shape) {
    struct gr_slot *slot = &me->ring->slot[index];
    enum gr_result result = gr_begin(me);
    if (result != GR_OK) return result;
    result = GR_REAPED;
    if (gr_load_sc(&slot->word) == claim_word(seq, me->self.number, GR_WRITING)) {
        GR_ASSERT(value <= gr_load_relaxed(work_of(me->ring, index, me->self.number)));
        /* Relaxed: nobody reads the record before READY, which carries it (edge P). */
        gr_store_relaxed(&slot->producer, me->self.id);
        gr_store_relaxed(&slot->fence, value);
        const int64_t now = gr_now_ns();
        gr_store_relaxed(&slot->time_ns, (uint64_t)now);
        gr_store_relaxed(&slot->ndim, ndim);
        for (uint32_t k = 0; k < ndim; k++) gr_store_relaxed(&slot->shape[k], shape[k]);
        if (!gr_load_relaxed(&slot->origin_seq)) { /* else the importer has set it */
            uint64_t dropped = gr_load_relaxed(&me->ring->head->dropped);
            gr_store_relaxed(&slot->lost_before, (uint32_t)dropped);
        }
        GR_FAULT("publish: recorded");
        result = leave_writing(me, index, seq, GR_READY);
        if (result == GR_OK) count(&me->ring->peer[me->self.number].frames, 1);
        if (result == GR_OK && gr_traced(me->ring))
            gr_trace(me, now, GR_DID_PUBLISH, seq, value, gr_load_relaxed(&slot->origin_seq));
    }
    gr_end(me);
    return result;
}

/* A frame found no slot, and its producer does not wait. The next frame that is published reports
 * that to readers. */
void gr_drop(struct gr_peer *me) {
    if (gr_begin(me) != GR_OK) return;
    count(&me->ring->peer[me->self.number].dropped, 1);
    atomic_fetch_add_explicit(&me->ring->head->dropped, 1, memory_order_relaxed);
    if (gr_traced(me->ring)) gr_trace(me, 0, GR_DID_DROP, 0, 0, 0);
    gr_end(me);
}

/* Call it after gr_promise and its fence operation, because kernels of the user may still be
 * writing (G6: an abandoned slot without a fence was written again too early). A CPU, and a claim
 * whose stream was never given to anybody, may skip both. */
enum gr_result gr_abandon(struct gr_peer *me, uint32_t index, uint64_t seq) {
    enum gr_result result = gr_begin(me);
    if (result != GR_OK) return result;
    result = leave_writing(me, index, seq, GR_VOID);
    if (result == GR_OK && gr_traced(me->ring))
        gr_trace(me, 0, GR_DID_ABANDON, seq, gr_promised(me, index), 0);
    gr_end(me);
    return result;
}

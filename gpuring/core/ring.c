/* The frame verbs.  docs/protocol.md is the argument; tests/model is the same protocol, explored.
 *
 * Edges (each label stands at both ends):
 *   P  publish: data, record, work          -> slot word READY -> acquire, latest
 *   R  release: reads of the data           -> take word DONE  -> gate of claim
 *   H  hold against overwrite (Dekker)      claim: CAS slot; load take  ||  acquire: CAS take; load slot
 *   J  join against claim (Dekker)          join: store sub; load slot  ||  claim: CAS slot; load sub
 *   C  close against claim (Dekker)         close: store closed; load slot || claim: CAS slot; load closed
 *   D  doorbell (wait.c)
 *   Q  look at a slot that is not ours      promise: CAS slot, take; store work || gr_claimable: load work; load slot, take
 *
 * Only the owner named in a claim word (or the reaper of a dead one) leaves WRITING or HELD, and always
 * by CAS from exactly the word he put there: a failure means that he was reaped, and changes nothing.
 */
#include "ring.h"

/* ---- shared by the verbs ---------------------------------------------------------------------- */

static enum gr_result blocked(struct gr_peer *me, enum gr_reason reason, uint64_t peer,
                              uint64_t subscription, uint64_t seq, uint64_t since_ns) {
    me->culprit = (struct gr_culprit){reason, (uint32_t)peer, (uint32_t)subscription, seq, since_ns};
    return GR_BLOCKED;
}

/* A peer number from a shared word is an index only after this. */
static inline bool is_peer(const struct gr_ring *ring, unsigned p) { return p < ring->max_peers; }

static inline void add_pending(struct gr_peer *me, uint64_t p, uint64_t value) {
    if (load_acquire(fence_of(me->ring, me->index, p)) < value)
        me->pending[me->pendings++] = (struct gr_pending){(uint32_t)p, value};
}

static inline void count(gr_word *word, uint64_t n) { store_relaxed(word, load_relaxed(word) + n); }

/* c is claimed: the hint may say so.  Returns what to look at next. */
static inline uint64_t help_hint(struct gr_ring *ring, uint64_t c) {
    uint64_t hint = c;
    bool helped = atomic_compare_exchange_strong_explicit(
        &ring->head->claim_hint, &hint, c + 1, memory_order_acq_rel, memory_order_acquire);
    return helped || hint <= c ? c + 1 : hint;
}

/* The next slot's words, as they may have been written by another processor or a GPU since the last lap.
 * What the caller does meanwhile hides the cache misses; a wrong guess costs nothing. */
static inline void prefetch_next(const struct gr_peer *me) {
    const struct gr_ring *ring = me->ring;
    uint32_t i = me->index + 1 == ring->slots ? 0 : me->index + 1;
    __builtin_prefetch(&ring->slot[i]);
    __builtin_prefetch(take_of(ring, i, 0));
    __builtin_prefetch(fence_of(ring, i, 0));
    __builtin_prefetch(work_of(ring, i, 0));
}

/* ---- claim, publish, abandon ------------------------------------------------------------------ */

/* Lossy readers that hold every slot would make claims void without end (H2). */
bool gr_every_slot_held(const struct gr_ring *ring, uint64_t subs) {
    for (uint32_t i = 0; i < ring->slots; i++) {
        bool held = false;
        for (each_bit(u, subs)) held |= phase_of(load_sc(&take_of(ring, i, u)->word)) == GR_HELD;
        if (!held) return false;
    }
    return true;
}

/* Makes pending[] what a writer of the slot has to wait for: everybody's open work on it, mine too (G12). */
void gr_list_pending(struct gr_peer *me, uint32_t index) {
    me->index = index;
    me->pendings = 0;
    for (each_bit(p, peer_mask_of(me->ring))) add_pending(me, p, load_acquire(work_of(me->ring, index, p)));
}

/* GR_OK: slot[index] = (seq, me, WRITING), and pending[] lists what the stream must wait for.
 * GR_BLOCKED, GR_CLOSED: no claim is left behind; sequences may have been voided on the way. */
enum gr_result gr_claim(struct gr_peer *me) {
    struct gr_ring *ring = me->ring;
    struct gr_head *head = ring->head;
    const uint64_t n = ring->slots;
    uint64_t voided = 0;
    if (gr_forked(ring)) return GR_FORKED;
    if (!is_mine(me)) return GR_REAPED;
    if (load_sc(&head->closed)) return GR_CLOSED; /* who waits at a full ring must hear of it too (C1) */

    for (uint64_t c = load_acquire(&head->claim_hint);;) {
        uint64_t i = c % n, w = load_sc(&ring->slot[i].word);
        if (seq_of(w) >= c) { /* somebody has claimed c: help, go on */
            uint64_t next = help_hint(ring, c);
            /* The hint is never more than one claim behind; a word that is laps ahead of it was made up,
             * and helping the hint on to it could take for ever. */
            if (seq_of(w) % n != i || seq_of(w) > next + n) return GR_DAMAGED;
            c = next;
            continue;
        }
        if (seq_of(w) != c - n) return GR_DAMAGED; /* the hint is at most the frontier */
        if (phase_of(w) == GR_WRITING)
            return blocked(me, GR_BY_PRODUCER, owner_of(w), GR_NONE, c - n,
                           load_relaxed(&ring->slot[i].since_ns));

        /* The gate.  [edge R, claimer] a stale take word shows less progress: we wait once more.
         * [edge J, claimer] a subscription announced after this look starts beyond c - n. */
        uint64_t subs = sub_mask_of(ring), holder = GR_NONE, held_in = GR_NONE;
        for (each_bit(u, subs)) {
            uint64_t sub = load_sc(&ring->sub[u].word);
            const struct gr_take *take = take_of(ring, i, u);
            uint64_t t = load_sc(&take->word);
            bool held = phase_of(t) == GR_HELD;
            if (mode_of(sub) == GR_LOSSLESS && start_of(sub) <= c - n) {
                bool done = seq_of(t) == c - n && phase_of(t) == GR_DONE;
                if (held)
                    return blocked(me, GR_BY_HOLDER, owner_of(t), u, seq_of(t),
                                   load_relaxed(&take->since_ns));
                if (phase_of(w) == GR_READY && !done) /* void and torn frames are nobody's to take */
                    return blocked(me, GR_BY_SUBSCRIPTION, GR_NONE, u, c - n,
                                   load_relaxed(&ring->slot[i].time_ns));
            }
            if (held) holder = owner_of(t), held_in = u;
        }
        if (held_in != GR_NONE && gr_every_slot_held(ring, subs))
            return blocked(me, GR_BY_HOLDER, holder, held_in, seq_of(load_sc(&take_of(ring, i, held_in)->word)),
                           load_relaxed(&take_of(ring, i, held_in)->since_ns));

        const uint64_t mine = claim_word(c, me->number, GR_WRITING);
        FAULT("claim: looked");
        if (!cas_sc(&ring->slot[i].word, w, mine)) continue; /* the linearisation point of a claim */
        FAULT("claim: swapped");
        help_hint(ring, c);
        FAULT("claim: hinted");

        if (load_sc(&head->closed)) { /* [edge C, claimer] */
            cas_sc(&ring->slot[i].word, mine, claim_word(c, me->number, GR_VOID));
            gr_ring_bell(ring);
            return GR_CLOSED;
        }
        /* [edge H, claimer] look again: a lossy reader may have slipped in.  Any HELD counts, of whatever
         * sequence: he may hold on for laps (H1).  The ring loses one slot for a lap, not its life. */
        bool held = false;
        for (each_bit(u, sub_mask_of(ring))) {
            const struct gr_take *take = take_of(ring, i, u);
            uint64_t t = load_sc(&take->word);
            if (phase_of(t) != GR_HELD) continue;
            held = true;
            blocked(me, GR_BY_HOLDER, owner_of(t), u, seq_of(t), load_relaxed(&take->since_ns));
        }
        if (held) {
            cas_sc(&ring->slot[i].word, mine, claim_word(c, me->number, GR_VOID));
            FAULT("claim: voided");
            gr_ring_bell(ring);
            /* Rows of voids have no fixed bound; a call that may not block tries each slot once. */
            if (++voided >= n && gr_now_ns() >= me->deadline_ns) return GR_BLOCKED;
            c = c + 1;
            continue;
        }

        me->seq = c;
        me->lost = 0;
        gr_list_pending(me, (uint32_t)i);
        store_relaxed(&ring->slot[i].since_ns, (uint64_t)gr_now_coarse_ns());
        prefetch_next(me);
        FAULT("claim: claimed");
        return GR_OK;
    }
}

/* The value that says "my work on this slot for this frame is done".  Stored before the fence operation
 * is enqueued, and so before any word that could make others wait for it.  0, and nothing stored, if
 * this peer is no longer itself: the number may be somebody else's by now. */
uint64_t gr_promise(struct gr_peer *me, uint32_t index, uint64_t seq) {
    if (gr_forked(me->ring) || !is_mine(me)) return 0;
    gr_word *work = work_of(me->ring, index, me->number);
    uint64_t next = load_relaxed(work) + 1, value = seq << 16;
    if (value < next) value = next;
    store_release(work, value); /* [edge Q, promiser] who sees it sees that the slot is written, or held */
    me->last_index = index;
    me->last_value = value;
    FAULT("promised");
    return value;
}

static enum gr_result leave_writing(struct gr_peer *me, uint32_t index, uint64_t seq, unsigned phase) {
    struct gr_slot *slot = &me->ring->slot[index];
    if (!is_mine(me)) return GR_REAPED;
    /* [edge P, publisher] carries data, record and work; partner: the second look of acquire */
    if (!cas_sc(&slot->word, claim_word(seq, me->number, GR_WRITING), claim_word(seq, me->number, phase)))
        return GR_REAPED;
    FAULT("publish: ready");
    gr_ring_bell(me->ring);
    return GR_OK;
}

/* value: from gr_promise, its fence operation enqueued (host memory: done). */
enum gr_result gr_publish(struct gr_peer *me, uint32_t index, uint64_t seq, uint64_t value,
                          uint32_t ndim, const uint64_t *shape) {
    struct gr_slot *slot = &me->ring->slot[index];
    if (gr_forked(me->ring)) return GR_FORKED;
    if (load_sc(&slot->word) != claim_word(seq, me->number, GR_WRITING)) return GR_REAPED;
    store_relaxed(&slot->producer, me->id);
    store_relaxed(&slot->fence, value);
    store_relaxed(&slot->time_ns, (uint64_t)gr_now_ns());
    store_relaxed(&slot->ndim, ndim);
    for (uint32_t k = 0; k < ndim; k++) store_relaxed(&slot->shape[k], shape[k]);
    FAULT("publish: recorded");
    enum gr_result result = leave_writing(me, index, seq, GR_READY);
    if (result == GR_OK) count(&me->ring->peer[me->number].frames, 1);
    return result;
}

/* After gr_promise and its fence operation, for kernels of the user may still write (G6).  A claim whose
 * stream was never given to anybody may skip both. */
enum gr_result gr_abandon(struct gr_peer *me, uint32_t index, uint64_t seq) {
    if (gr_forked(me->ring)) return GR_FORKED;
    return leave_writing(me, index, seq, GR_VOID);
}

/* ---- acquire, latest, release, give back -------------------------------------------------------- */

/* Sequences below `to` have been met: taken, lost, or a fellow's. */
static inline void met(struct gr_peer *me, uint64_t to) {
    if (me->high < to) me->high = to;
}

static inline void start_count(struct gr_peer *me) {
    if (me->told) me->lost = 0, me->told = false;
}

/* A torn frame is told as torn, not as lost. */
static void count_torn(struct gr_peer *me, uint64_t s) {
    if (s < me->high) return; /* met before a redo sent us back: counted then */
    met(me, s + 1);
    count(&me->ring->peer[me->number].torn, 1);
}

/* Adds up from one frame that was handed out to the next, over calls that found none. */
static void count_lost(struct gr_peer *me, uint64_t from, uint64_t to) {
    if (from < me->high) from = me->high; /* met before a redo sent us back: counted then */
    if (to <= from) return;
    met(me, to);
    if (me->mode != GR_LOSSY) return; /* what a lossless member finds gone was void or a fellow's (H7) */
    me->lost += to - from;
    count(&me->ring->peer[me->number].lost, to - from);
    atomic_fetch_add_explicit(&me->ring->sub[me->u].lost, to - from, memory_order_relaxed);
}

enum hold { HELD, PASSED, WAS_TORN, CHANGED };

/* Takes sequence s, whose take word was t.  CHANGED: look again.  PASSED, WAS_TORN: no frame any more. */
static enum hold hold(struct gr_peer *me, uint64_t s, uint64_t t) {
    struct gr_ring *ring = me->ring;
    uint64_t i = s % ring->slots;
    struct gr_slot *slot = &ring->slot[i];
    struct gr_take *take = take_of(ring, i, me->u);
    const uint64_t mine = claim_word(s, me->number, GR_HELD);
    FAULT("acquire: looked");
    if (!cas_sc(&take->word, t, mine)) return CHANGED; /* [edge H, reader]: announce ... */
    FAULT("acquire: held");
    uint64_t w = load_sc(&slot->word);                 /* ... then look; [edge P, reader] */
    if (seq_of(w) != s || phase_of(w) != GR_READY || !is_peer(ring, owner_of(w))) {
        /* A failed undo is harmless: a fellow replaced this doomed hold, or we were reaped (H8). */
        cas_sc(&take->word, mine, claim_word(s, me->number, GR_DONE));
        FAULT("acquire: undone");
        gr_ring_bell(ring);
        return seq_of(w) == s && phase_of(w) == GR_TORN ? WAS_TORN : PASSED;
    }
    me->seq = s;
    me->index = (uint32_t)i;
    me->redelivered = seq_of(t) == s && owner_of(t) == GR_NONE; /* a name on it: it was given back */
    me->pendings = 0;
    add_pending(me, me->number, load_acquire(work_of(ring, i, me->number))); /* G12 */
    me->producer = owner_of(w);
    me->producer_id = load_relaxed(&slot->producer); /* stable: nobody publishes in a held slot */
    me->value = load_relaxed(&slot->fence);
    add_pending(me, me->producer, me->value);
    store_relaxed(&take->since_ns, (uint64_t)gr_now_coarse_ns());
    count(&ring->peer[me->number].frames, 1);
    me->pos = s + 1;
    me->told = true;
    prefetch_next(me);
    FAULT("acquire: confirmed");
    return HELD;
}

/* Nothing is left at pos and the stream is over.  A frame that a fellow holds may come back, and one
 * that was opened again is there already, whether or not its redo count has been bumped yet (E1). */
static enum gr_result last_look(struct gr_peer *me, enum gr_result end) {
    struct gr_ring *ring = me->ring;
    if (load_acquire(&ring->sub[me->u].redo) != me->seen) return GR_OK;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < ring->slots; i++) {
        const struct gr_take *take = take_of(ring, i, me->u);
        uint64_t t = load_sc(&take->word);
        if (phase_of(t) == GR_HELD && owner_of(t) != me->number)
            return blocked(me, GR_BY_HOLDER, owner_of(t), me->u, seq_of(t), load_relaxed(&take->since_ns));
        uint64_t w = load_sc(&ring->slot[i].word);
        if (phase_of(t) == GR_OPEN && seq_of(w) == seq_of(t) && phase_of(w) == GR_READY) {
            if (seq_of(t) % ring->slots != i) return GR_DAMAGED; /* we would look elsewhere, and come back */
            if (seq_of(t) < oldest) oldest = seq_of(t);
        }
    }
    if (oldest == UINT64_MAX) return end;
    me->pos = oldest;
    return GR_OK;
}

/* The next frame in order.  GR_OK: take[u][index] = (seq, me, HELD), pending[] lists the fences. */
enum gr_result gr_acquire(struct gr_peer *me) {
    struct gr_ring *ring = me->ring;
    const uint64_t n = ring->slots;
    if (gr_forked(ring)) return GR_FORKED;
    if (!is_mine(me)) return GR_REAPED;
    start_count(me);

again:;
    uint64_t redo = load_acquire(&ring->sub[me->u].redo);
    if (redo != me->seen) { /* something was opened again: start over (H4) */
        uint64_t start = start_of(load_sc(&ring->sub[me->u].word));
        uint64_t hint = load_acquire(&ring->head->claim_hint), oldest = hint > n ? hint - n : 0;
        me->seen = redo;
        if (oldest < start) oldest = start;
        if (me->pos > oldest) me->pos = oldest;
    }
    const enum gr_result end = end_of(ring->head);
    for (uint64_t s = me->pos;;) {
        uint64_t i = s % n;
        const struct gr_take *take = take_of(ring, i, me->u);
        uint64_t t = load_sc(&take->word);
        bool open = seq_of(t) == s && phase_of(t) == GR_OPEN;
        bool done_with = me->mode == GR_LOSSY && s < me->high; /* had, or counted as lost */
        if (!open && (seq_of(t) >= s || done_with)) { /* a fellow's, or met before a redo sent us back */
            if (seq_of(t) > s && seq_of(t) % n != i) return GR_DAMAGED;
            uint64_t next = seq_of(t) >= s + n ? seq_of(t) - n + 1 : s + 1; /* older ones are gone */
            if (seq_of(t) < s && seq_of(load_sc(&ring->slot[i].word)) < s)
                return GR_DAMAGED; /* we have met what was never claimed: do not walk up to it */
            met(me, next);
            me->pos = s = next;
            continue;
        }
        uint64_t w = load_sc(&ring->slot[i].word);
        if (seq_of(w) % n != i) return GR_DAMAGED;
        if (seq_of(w) < s) { /* not claimed yet */
            if (end == GR_BLOCKED) return blocked(me, GR_BY_NO_FRAME, GR_NONE, me->u, s, 0);
            enum gr_result result = last_look(me, end);
            if (result == GR_OK) goto again;
            return result;
        }
        if (seq_of(w) == s && phase_of(w) == GR_WRITING)
            return blocked(me, GR_BY_PRODUCER, owner_of(w), me->u, s, load_relaxed(&ring->slot[i].since_ns));
        if (seq_of(w) > s) { /* passed by the producer, unless a fellow took it meanwhile (H7) */
            if (load_sc(&take->word) != t) continue;
            uint64_t next = seq_of(w) >= s + n ? seq_of(w) - n + 1 : s + 1;
            count_lost(me, s, next);
            me->pos = s = next;
            continue;
        }
        if (phase_of(w) != GR_READY) { /* void, or torn before anybody read it */
            if (phase_of(w) == GR_TORN) count_torn(me, s);
            else count_lost(me, s, s + 1);
            me->pos = ++s;
            continue;
        }
        enum hold got = hold(me, s, t);
        if (got == CHANGED) continue;
        if (got == WAS_TORN) count_torn(me, s);
        if (got == PASSED) count_lost(me, s, s + 1);
        met(me, s + 1);
        if (got == HELD) return GR_OK;
        me->pos = ++s;
    }
}

/* The newest frame at or after pos; older ones count as lost.  Lossy subscriptions only. */
enum gr_result gr_latest(struct gr_peer *me) {
    struct gr_ring *ring = me->ring;
    if (gr_forked(ring)) return GR_FORKED;
    if (!is_mine(me)) return GR_REAPED;
    start_count(me);
    for (;;) {
        const enum gr_result end = end_of(ring->head);
        uint64_t best = 0, writing = 0;
        for (uint32_t i = 0; i < ring->slots; i++) {
            uint64_t w = load_sc(&ring->slot[i].word);
            if (seq_of(w) % ring->slots != i) return GR_DAMAGED;
            if (seq_of(w) < me->pos) continue;
            if (phase_of(w) == GR_READY && seq_of(w) > best) best = seq_of(w);
            if (phase_of(w) == GR_WRITING) writing = seq_of(w);
        }
        if (best == 0) { /* sequences start at N, so 0 is none */
            if (end == GR_BLOCKED || writing) return blocked(me, GR_BY_NO_FRAME, GR_NONE, me->u, me->pos, 0);
            return end;
        }
        uint64_t t = load_sc(&take_of(ring, best % ring->slots, me->u)->word);
        if (seq_of(t) > best || (seq_of(t) == best && phase_of(t) != GR_OPEN)) { /* a fellow's */
            me->pos = best + 1;
            met(me, best + 1);
            continue;
        }
        uint64_t from = me->pos;
        enum hold got = hold(me, best, t);
        if (got == CHANGED) continue;
        count_lost(me, from, got == PASSED ? best + 1 : best);
        if (got == WAS_TORN) count_torn(me, best);
        met(me, best + 1);
        if (got == HELD) return GR_OK;
        me->pos = best + 1;
    }
}

static enum gr_result leave_held(struct gr_peer *me, uint32_t index, uint64_t seq, uint64_t to) {
    struct gr_take *take = take_of(me->ring, index, me->u);
    if (gr_forked(me->ring)) return GR_FORKED;
    if (!is_mine(me)) return GR_REAPED; /* the next owner of our number may hold the same frame */
    /* [edge R, reader] carries the reads of the frame and work; partner: the gate of claim */
    return cas_sc(&take->word, claim_word(seq, me->number, GR_HELD), to) ? GR_OK : GR_REAPED;
}

/* After gr_promise and its fence operation on every stream that read the frame. */
enum gr_result gr_release(struct gr_peer *me, uint32_t index, uint64_t seq) {
    enum gr_result result = leave_held(me, index, seq, claim_word(seq, me->number, GR_DONE));
    FAULT("release: done");
    if (result == GR_OK) gr_ring_bell(me->ring);
    return result;
}

/* Undoes an acquire whose frame was never handed out (its stream could not be ordered in time).  The
 * frame is open to every member again, to this one first.  Our name stays on it: nobody died. */
enum gr_result gr_give_back(struct gr_peer *me, uint32_t index, uint64_t seq) {
    enum gr_result result = leave_held(me, index, seq, claim_word(seq, me->number, GR_OPEN));
    if (result != GR_OK) return result;
    FAULT("give back: open");
    if (me->pos > seq) me->pos = seq;
    if (me->high == seq + 1) me->high = seq; /* not met after all; what was lost before it is still to tell */
    me->told = false;
    atomic_fetch_add_explicit(&me->ring->sub[me->u].redo, 1, memory_order_seq_cst);
    FAULT("give back: redo bumped");
    count(&me->ring->peer[me->number].frames, (uint64_t)-1);
    gr_ring_bell(me->ring);
    return GR_OK;
}

/* Releases the frame of the last acquire, which turned out torn before anybody saw it.  Its own work on
 * the slot is nil, so there is nothing to promise. */
void gr_skip_torn(struct gr_peer *me) {
    struct gr_peer_entry *entry = &me->ring->peer[me->number];
    count(&entry->frames, (uint64_t)-1);
    count(&entry->torn, 1);
    me->told = false;
    gr_release(me, me->index, me->seq);
}

/* Whether the GPU work that `value` of a frame's record stands for was never done: the peer with that number
 * and id died before.  Call it only after fence[index][producer] >= value was seen, with acquire.  Then either
 * the GPU reached the value, or a reaper raised the fence, and its mark, written before, is to be seen here.
 *
 * One mark for each slot and number, so it is that of the last owner who died with work pending here:
 *   ours     all values up to `reached` were paid, later ones never.  While the mark is being written its fence
 *            is not raised yet, so what we saw was reached.
 *   later    another peer had the number since, and died with work pending here: if there was a mark for ours,
 *            it is gone.  Torn, for never may a frame be called whose that is not.  (So the frames of a number that
 *            two peers in turn had are called torn, whole or not, if nobody asked before the second's death.)
 *   earlier  ours has not died, or had nothing pending here.
 * `reached` belongs to `id` only if that is still there afterwards: else a later owner's is being written. */
bool gr_torn(const struct gr_ring *ring, uint32_t index, uint32_t producer, uint64_t producer_id, uint64_t value) {
    struct gr_tear *mark = tear_of(ring, index, producer);
    uint64_t word = load_acquire(&mark->id), id = word & ~GR_MARKING;
    if (id != producer_id) return id > producer_id;
    if (word != id) return false;
    return value > load_acquire(&mark->reached) || (load_acquire(&mark->id) & ~GR_MARKING) != id;
}

bool gr_holds(struct gr_peer *me, uint32_t index, uint64_t *seq) {
    uint64_t word = me->role == GR_PRODUCER ? load_sc(&me->ring->slot[index].word)
                                            : load_sc(&take_of(me->ring, index, me->u)->word);
    unsigned phase = me->role == GR_PRODUCER ? (unsigned)GR_WRITING : (unsigned)GR_HELD;
    *seq = seq_of(word);
    return is_mine(me) && owner_of(word) == me->number && phase_of(word) == phase;
}

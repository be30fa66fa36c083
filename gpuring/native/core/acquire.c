/* How a consumer gets a frame: acquire, latest; and gr_look, which asks whether a verb would be
 * blocked, without its swap. walk.h has the way to the frame, release.c the end of it, and claim.c
 * the table of edges.
 */
#include "acquire.h"

#include "annex.h"
#include "bell.h"
#include "claim.h"
#include "handles.h"
#include "trace.h"
#include "transition.h"
#include "walk.h"

/* ---- would a verb be blocked ----------------------------------------------------------------- */

/* Whether a producer has died whose death has to be reported to this peer and was not. */
static bool somebody_died(const struct gr_peer *me) {
    const struct gr_head *head = me->ring->head;
    uint64_t reaps = gr_load_sc((gr_word *)&head->reaps), k = me->cursor.reaps;
    if (!me->cursor.told_deaths || reaps == k) return false;
    if (reaps - k > GR_DEATHS) return true; /* more than are remembered */
    for (; k < reaps; k++) {
        const struct gr_death *death = &head->deaths[k % GR_DEATHS];
        uint64_t peer = gr_load_acquire((gr_word *)&death->peer);
        if (role_of(peer) == GR_PRODUCER && state_of(peer) == GR_LIVE) return true;
    }
    return false;
}

/* Notes that the death is reported now. */
static bool tell_of_deaths(struct gr_peer *me) {
    const uint64_t reaps = gr_load_acquire(&me->ring->head->reaps);
    const bool died = somebody_died(me);
    me->cursor.told_from = me->cursor.reaps;
    me->cursor.reaps = reaps;
    return died;
}

/* Would claim or acquire be blocked now? GR_OK: *seq is what the verb would claim or take.
 * GR_BLOCKED: *culprit is in the way. Anything else is what the verb would return. Nothing is
 * written, so it serves a thread that waits at several rings, one that waits on behalf of another
 * thread and may not touch its peer (notify.c), and one that waits for a GPU before it claims.
 *
 * After GR_OK a verb may still find itself blocked: another member was faster, or a claim turned
 * void under a lossy reader. Then the words have moved, and the next look sees them. The reverse
 * must not happen: if this said GR_BLOCKED although the verb has an answer, a peer would sleep
 * through it. test_ready.py and test_machine.py of tests/native compare it with the verbs. */
enum gr_result gr_look(const struct gr_peer *me, uint64_t *seq, struct gr_culprit *culprit) {
    if (gr_forked(me->ring)) return GR_FORKED;
    if (!may_take(me)) return GR_REAPED;
    if (me->self.role == GR_PRODUCER) return gr_look_to_claim(me, seq, culprit);
    if (me->cursor.told_deaths && somebody_died(me)) return GR_PRODUCER_DIED;
    struct cursor at = cursor_of(me);
    struct found found;
    enum gr_result result = walk(me, &at, &found, culprit);
    *seq = at.pos;
    return result;
}

/* ---- acquire, latest ------------------------------------------------------------------------- */

static inline void start_count(struct gr_peer *me) {
    if (!me->last.reported) return;
    me->last.lost = me->last.upstream = 0;
    me->last.reported = false;
}

/* Counts frames that were lost without having been skipped here. They stay counted if the frame
 * that they are reported with is given back, and are reported with the next one. */
static inline void count_missed(struct gr_peer *me, uint64_t n) {
    if (!n) return;
    me->last.upstream += n;
    count_lost_of(me, n);
}

void gr_count_lost(struct gr_peer *me, uint64_t n) {
    if (gr_begin(me) != GR_OK) return;
    count_missed(me, n);
    gr_end(me);
}
void gr_count_before(struct gr_peer *me) { gr_count_lost(me, me->cursor.before); }

/* Notes in the header that the end of the stream was reported to this peer, or that it asks again.
 * A producer that waits for the peer shows that. Relaxed: it is a diagnosis. */
static void note_end(struct gr_peer *me, uint64_t pos, enum gr_result result) {
    const bool over = (result == GR_ENDED || result == GR_PEER_LOST) && !me->cursor.follows;
    if (over == me->cursor.ended) return;
    me->cursor.ended = over;
    gr_store_relaxed(&me->ring->peer[me->self.number].ended_at, over ? pos : 0);
}

/* Notes that frame s is the one that reports what is owed, unless an earlier frame does so. */
static void tells(struct gr_peer *me, uint64_t s) {
    if (gr_load_relaxed(&me->cursor.due) && !gr_load_relaxed(&me->cursor.due_with))
        gr_store_relaxed(&me->cursor.due_with, s);
}

/* A peer number that comes from a shared word is used as an index only after this check. */
static inline bool is_peer(const struct gr_ring *ring, unsigned p) { return p < ring->max_peers; }

enum hold { HELD, PASSED, WAS_TORN, CHANGED };

/* Takes sequence s in slot i, whose take word was t. CHANGED: look again. PASSED, WAS_TORN: there
 * is no frame any more, and the take word has to be undone. */
static enum hold hold(struct gr_peer *me, uint64_t s, uint64_t i, uint64_t t) {
    struct gr_ring *ring = me->ring;
    struct gr_slot *slot = &ring->slot[i];
    struct gr_take *take = take_of(ring, i, me->self.u);
    const uint64_t mine = claim_word(s, me->self.number, GR_HELD);
    GR_FAULT("acquire: looked");
    /* [edge H, reader] partner: claim. First announce the hold, then look at the slot, both with
     * sc: a claim that misses the hold is seen here, so nobody reads what is being overwritten. */
    if (!gr_cas(&take->word, t, mine)) return CHANGED;
    GR_FAULT("acquire: held");
    /* [edge P, reader] partner: leave_writing. READY carries the data, the record and work. */
    uint64_t w = gr_load_sc(&slot->word);
    if (seq_of(w) != s || phase_of(w) != GR_READY || !is_peer(ring, owner_of(w)))
        return seq_of(w) == s && phase_of(w) == GR_TORN ? WAS_TORN : PASSED;
    me->last.seq = s;
    me->last.index = (uint32_t)i;
    /* A reaper leaves nobody's name on a frame; a member that gave it back leaves its own. */
    me->last.redelivered = seq_of(t) == s && owner_of(t) == GR_NONE;
    me->last.pendings = 0;
    /* Its own earlier work on the slot may be on another stream (G12: the fence would fall). */
    add_pending(me, me->self.number, fence_of(ring, i, me->self.number),
                gr_load_acquire(work_of(ring, i, me->self.number)));
    me->last.producer = owner_of(w);
    /* Relaxed: edge P has carried the record, and nobody publishes in a slot that is held. */
    me->last.producer_id = gr_load_relaxed(&slot->producer);
    me->last.value = gr_load_relaxed(&slot->fence);
    add_pending(me, me->last.producer, fence_of(ring, i, me->last.producer), me->last.value);
    count_missed(me, gr_annex_lost(&me->cursor, slot));
    if (me->last.upstream) tells(me, s);
    gr_store_relaxed(&take->since_ns, (uint64_t)gr_now_coarse_ns());
    count(&ring->peer[me->self.number].frames, 1);
    me->last.reported = true;
    prefetch_next(me);
    GR_FAULT("acquire: confirmed");
    return HELD;
}

/* Sequence s is no frame any more, and its take word says HELD (PASSED, WAS_TORN). It is counted
 * before the word says DONE. If this peer is killed in between, the next member of a durable
 * subscription counts it again; the other way round nobody would count it (H19). */
static void undo(struct gr_peer *me, struct cursor *at, uint64_t s, uint64_t i, enum hold got) {
    if (got == WAS_TORN) count_torn(at, s);
    else count_lost(me, at, s, s + 1);
    commit(me, at);
    GR_FAULT("acquire: counted");
    /* If this fails, that is harmless: another member has replaced this doomed hold, or this peer
     * was reaped. A plain store would wipe out the other member's newer hold (H8). */
    gr_cas(&take_of(me->ring, i, me->self.u)->word, claim_word(s, me->self.number, GR_HELD),
           claim_word(s, me->self.number, GR_DONE));
    GR_FAULT("acquire: undone");
    gr_ring_bell(me->ring);
}

static inline enum gr_result begin_taking(struct gr_peer *me) {
    enum gr_result result = gr_begin_taking(me);
    if (result != GR_OK || !me->cursor.told_deaths || !tell_of_deaths(me)) return result;
    gr_end(me);
    return GR_PRODUCER_DIED;
}

/* How a verb ends with a frame, and below how it ends without one. These are two functions because
 * a common one would have to keep the result and the position over calls that only one of the ends
 * makes: acquire took 26 ns then, and takes 22 ns now (bench/tracing.py). */

__attribute__((cold, noinline)) static enum gr_result took_traced(struct gr_peer *me) {
    gr_trace(me, 0, GR_DID_ACQUIRE, me->last.seq, me->last.lost + me->last.upstream,
             me->last.redelivered);
    gr_end(me);
    return GR_OK;
}

static inline enum gr_result took(struct gr_peer *me, struct cursor *at) {
    commit(me, at);
    if (me->cursor.ended) note_end(me, at->pos, GR_OK);
    if (gr_traced(me->ring)) return took_traced(me);
    gr_end(me);
    return GR_OK;
}

__attribute__((noinline)) static enum gr_result took_none(struct gr_peer *me, struct cursor *at,
                                                          enum gr_result result) {
    commit(me, at);
    note_end(me, at->pos, result);
    gr_end(me);
    return result;
}

/* Takes the next frame in order. GR_OK: take[u][index] = (seq, me, HELD), and pending[] lists the
 * fences that the stream must wait for. */
enum gr_result gr_acquire(struct gr_peer *me) {
    enum gr_result result = begin_taking(me);
    if (result != GR_OK) return result;
    start_count(me);
    struct cursor at = cursor_of(me);
    struct found found;
    while ((result = walk(me, &at, &found, &me->last.culprit)) == GR_OK) {
        const uint64_t s = at.pos;
        enum hold got = hold(me, s, found.index, found.take);
        if (got == CHANGED) continue;
        if (got != HELD) undo(me, &at, s, found.index, got);
        met(&at, s + 1);
        at.pos = s + 1;
        if (got == HELD) return took(me, &at);
    }
    return took_none(me, &at, result);
}

/* `latest` passes over frames older than s. Those that this member had given back are lost with the
 * rest. If they were left OPEN, the next acquire would hand them out after s (E4). */
static void take_back(const struct gr_peer *me, uint64_t from, uint64_t s) {
    const uint64_t n = me->ring->slots;
    for (from = from + n > s ? from : s + 1 - n; from < s; from++) {
        gr_word *word = &take_of(me->ring, from % n, me->self.u)->word;
        const uint64_t open = claim_word(from, me->self.number, GR_OPEN);
        /* If the CAS fails, another member has taken it. */
        if (gr_load_sc(word) == open)
            gr_cas(word, open, claim_word(from, me->self.number, GR_DONE));
    }
}

/* Takes the newest frame at or after the position; older ones count as lost. Lossy subscriptions
 * only. The words are loaded with sc, as in walk: a sleeper calls this, too [edge D, sleeper]. */
static enum gr_result newest(struct gr_peer *me, struct cursor *at) {
    const struct gr_ring *ring = me->ring;
    for (;;) {
        const enum gr_result end = end_of_stream(ring);
        uint64_t best = 0, writing = 0;
        for (uint32_t i = 0; i < ring->slots; i++) {
            uint64_t w = gr_load_sc(&ring->slot[i].word);
            if (seq_of(w) % ring->slots != i) return GR_DAMAGED;
            if (seq_of(w) < at->pos) continue;
            if (phase_of(w) == GR_READY && seq_of(w) > best) best = seq_of(w);
            if (phase_of(w) == GR_WRITING) writing = seq_of(w);
        }
        if (best == 0) { /* sequences start at N, so 0 means none */
            if (end != GR_BLOCKED && !writing) return end;
            return blocked(&me->last.culprit, GR_BY_NO_FRAME, GR_NONE, me->self.u, at->pos, 0);
        }
        uint64_t i = best % ring->slots, t = gr_load_sc(&take_of(ring, i, me->self.u)->word);
        if (seq_of(t) > best || (seq_of(t) == best && phase_of(t) != GR_OPEN)) {
            /* Another member has it. */
            at->pos = best + 1;
            met(at, best + 1);
            continue;
        }
        enum hold got = hold(me, best, i, t);
        if (got == CHANGED) continue;
        count_lost(me, at, at->pos, best);
        commit(me, at); /* before a word says DONE (H19) */
        take_back(me, at->pos, best);
        GR_FAULT("latest: taken back");
        if (got != HELD) undo(me, at, best, i, got);
        met(at, best + 1);
        at->pos = best + 1;
        if (got == HELD) return GR_OK;
    }
}

enum gr_result gr_latest(struct gr_peer *me) {
    enum gr_result result = begin_taking(me);
    if (result != GR_OK) return result;
    start_count(me);
    struct cursor at = cursor_of(me);
    result = newest(me, &at);
    return result == GR_OK ? took(me, &at) : took_none(me, &at, result);
}

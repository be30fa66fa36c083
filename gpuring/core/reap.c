/* What is cleared of those who have gone: of a dead peer everything (reap); of one that leaves what it still had in
 * hand; of a FREE entry, which should have nothing, what names it all the same (orphans).
 *
 * All of it under LOCK, and all of it can be repeated: whoever is killed half-way leaves an entry that is in use and has
 * no owner, and the next one does it again.
 */
#define _GNU_SOURCE
#include "members.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

/* ---- who is dead ---------------------------------------------------------------------------- */

/* The peer's byte is free already.  Is its GPU work gone too?  Only its pidfd can tell, and only within
 * one pid namespace; from another one this never says yes. */
static bool gpu_gone(struct gr_ring *ring, const struct gr_peer_entry *entry) {
    if (ring->config.memory == GR_MEMORY_HOST) return true; /* files go after the address space */
    if (gr_load_acquire(&entry->pidns) != ring->pidns) return false;
    pid_t pid = (pid_t)gr_load_acquire(&entry->pid);
    char state = 0;
    int fd = gr_pidfd(pid);
    if (fd < 0 && (errno == ESRCH || errno == EINVAL)) return true;
    /* The number may belong to a later process by now; the start time tells, where /proc shows it. */
    uint64_t start = gr_process_start(pid, &state), joined = gr_load_acquire(&entry->start);
    bool gone = start && joined && start != joined;
    if (fd < 0) return gone || state == 'Z' || state == 'X'; /* an old kernel, or no descriptors left */
    struct pollfd exited = {.fd = fd, .events = POLLIN};
    if (!gone) gone = poll(&exited, 1, 0) == 1;
    close(fd);
    return gone;
}

static bool is_dead(struct gr_ring *ring, uint32_t p) {
    return state_of(gr_load_acquire(&ring->peer[p].word)) != GR_FREE && !gr_peer_alive(ring, p) &&
           gpu_gone(ring, &ring->peer[p]);
}

/* ---- torn marks ---------------------------------------------------------------------------------- */

/* Under LOCK.  Read by gr_torn, which says what each order of these stores is for. */
static void mark_torn(struct gr_tear *mark, uint64_t id, uint64_t reached) {
    gr_store_release(&mark->id, id | GR_MARKING);
    GR_FAULT("reap: torn marking");
    gr_store_release(&mark->reached, reached); /* who sees it sees that the mark is another's now */
    GR_FAULT("reap: torn reached");
    gr_store_release(&mark->id, id);
    GR_FAULT("reap: torn marked");
}

/* Under LOCK.  A frame of p that nobody can read any more: READY -> TORN.  1 if there is one.  The slot's word
 * names the last frame only; earlier ones are known by their mark.  With events the word stays: nobody raises
 * a fence when an event is done, so only who acquires the frame, and asks the event, knows. */
static uint64_t tear_ready(struct gr_ring *ring, struct gr_slot *slot, uint32_t p, uint64_t reached) {
    uint64_t w = gr_load_sc(&slot->word);
    if (owner_of(w) != p || phase_of(w) != GR_READY || gr_load_relaxed(&slot->fence) <= reached) return 0;
    return ring->config.sync == GR_SYNC_EVENT || gr_cas(&slot->word, w, claim_word(seq_of(w), p, GR_TORN));
}

/* ---- words in somebody's hands ----------------------------------------------------------------- */

static uint64_t put_down(struct gr_slot *slot, uint64_t w) {
    return gr_cas(&slot->word, w, claim_word(seq_of(w), GR_NONE, GR_VOID));
}

/* A frame that was held goes back to its subscription, or is dropped.  Somebody has to bump `redo` after it. */
static uint64_t open_again(struct gr_ring *ring, struct gr_take *take, uint64_t u, uint64_t t) {
    bool drop = policy_of(gr_load_sc(&ring->sub[u].word)) == GR_DROP;
    return gr_cas(&take->word, t, claim_word(seq_of(t), GR_NONE, drop ? GR_DONE : GR_OPEN));
}

struct cleared {
    uint64_t voided, reopened;
};

/* own: its subscription, whose mask bit may have gone with it already; GR_NONE: a producer. */
static struct cleared clear_words(struct gr_ring *ring, uint32_t p, uint32_t own) {
    const uint64_t subs = sub_mask_of(ring) | (own < ring->max_subscriptions ? UINT64_C(1) << own : 0);
    struct cleared cleared = {0, 0};
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t w = gr_load_sc(&ring->slot[i].word);
        if (owner_of(w) == p && phase_of(w) == GR_WRITING) cleared.voided += put_down(&ring->slot[i], w);
        GR_FAULT("reap: slot void");
        for (gr_each_bit(u, subs)) {
            struct gr_take *take = take_of(ring, i, u);
            uint64_t t = gr_load_sc(&take->word);
            if (owner_of(t) == p && phase_of(t) == GR_HELD) cleared.reopened += open_again(ring, take, u, t);
            GR_FAULT("reap: take open");
        }
    }
    return cleared;
}

/* [edge D] whoever was counted for it sleeps no more; a bit beyond the two comes from no build of ours */
static void uncount(struct gr_ring *ring, struct gr_peer_entry *entry) {
    uint64_t waiting = atomic_exchange_explicit(&entry->waiting, 0, memory_order_seq_cst);
    uint32_t counted = (waiting & GR_SLEEPING ? 1u : 0u) + (waiting & GR_ARMED ? 1u : 0u);
    if (counted) atomic_fetch_sub_explicit(&ring->head->waiters, counted, memory_order_seq_cst);
}

/* Of a peer that is LEAVING, none of whose verbs is in progress: what another thread got before (A10).  If we are killed,
 * a reaper goes on. */
void gr_take_back(struct gr_ring *ring, uint32_t p, uint32_t u) {
    struct cleared cleared = clear_words(ring, p, u);
    if (cleared.reopened && u != GR_NONE) atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
    uncount(ring, &ring->peer[p]);
    GR_FAULT("leave: taken back");
    if (cleared.voided || cleared.reopened) gr_ring_bell(ring);
}

/* ---- orphans ------------------------------------------------------------------------------------ */

/* Whether a word in somebody's hands is in nobody's: its owner's entry is FREE, or cannot be.  A peer leaves none; but
 * one that was taken for dead though it lived (somebody closed the descriptor of its locks) may have been past its look
 * at its own entry, and swapped after it was cleared (A8).  Outside of LOCK this is a guess. */
static bool is_orphan(const struct gr_ring *ring, uint64_t word, unsigned phase) {
    if (phase_of(word) != phase) return false;
    return owner_of(word) >= ring->max_peers || state_of(gr_load_sc(&ring->peer[owner_of(word)].word)) == GR_FREE;
}

static bool has_orphans(const struct gr_ring *ring) {
    const uint64_t subs = sub_mask_of(ring);
    for (uint32_t i = 0; i < ring->slots; i++) {
        if (is_orphan(ring, gr_load_sc(&ring->slot[i].word), GR_WRITING)) return true;
        for (gr_each_bit(u, subs))
            if (is_orphan(ring, gr_load_sc(&take_of(ring, i, u)->word), GR_HELD)) return true;
    }
    return false;
}

/* While a frame is opened again its owner's entry is in use, so that somebody bumps `redo` though we are killed here
 * (A11). */
static void adopt(struct gr_ring *ring, uint32_t i, uint64_t u, uint64_t t) {
    const bool known = owner_of(t) < ring->max_peers;
    if (known) gr_store_sc(&ring->peer[owner_of(t)].word, peer_word(GR_LEAVING, GR_CONSUMER, (unsigned)u));
    open_again(ring, take_of(ring, i, u), u, t);
    atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
    if (known) gr_store_sc(&ring->peer[owner_of(t)].word, peer_word(GR_FREE, 0, 0));
}

/* Here no fence is raised: whose work it is may live.  If we are killed before the bell, who sleeps finds out after his
 * slice: this mends what should not be. */
void gr_clear_orphans(struct gr_ring *ring) {
    const uint64_t subs = sub_mask_of(ring);
    bool any = false;
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t w = gr_load_sc(&ring->slot[i].word);
        if (is_orphan(ring, w, GR_WRITING)) any = true, put_down(&ring->slot[i], w);
        for (gr_each_bit(u, subs)) {
            uint64_t t = gr_load_sc(&take_of(ring, i, u)->word);
            if (is_orphan(ring, t, GR_HELD)) any = true, adopt(ring, i, u, t);
        }
    }
    if (any) gr_ring_bell(ring);
}

/* ---- the dead ------------------------------------------------------------------------------------ */

/* Idempotent up to its last store: whoever finds a half-done one does it again. */
static void clear_dead(struct gr_ring *ring, uint32_t p) {
    struct gr_head *head = ring->head;
    struct gr_peer_entry *entry = &ring->peer[p];
    uint64_t word = gr_load_relaxed(&entry->word), torn = 0, raised = 0;
    bool producer = role_of(word) == GR_PRODUCER;

    for (uint32_t i = 0; i < ring->slots; i++) {
        gr_word *fence = fence_of(ring, i, p);
        uint64_t promised = gr_load_acquire(work_of(ring, i, p)), reached = gr_load_acquire(fence);
        if (reached >= promised) continue;
        /* Mark, then phase, then fence (G4): the raised fence lets streams go on, and the mark must be
         * there when they come to check.  Until the fence is raised all of it can be done again. */
        if (producer) {
            mark_torn(tear_of(ring, i, p), gr_load_relaxed(&entry->id), reached);
            torn += tear_ready(ring, &ring->slot[i], p, reached);
            GR_FAULT("reap: slot torn");
        }
        atomic_exchange_explicit(fence, promised, memory_order_seq_cst); /* never further (G3) */
        raised++;
        GR_FAULT("reap: fence raised");
    }
    struct cleared cleared = clear_words(ring, p, producer ? (uint32_t)GR_NONE : sub_of(word));
    /* Always, for the reaper before us may have died right here. */
    if (producer) gr_count_producers(ring, p, state_of(word) == GR_LEAVING ? GR_LEFT : GR_DIED);
    else {
        uint32_t u = sub_of(word);
        if (u < ring->max_subscriptions) {
            atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
            GR_FAULT("reap: redo bumped");
            if (!gr_has_other_member(ring, u, p)) gr_remove_subscription(ring, u);
        }
    }
    uncount(ring, entry);
    GR_FAULT("reap: waiter uncounted");

    uint64_t number = gr_load_relaxed(&head->reaps);
    struct gr_death *death = &head->deaths[number % GR_DEATHS];
    gr_store_relaxed(&death->time_ns, (uint64_t)gr_now_ns());
    gr_store_relaxed(&death->pid, gr_load_relaxed(&entry->pid));
    gr_store_relaxed(&death->peer, word);
    gr_store_relaxed(&death->number, p);
    gr_store_relaxed(&death->voided, cleared.voided);
    gr_store_relaxed(&death->torn, torn);
    gr_store_relaxed(&death->reopened, cleared.reopened);
    gr_store_relaxed(&death->raised, raised);
    gr_store_sc(&head->reaps, number + 1);
    GR_FAULT("reap: recorded");
    gr_ring_bell(ring); /* before the entry is FREE: if we are killed here, the next reaper rings (D12) */
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
    GR_FAULT("reap: freed");
    atomic_fetch_and_explicit(&head->peer_mask, ~(UINT64_C(1) << p), memory_order_seq_cst);
}

static enum gr_result reap(struct gr_ring *ring, uint32_t p, bool *reaped) {
    *reaped = false;
    if (!is_dead(ring, p)) return GR_OK;
    enum gr_result result = gr_lock(ring, 0);
    if (result != GR_OK) return result;
    *reaped = is_dead(ring, p); /* else another reaper was here, and somebody joined with this number (A3) */
    if (*reaped) clear_dead(ring, p);
    gr_unlock(ring);
    return GR_OK;
}

static enum gr_result reap_orphans(struct gr_ring *ring) {
    if (!has_orphans(ring)) return GR_OK;
    enum gr_result result = gr_lock(ring, 0);
    if (result != GR_OK) return result;
    gr_clear_orphans(ring);
    gr_unlock(ring);
    return GR_OK;
}

/* For who finds this peer in his way: whatever is wrong with it, and no more. */
void gr_reap_one(struct gr_ring *ring, uint32_t p) {
    bool done;
    if (gr_forked(ring)) return;
    if (state_of(gr_load_acquire(&ring->peer[p].word)) == GR_FREE) reap_orphans(ring);
    else reap(ring, p, &done);
}

/* Clears whoever is dead, and what is in nobody's hands.  Does not wait for LOCK: whoever has it may be doing the same. */
enum gr_result gr_reap_dead(struct gr_ring *ring, uint64_t *reaped) {
    if (reaped) *reaped = 0;
    if (gr_forked(ring)) return GR_FORKED;
    enum gr_result result = GR_OK;
    for (uint32_t p = 0; p < ring->max_peers && result == GR_OK; p++) {
        bool done;
        result = reap(ring, p, &done);
        if (done && reaped) *reaped |= UINT64_C(1) << p;
    }
    if (result == GR_OK) result = reap_orphans(ring);
    return result == GR_LOCK_TIMEOUT ? GR_OK : result;
}

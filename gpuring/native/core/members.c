/* Membership: join, leave and close. reap.c has the rest. Frame verbs never come here.
 *
 * All of it is under LOCK (lock.h). Under it every step leaves words from which the next holder
 * can go on, if this process is killed.
 */
#define _GNU_SOURCE
#include "members.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "acquire.h"
#include "annex.h"
#include "bell.h"
#include "claim.h"
#include "handles.h"
#include "lock.h"
#include "reap.h"
#include "subscriptions.h"
#include "trace.h"

/* For a peer whose last reference is dropped: a program that drops it does not expect to wait. */
#define DROPPED_PATIENCE_NS (INT64_C(10) * 1000 * 1000)

/* ---- join ------------------------------------------------------------------------------------ */

static bool drained(const struct gr_ring *ring, uint32_t p) {
    for (uint32_t i = 0; i < ring->slots; i++)
        if (gr_load_acquire(fence_of(ring, i, p)) != gr_load_acquire(work_of(ring, i, p)))
            return false;
    return true;
}

/* Under LOCK. Gives the peer an entry. The byte is locked before the entry says LIVE; otherwise a
 * reaper would clear the newcomer (A4). The entry comes before the subscription; otherwise a kill
 * would leave a subscription without a member, which holds producers up (A5).
 *
 * The relaxed stores are carried by the sc store of the entry's word; partner: is_mine and
 * reapers.
 */
static enum gr_result enter(struct gr_ring *ring, struct gr_peer *me) {
    struct gr_head *head = ring->head;
    gr_clear_orphans(ring); /* before one could be taken for this peer's (A8) */
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        struct gr_peer_entry *entry = &ring->peer[p];
        if (state_of(gr_load_acquire(&entry->word)) != GR_FREE || !drained(ring, p)) continue;
        if (gr_lock_byte(ring->lock_fd, F_WRLCK, (int)p) != 0) continue;
        GR_FAULT("join: byte locked");
        atomic_fetch_or_explicit(&head->peer_mask[p / 64], bit_of(p), memory_order_seq_cst);
        me->ring = ring;
        me->self.number = p;
        me->self.id = gr_load_relaxed(&head->joins) + 1;
        gr_set_mine(ring, p, me->self.id);
        me->wait.spin_ns = GR_SPIN_MAX_NS;
        gr_store_relaxed(&head->joins, me->self.id);
        gr_store_relaxed(&entry->id, me->self.id);
        gr_store_relaxed(&entry->pid, ring->pid);
        gr_store_relaxed(&entry->start, ring->start);
        gr_store_relaxed(&entry->pidns, ring->pidns);
        gr_store_relaxed(&entry->joined_ns, (uint64_t)gr_now_ns());
        gr_store_relaxed(&entry->waiting, 0);
        gr_store_relaxed(&entry->frames, 0);
        gr_store_relaxed(&entry->lost, 0);
        gr_store_relaxed(&entry->torn, 0);
        gr_annex_clear_peer(entry);
        for (int k = 0; k < 2; k++) gr_store_relaxed(&entry->gpu[k], ring->gpu[k]);
        gr_store_relaxed(&entry->unregistered, ring->unregistered);
        gr_store_relaxed(&entry->dropped, 0);
        gr_store_relaxed(&entry->ended_at, 0);
        gr_store_relaxed(&entry->untold, 0);
        gr_write_text(entry->label, (const char[8 * GR_LABEL_WORDS]){0}, GR_LABEL_WORDS);
        GR_FAULT("join: written");
        gr_store_sc(&entry->word, peer_word(GR_LIVE, me->self.role, me->self.u));
        GR_FAULT("join: live");
        if (gr_traced(ring)) gr_trace(me, 0, GR_DID_JOIN, me->self.role, me->self.u, 0);
        return GR_OK;
    }
    return GR_FULL_PEERS;
}

/* Takes LOCK for a join. Dead peers are cleared first, so a full table means that many living
 * peers. */
static enum gr_result lock_to_join(struct gr_ring *ring) {
    enum gr_result result = gr_reap_dead(ring, NULL);
    if (result != GR_OK) return result;
    result = gr_lock(ring, ring->join_patience_ns);
    if (result == GR_OK && gr_load_sc(&ring->head->closed)) {
        gr_unlock(ring);
        return GR_CLOSED;
    }
    return result;
}

enum gr_result gr_join_producer(struct gr_ring *ring, struct gr_peer *me) {
    memset(me, 0, sizeof *me);
    me->self.role = GR_PRODUCER;
    me->self.u = GR_NONE;
    enum gr_result result = lock_to_join(ring);
    if (result != GR_OK) return result;
    result = enter(ring, me);
    if (result == GR_OK) gr_count_producers(ring, GR_NONE, GR_NOT_ENDED);
    gr_unlock(ring);
    /* Whoever wakes up tells the watchdog of its process that a peer has joined
     * (gr_tell_of_joins). */
    if (result == GR_OK) gr_ring_bell(ring);
    return result;
}

enum gr_result gr_join_consumer(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                                unsigned mode, unsigned policy, enum gr_start from,
                                uint64_t start, struct gr_peer *me) {
    memset(me, 0, sizeof *me);
    me->self.role = GR_CONSUMER;
    me->self.mode = mode;
    me->self.policy = policy;
    enum gr_result result = lock_to_join(ring);
    if (result != GR_OK) return result;

    uint32_t unused, found = gr_find_subscription(ring, name, &unused);
    const struct gr_terms terms = {.mode = mode, .policy = policy, .from = from, .start = start};
    me->self.u = found != GR_NONE ? found : unused;
    if (me->self.u == GR_NONE) result = GR_FULL_SUBS;
    else if (found != GR_NONE && !gr_agrees(ring, found, &terms)) result = GR_MODE_MISMATCH;
    else result = enter(ring, me);
    if (result == GR_OK) {
        /* After the entry: otherwise a kill would leave a subscription without a member, which
         * holds producers up (A5). */
        me->cursor.dropped = (uint32_t)gr_load_relaxed(&ring->head->dropped);
        bool again = false;
        if (found == GR_NONE) gr_begin_subscription(ring, me->self.u, name, &terms);
        else again = gr_take_up(ring, me);
        me->cursor.reaps = gr_load_acquire(&ring->head->reaps);
        me->cursor.seen = gr_load_acquire(&ring->sub[me->self.u].redo);
        me->cursor.pos = me->cursor.high = start_of(gr_load_sc(&ring->sub[me->self.u].word));
        if (found == GR_NONE) {
            me->cursor.before = me->cursor.pos - ring->slots; /* sequences start at N */
            me->cursor.first = !me->cursor.before;
        } else {
            uint64_t f = gr_frontier(ring), oldest = f > ring->slots ? f - ring->slots : 0;
            /* What came before belongs to the other members, and is not lost. But if the
             * subscription has just been announced again, what is gone since is lost (H17). */
            if (me->cursor.pos < oldest && !again) me->cursor.pos = me->cursor.high = oldest;
        }
    }
    gr_unlock(ring);
    if (result != GR_OK) return result;
    gr_ring_bell(ring); /* see gr_join_producer */
    return result;
}

/* For people. Relaxed: any reader may see a mixture of two texts. Within gr_begin, because the
 * entry may be another peer's by now. */
void gr_set_label(const struct gr_peer *me, const char label[8 * GR_LABEL_WORDS]) {
    if (gr_begin(me) != GR_OK) return;
    gr_write_text(me->ring->peer[me->self.number].label, label, GR_LABEL_WORDS);
    gr_end(me);
}

/* ---- leave, close ---------------------------------------------------------------------------- */

void gr_stop(struct gr_peer *me, bool stop) {
    gr_store_sc(&me->self.stopping, stop);
    gr_ring_bell(me->ring);
}

/* Under LOCK: whether the entry does not belong to this peer any more. */
static bool is_gone(const struct gr_peer *me) {
    const struct gr_peer_entry *entry = &me->ring->peer[me->self.number];
    return state_of(gr_load_relaxed(&entry->word)) == GR_FREE ||
           gr_load_relaxed(&entry->id) != me->self.id;
}

/* The peer was reaped although it lives, because its byte lost its lock. Or another thread has
 * left with it as well. Its number may be that of a later peer of this handle by now, which goes
 * on. So the byte stays as it is, too. */
static enum gr_result give_up(struct gr_peer *me) {
    if (gr_load_relaxed(&me->ring->mine[me->self.number]) == me->self.id)
        gr_set_mine(me->ring, me->self.number, 0);
    me->self.left = true;
    gr_unlock(me->ring);
    return GR_REAPED;
}

/* Waits until none of the peer's verbs is in progress. [edge L, leaver] partner: gr_begin. The
 * entry is LEAVING by now, so no verb begins any more. A stale count costs one more turn. A verb
 * neither sleeps nor waits, so this takes microseconds, or as long as the scheduler keeps a thread
 * off the CPU. */
static enum gr_result wait_for_verbs(const struct gr_peer *me) {
    int64_t deadline = gr_now_ns() + GR_PATIENCE_NS;
    struct timespec nap = {.tv_nsec = 100 * 1000};
    for (int turns = 0; gr_load_sc(inside_of(me)) != 0; turns++) {
        if (turns < 100) gr_pause();
        else if (gr_now_ns() >= deadline) return GR_LOCK_TIMEOUT;
        else nanosleep(&nap, NULL);
    }
    return GR_OK;
}

/* The caller has seen to it that the GPU has done what was promised, and has ended what it knows
 * of. What is still claimed or held is taken back here, as a reaper does it, because a verb in
 * another thread may have got one more (A10).
 *
 * There are two stages, so that a leaver that is killed before it rings is still reaped (D6).
 * Between them it waits for the verbs in progress: they would leave words that name a FREE entry,
 * or the number's next owner (A7).
 */
static enum gr_result leave(struct gr_peer *me, int64_t patience_ns) {
    struct gr_ring *ring = me->ring;
    struct gr_peer_entry *entry = &ring->peer[me->self.number];
    if (me->self.left) return GR_REAPED;
    enum gr_result result = gr_lock(ring, patience_ns);
    if (result != GR_OK) return result;
    if (is_gone(me)) return give_up(me);
    if (state_of(gr_load_relaxed(&entry->word)) == GR_LIVE) { /* else an earlier call did it */
        if (gr_traced(ring)) gr_trace(me, 0, GR_DID_LEAVE, 0, 0, 0);
        if (me->self.role == GR_PRODUCER) {
            gr_clear_dead_producers(ring);
            gr_count_producers(ring, me->self.number, GR_LEFT);
        } else {
            atomic_fetch_add_explicit(&ring->sub[me->self.u].redo, 1, memory_order_seq_cst);
        }
        GR_FAULT("leave: counted");
        /* [edge L, leaver] partner: gr_begin. */
        gr_store_sc(&entry->word, peer_word(GR_LEAVING, me->self.role, me->self.u));
        GR_FAULT("leave: leaving");
        if (me->self.role == GR_CONSUMER && !gr_has_other_member(ring, me->self.u, me->self.number))
            gr_lose_last_member(ring, me->self.u);
    }
    gr_unlock(ring);
    GR_FAULT("leave: unlocked");
    gr_ring_bell(ring);
    result = wait_for_verbs(me);
    if (result != GR_OK) return result;

    result = gr_lock(ring, patience_ns);
    if (result != GR_OK) return result;
    if (is_gone(me)) return give_up(me);
    gr_take_back(ring, me->self.number, me->self.u);
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
    GR_FAULT("leave: freed");
    atomic_fetch_and_explicit(&ring->head->peer_mask[me->self.number / 64],
                              ~bit_of(me->self.number), memory_order_seq_cst);
    gr_set_mine(ring, me->self.number, 0);
    me->self.left = true;
    gr_lock_byte(ring->lock_fd, F_UNLCK, (int)me->self.number);
    gr_unlock(ring);
    return GR_OK;
}

/* GR_LOCK_TIMEOUT: the peer has not left, and its owner may go on with it, or leave later. A
 * dropped peer has no owner who could. Nobody else can clear it either, because its process lives.
 * So the watchdog of this process leaves for it as soon as LOCK is free (gr_leaves_late). */
enum gr_result gr_leave(struct gr_peer *me) {
    if (!me->self.dropped) return leave(me, GR_PATIENCE_NS);
    enum gr_result result = leave(me, DROPPED_PATIENCE_NS);
    if (result != GR_LOCK_TIMEOUT) return result;
    me->self.left = true;
    gr_store_release(&me->ring->unleft[me->self.number], me->self.id); /* partner: gr_leave_late */
    return GR_OK;
}

/* Leaves for dropped peers that could not. Does not wait. True: somebody else still has LOCK.
 *
 * Whether the entry is still theirs is decided under LOCK, by the id. No verb of theirs is in
 * progress. */
bool gr_leave_late(struct gr_ring *ring) {
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        uint64_t id = gr_load_acquire(&ring->unleft[p]);
        if (id == 0) continue;
        uint64_t word = gr_load_acquire(&ring->peer[p].word);
        struct gr_peer me = {.ring = ring,
                             .self = {.number = p, .id = id, .role = role_of(word)}};
        me.self.u = me.self.role == GR_PRODUCER ? (uint32_t)GR_NONE : sub_of(word);
        const bool damaged = me.self.role != GR_PRODUCER && me.self.u >= ring->max_subscriptions;
        if (!damaged && leave(&me, 0) == GR_LOCK_TIMEOUT) return true;
        gr_cas(&ring->unleft[p], id, 0); /* the number's next owner may be listed already */
    }
    return false;
}

/* Whatever else this handle has in the ring is of joins that were cut short, and nobody uses it. */
void gr_drop_all(struct gr_ring *ring) {
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        uint64_t id = gr_load_acquire(&ring->mine[p]);
        if (id) gr_store_release(&ring->unleft[p], id);
    }
}

/* [edge C, closer] partner: claim, which looks at `closed` again after its swap, and turns void
 * (H9: a frame was published after the end). Readers look at the slots after they have seen
 * `closed`. */
enum gr_result gr_close(struct gr_ring *ring) {
    if (gr_forked(ring)) return GR_FORKED;
    gr_store_sc(&ring->head->closed, 1);
    GR_FAULT("close: closed");
    gr_ring_bell(ring);
    return GR_OK;
}

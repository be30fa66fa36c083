/* Membership: join, leave, close; reap.c is the rest of it.  Frame verbs never come here.
 *
 * LOCK is an OFD write lock on a reserved byte of the header's file: the kernel drops it when its holder
 * dies, so there is nothing to steal and no owner word.  Under it, every step leaves words from which
 * the next holder can go on: a reaper that is killed half-way is simply repeated, because each of its
 * steps is idempotent and "entry FREE" is the last store.
 *
 * Liveness is another OFD lock: peer p holds byte p through a description that is never mapped.  The
 * kernel drops it a little before the dead process's GPU work is gone, so on a GPU ring nothing of a
 * dead peer is cleared before its pidfd says that the process has gone altogether (G1, docs/holes.md).
 */
#define _GNU_SOURCE
#include "members.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- locks ---------------------------------------------------------------------------------- */

static int byte_lock(struct gr_ring *ring, short type, int byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(ring->lock_fd, F_OFD_SETLK, &lock);
}

/* Locks that this handle holds itself do not count: callers know their own (ring->mine). */
static bool byte_locked(struct gr_ring *ring, int byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(ring->lock_fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* patience_ns 0: try once.  A healthy holder keeps LOCK for microseconds, a stopped one for ever. */
enum gr_result gr_lock(struct gr_ring *ring, int64_t patience_ns) {
    if (gr_forked(ring)) return GR_FORKED;
    int64_t deadline = gr_now_ns() + patience_ns;
    struct timespec nap = {.tv_nsec = 100 * 1000};
    bool mutexed = false;
    for (;;) {
        if (!mutexed) mutexed = pthread_mutex_trylock(&ring->mutex) == 0;
        if (mutexed) {
            if (byte_lock(ring, F_WRLCK, GR_LOCK_BYTE) == 0) return GR_OK;
            if (errno != EAGAIN && errno != EACCES) {
                int error = errno;
                pthread_mutex_unlock(&ring->mutex);
                errno = error;
                return GR_SYSTEM;
            }
        }
        if (gr_now_ns() >= deadline) break;
        nanosleep(&nap, NULL);
    }
    if (mutexed) pthread_mutex_unlock(&ring->mutex);
    return GR_LOCK_TIMEOUT;
}
void gr_unlock(struct gr_ring *ring) {
    byte_lock(ring, F_UNLCK, GR_LOCK_BYTE);
    pthread_mutex_unlock(&ring->mutex);
}
#define PATIENCE_NS (INT64_C(5) * 1000 * 1000 * 1000)

/* ---- who is alive --------------------------------------------------------------------------- */

static void set_mine(struct gr_ring *ring, uint32_t p, bool mine) {
    uint64_t bit = UINT64_C(1) << p, bits = gr_load_relaxed(&ring->mine);
    gr_store_release(&ring->mine, mine ? bits | bit : bits & ~bit);
}

bool gr_peer_alive(struct gr_ring *ring, uint32_t p) {
    return gr_load_acquire(&ring->mine) >> p & 1 || byte_locked(ring, (int)p);
}

bool gr_creator_alive(struct gr_ring *ring) {
    const struct gr_head *head = ring->head;
    bool me = head->creator_pid == ring->pid && head->creator_start == ring->start &&
              head->creator_pidns == ring->pidns;
    return me || byte_locked(ring, GR_CREATOR_BYTE);
}

bool gr_attached(struct gr_ring *ring) { return byte_locked(ring, GR_ATTACHED_BYTE); }

/* ---- shared with reap.c; all under LOCK -------------------------------------------------------- */

/* One word says whether the stream is over, so that no reader has to scan entries that change while he
 * scans.  It is stored before the entry of a leaver or a dead peer goes, after that of a joiner came. */
void gr_count_producers(struct gr_ring *ring, uint32_t without, enum gr_end how) {
    struct gr_head *head = ring->head;
    uint64_t live = 0, ever = gr_load_relaxed(&head->producers) >> 8 & 1;
    if (how == GR_NOT_ENDED) ever = 1;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        uint64_t word = gr_load_relaxed(&ring->peer[p].word);
        live += p != without && state_of(word) == GR_LIVE && role_of(word) == GR_PRODUCER;
    }
    gr_store_sc(&head->producers, live << 16 | ever << 8 | how);
    GR_FAULT("producers counted");
}

bool gr_has_other_member(struct gr_ring *ring, uint32_t u, uint32_t p) {
    for (uint32_t q = 0; q < ring->max_peers; q++) {
        uint64_t word = gr_load_relaxed(&ring->peer[q].word);
        if (q != p && state_of(word) == GR_LIVE && role_of(word) == GR_CONSUMER && sub_of(word) == u)
            return true;
    }
    return false;
}

/* The mask bit goes after the word: set, it costs a look; missing, it would hide a reader. */
void gr_remove_subscription(struct gr_ring *ring, uint32_t u) {
    gr_store_sc(&ring->sub[u].word, sub_word(0, 0, GR_SUB_FREE));
    GR_FAULT("subscription removed");
    atomic_fetch_and_explicit(&ring->head->sub_mask, ~(UINT64_C(1) << u), memory_order_seq_cst);
}

/* ---- join ------------------------------------------------------------------------------------- */

static bool drained(const struct gr_ring *ring, uint32_t p) {
    for (uint32_t i = 0; i < ring->slots; i++)
        if (gr_load_acquire(fence_of(ring, i, p)) != gr_load_acquire(work_of(ring, i, p))) return false;
    return true;
}

/* Under LOCK.  The byte is locked before the entry says LIVE, or a reaper would clear a newcomer (A4);
 * the entry comes before the subscription, or a kill would leave a gate without a member (A5). */
static enum gr_result enter(struct gr_ring *ring, struct gr_peer *me) {
    struct gr_head *head = ring->head;
    gr_clear_orphans(ring); /* before one could be taken for ours (A8) */
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        struct gr_peer_entry *entry = &ring->peer[p];
        if (state_of(gr_load_acquire(&entry->word)) != GR_FREE || !drained(ring, p)) continue;
        if (byte_lock(ring, F_WRLCK, (int)p) != 0) continue;
        GR_FAULT("join: byte locked");
        set_mine(ring, p, true);
        atomic_fetch_or_explicit(&head->peer_mask, UINT64_C(1) << p, memory_order_seq_cst);
        me->ring = ring;
        me->number = p;
        me->id = gr_load_relaxed(&head->joins) + 1;
        me->spin_ns = GR_SPIN_MAX_NS;
        gr_store_relaxed(&head->joins, me->id);
        gr_store_relaxed(&entry->id, me->id);
        gr_store_relaxed(&entry->pid, ring->pid);
        gr_store_relaxed(&entry->start, ring->start);
        gr_store_relaxed(&entry->pidns, ring->pidns);
        gr_store_relaxed(&entry->joined_ns, (uint64_t)gr_now_ns());
        gr_store_relaxed(&entry->waiting, 0);
        gr_store_relaxed(&entry->frames, 0);
        gr_store_relaxed(&entry->lost, 0);
        gr_store_relaxed(&entry->torn, 0);
        GR_FAULT("join: written");
        gr_store_sc(&entry->word, peer_word(GR_LIVE, me->role, me->u));
        GR_FAULT("join: live");
        return GR_OK;
    }
    return GR_FULL_PEERS;
}

/* Entries of the dead are cleared first, so a full table means that many living peers. */
static enum gr_result lock_to_join(struct gr_ring *ring) {
    enum gr_result result = gr_reap_dead(ring, NULL);
    if (result != GR_OK) return result;
    result = gr_lock(ring, PATIENCE_NS);
    if (result == GR_OK && gr_load_sc(&ring->head->closed)) {
        gr_unlock(ring);
        return GR_CLOSED;
    }
    return result;
}

enum gr_result gr_join_producer(struct gr_ring *ring, struct gr_peer *me) {
    memset(me, 0, sizeof *me);
    me->role = GR_PRODUCER;
    me->u = GR_NONE;
    enum gr_result result = lock_to_join(ring);
    if (result != GR_OK) return result;
    result = enter(ring, me);
    if (result == GR_OK) gr_count_producers(ring, GR_NONE, GR_NOT_ENDED);
    gr_unlock(ring);
    if (result == GR_OK) gr_ring_bell(ring); /* who wakes up tells his watchdog of us (gr_tell_of_joins) */
    return result;
}

static bool same_name(const struct gr_sub *sub, const char *name) {
    for (int k = 0; k < GR_NAME_WORDS; k++) {
        uint64_t word;
        memcpy(&word, name + 8 * k, 8);
        if (gr_load_relaxed(&sub->name[k]) != word) return false;
    }
    return true;
}

/* Under LOCK, after the entry.  The announcement is made twice: a claim that was past its gate when the
 * first one came may have taken one frame from us, and only one, since claims are totally ordered.  The
 * frontier read after the announcement says which (H5). */
static void announce(struct gr_ring *ring, struct gr_peer *me, const char *name, enum gr_start from,
                     uint64_t start) {
    struct gr_sub *sub = &ring->sub[me->u];
    uint64_t n = ring->slots;
    for (uint32_t i = 0; i < n; i++) /* a predecessor's (s, DONE) would hide frames (H11) */
        gr_store_relaxed(&take_of(ring, i, me->u)->word, claim_word(0, GR_NONE, GR_DONE));
    GR_FAULT("join: cleared");
    for (int k = 0; k < GR_NAME_WORDS; k++) {
        uint64_t word;
        memcpy(&word, name + 8 * k, 8);
        gr_store_relaxed(&sub->name[k], word);
    }
    gr_store_relaxed(&sub->lost, 0);
    gr_store_relaxed(&sub->created_ns, (uint64_t)gr_now_ns());
    atomic_fetch_or_explicit(&ring->head->sub_mask, UINT64_C(1) << me->u, memory_order_seq_cst);
    GR_FAULT("join: masked");

    uint64_t f = gr_frontier(ring), oldest = f + 1 > 2 * n ? f + 1 - n : n;
    uint64_t s = from == GR_START_NEXT ? f : from == GR_START_OLDEST || start < oldest ? oldest : start;
    gr_store_sc(&sub->word, sub_word(s, me->policy, me->mode)); /* [edge J, joiner] partner: gr_claim's gate */
    GR_FAULT("join: announced");
    f = gr_frontier(ring);
    if (me->mode == GR_LOSSLESS && f + 1 > s + n) {
        s = f + 1 - n;
        gr_store_sc(&sub->word, sub_word(s, me->policy, me->mode));
    }
    GR_FAULT("join: announced again");
}

enum gr_result gr_join_consumer(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                                unsigned mode, unsigned policy, enum gr_start from,
                                uint64_t start, struct gr_peer *me) {
    memset(me, 0, sizeof *me);
    me->role = GR_CONSUMER;
    me->mode = mode;
    me->policy = policy;
    enum gr_result result = lock_to_join(ring);
    if (result != GR_OK) return result;

    uint32_t found = GR_NONE, unused = GR_NONE;
    for (uint32_t u = 0; u < ring->max_subscriptions; u++) {
        bool in_use = mode_of(gr_load_acquire(&ring->sub[u].word)) != GR_SUB_FREE;
        if (in_use && same_name(&ring->sub[u], name)) found = u;
        if (!in_use && unused == GR_NONE) unused = u;
    }
    me->u = found != GR_NONE ? found : unused;
    if (me->u == GR_NONE) result = GR_FULL_SUBS;
    else if (found != GR_NONE && sub_word(0, policy, mode) != (gr_load_acquire(&ring->sub[found].word) & 0xffff))
        result = GR_MODE_MISMATCH;
    else result = enter(ring, me);
    if (result == GR_OK) {
        if (found == GR_NONE) announce(ring, me, name, from, start);
        me->seen = gr_load_acquire(&ring->sub[me->u].redo);
        me->pos = me->high = start_of(gr_load_sc(&ring->sub[me->u].word));
        if (found != GR_NONE) { /* whatever was before us is the other members' business, not lost */
            uint64_t f = gr_frontier(ring), oldest = f > ring->slots ? f - ring->slots : 0;
            if (me->pos < oldest) me->pos = me->high = oldest;
        }
    }
    gr_unlock(ring);
    if (result == GR_OK) gr_ring_bell(ring); /* as a producer */
    return result;
}

/* ---- leave, close ------------------------------------------------------------------------------- */

void gr_stop(struct gr_peer *me, bool stop) {
    gr_store_sc(&me->stopping, stop);
    gr_ring_bell(me->ring);
}

/* Under LOCK: the entry is not this peer's any more. */
static bool is_gone(const struct gr_peer *me) {
    const struct gr_peer_entry *entry = &me->ring->peer[me->number];
    return state_of(gr_load_relaxed(&entry->word)) == GR_FREE || gr_load_relaxed(&entry->id) != me->id;
}

/* It was reaped, though we live: our byte was unlocked somehow.  Or another thread has left with it, too. */
static enum gr_result give_up(struct gr_peer *me) {
    if (!me->left) set_mine(me->ring, me->number, false);
    me->left = true;
    gr_unlock(me->ring);
    return GR_REAPED;
}

/* Until none of the peer's verbs is in progress.  [edge L, leaver] it is LEAVING by now, so none begins any more.  A verb
 * neither sleeps nor waits, so this takes microseconds, or as long as the scheduler keeps a thread waiting. */
static enum gr_result wait_for_verbs(const struct gr_peer *me) {
    int64_t deadline = gr_now_ns() + PATIENCE_NS;
    struct timespec nap = {.tv_nsec = 100 * 1000};
    for (int turns = 0; gr_load_sc(inside_of(me)) != 0; turns++) {
        if (turns < 100) gr_pause();
        else if (gr_now_ns() >= deadline) return GR_LOCK_TIMEOUT;
        else nanosleep(&nap, NULL);
    }
    return GR_OK;
}

/* The GPU has done what was promised: the caller sees to that.  What is still claimed or held is taken back, as a reaper
 * does it: the caller has ended all that he knows of, but a verb in another thread may have been faster than he.
 *
 * Two stages, so that a leaver who is killed before he rings is still reaped (D6).  Between them he waits for the verbs
 * that are in progress: theirs would be words that name a FREE entry, or the number's next owner (A7). */
enum gr_result gr_leave(struct gr_peer *me) {
    struct gr_ring *ring = me->ring;
    struct gr_peer_entry *entry = &ring->peer[me->number];
    uint64_t bit = UINT64_C(1) << me->number;
    if (me->left) return GR_REAPED;
    enum gr_result result = gr_lock(ring, PATIENCE_NS);
    if (result != GR_OK) return result;
    if (is_gone(me)) return give_up(me);
    if (state_of(gr_load_relaxed(&entry->word)) == GR_LIVE) { /* else an earlier call got this far */
        if (me->role == GR_PRODUCER) gr_count_producers(ring, me->number, GR_LEFT);
        else atomic_fetch_add_explicit(&ring->sub[me->u].redo, 1, memory_order_seq_cst);
        GR_FAULT("leave: counted");
        gr_store_sc(&entry->word, peer_word(GR_LEAVING, me->role, me->u)); /* [edge L, leaver] */
        GR_FAULT("leave: leaving");
        if (me->role == GR_CONSUMER && !gr_has_other_member(ring, me->u, me->number))
            gr_remove_subscription(ring, me->u);
    }
    gr_unlock(ring);
    GR_FAULT("leave: unlocked");
    gr_ring_bell(ring);
    result = wait_for_verbs(me);
    if (result != GR_OK) return result;

    result = gr_lock(ring, PATIENCE_NS);
    if (result != GR_OK) return result;
    if (is_gone(me)) return give_up(me);
    gr_take_back(ring, me->number, me->u);
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
    GR_FAULT("leave: freed");
    atomic_fetch_and_explicit(&ring->head->peer_mask, ~bit, memory_order_seq_cst);
    set_mine(ring, me->number, false);
    me->left = true;
    byte_lock(ring, F_UNLCK, (int)me->number);
    gr_unlock(ring);
    return GR_OK;
}

/* Claims that were past their look at `closed` void themselves (H9). */
enum gr_result gr_close(struct gr_ring *ring) {
    if (gr_forked(ring)) return GR_FORKED;
    gr_store_sc(&ring->head->closed, 1);
    GR_FAULT("close: closed");
    gr_ring_bell(ring);
    return GR_OK;
}

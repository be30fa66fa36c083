/* Membership: join, leave, reap, close.  Frame verbs never come here.
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
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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
static enum gr_result lock(struct gr_ring *ring, int64_t patience_ns) {
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
static void unlock(struct gr_ring *ring) {
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

/* ---- shared by join, leave and reap; all under LOCK ------------------------------------------- */

/* One word says whether the stream is over, so that no reader has to scan entries that change while he
 * scans.  It is stored before the entry of a leaver or a dead peer goes, after that of a joiner came. */
static void count_producers(struct gr_ring *ring, uint32_t without, enum gr_end how) {
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

static bool has_other_member(struct gr_ring *ring, uint32_t u, uint32_t p) {
    for (uint32_t q = 0; q < ring->max_peers; q++) {
        uint64_t word = gr_load_relaxed(&ring->peer[q].word);
        if (q != p && state_of(word) == GR_LIVE && role_of(word) == GR_CONSUMER && sub_of(word) == u)
            return true;
    }
    return false;
}

/* The mask bit goes after the word: set, it costs a look; missing, it would hide a reader. */
static void remove_subscription(struct gr_ring *ring, uint32_t u) {
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
    result = lock(ring, PATIENCE_NS);
    if (result == GR_OK && gr_load_sc(&ring->head->closed)) {
        unlock(ring);
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
    if (result == GR_OK) count_producers(ring, GR_NONE, GR_NOT_ENDED);
    unlock(ring);
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
    unlock(ring);
    return result;
}

/* ---- leave, reap, close ------------------------------------------------------------------------- */

void gr_stop(struct gr_peer *me, bool stop) {
    gr_store_sc(&me->stopping, stop);
    gr_ring_bell(me->ring);
}

/* Everything that was claimed or held has been finished and the GPU has done what was promised: the caller
 * sees to both.  Two stages, so that a leaver who is killed before he rings is still reaped (D6). */
enum gr_result gr_leave(struct gr_peer *me) {
    struct gr_ring *ring = me->ring;
    struct gr_peer_entry *entry = &ring->peer[me->number];
    uint64_t bit = UINT64_C(1) << me->number;
    if (me->left) return GR_REAPED;
    enum gr_result result = lock(ring, PATIENCE_NS);
    if (result != GR_OK) return result;
    if (gr_load_relaxed(&entry->id) != me->id || state_of(gr_load_relaxed(&entry->word)) == GR_FREE) {
        set_mine(ring, me->number, false); /* reaped, though we live: our byte was unlocked somehow */
        me->left = true;
        unlock(ring);
        return GR_REAPED;
    }
    if (state_of(gr_load_relaxed(&entry->word)) == GR_LIVE) { /* else an earlier call got this far */
        if (me->role == GR_PRODUCER) count_producers(ring, me->number, GR_LEFT);
        else atomic_fetch_add_explicit(&ring->sub[me->u].redo, 1, memory_order_seq_cst);
        GR_FAULT("leave: counted");
        gr_store_sc(&entry->word, peer_word(GR_LEAVING, me->role, me->u));
        GR_FAULT("leave: leaving");
        if (me->role == GR_CONSUMER && !has_other_member(ring, me->u, me->number))
            remove_subscription(ring, me->u);
    }
    unlock(ring);
    GR_FAULT("leave: unlocked");
    gr_ring_bell(ring);

    result = lock(ring, PATIENCE_NS);
    if (result != GR_OK) return result;
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
    GR_FAULT("leave: freed");
    atomic_fetch_and_explicit(&ring->head->peer_mask, ~bit, memory_order_seq_cst);
    set_mine(ring, me->number, false);
    me->left = true;
    byte_lock(ring, F_UNLCK, (int)me->number);
    unlock(ring);
    return GR_OK;
}

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

/* Under LOCK.  Idempotent up to its last store: whoever finds a half-done one does it again. */
static void clear_dead(struct gr_ring *ring, uint32_t p) {
    struct gr_head *head = ring->head;
    struct gr_peer_entry *entry = &ring->peer[p];
    uint64_t word = gr_load_relaxed(&entry->word), subs = sub_mask_of(ring);
    uint64_t voided = 0, torn = 0, reopened = 0, raised = 0;
    bool producer = role_of(word) == GR_PRODUCER;

    for (uint32_t i = 0; i < ring->slots; i++) {
        struct gr_slot *slot = &ring->slot[i];
        gr_word *fence = fence_of(ring, i, p);
        uint64_t promised = gr_load_acquire(work_of(ring, i, p)), reached = gr_load_acquire(fence);
        if (reached < promised) {
            /* Mark, then phase, then fence (G4): the raised fence lets streams go on, and the mark must be
             * there when they come to check.  Until the fence is raised all of it can be done again. */
            if (producer) {
                mark_torn(tear_of(ring, i, p), gr_load_relaxed(&entry->id), reached);
                torn += tear_ready(ring, slot, p, reached);
                GR_FAULT("reap: slot torn");
            }
            atomic_exchange_explicit(fence, promised, memory_order_seq_cst); /* never further (G3) */
            raised++;
            GR_FAULT("reap: fence raised");
        }
        uint64_t w = gr_load_sc(&slot->word);
        if (owner_of(w) == p && phase_of(w) == GR_WRITING)
            voided += gr_cas(&slot->word, w, claim_word(seq_of(w), GR_NONE, GR_VOID));
        GR_FAULT("reap: slot void");
        for (gr_each_bit(u, subs)) {
            struct gr_take *take = take_of(ring, i, u);
            uint64_t t = gr_load_sc(&take->word);
            bool drop = policy_of(gr_load_sc(&ring->sub[u].word)) == GR_DROP;
            if (owner_of(t) == p && phase_of(t) == GR_HELD)
                reopened += gr_cas(&take->word, t, claim_word(seq_of(t), GR_NONE, drop ? GR_DONE : GR_OPEN));
            GR_FAULT("reap: take open");
        }
    }
    /* Always, for the reaper before us may have died right here. */
    if (producer) count_producers(ring, p, state_of(word) == GR_LEAVING ? GR_LEFT : GR_DIED);
    else {
        uint32_t u = sub_of(word);
        if (u < ring->max_subscriptions) {
            atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
            GR_FAULT("reap: redo bumped");
            if (!has_other_member(ring, u, p)) remove_subscription(ring, u);
        }
    }
    /* [edge D] whoever was counted for it sleeps no more; a bit beyond the two comes from no build of ours */
    uint64_t waiting = atomic_exchange_explicit(&entry->waiting, 0, memory_order_seq_cst);
    uint32_t counted = (waiting & GR_SLEEPING ? 1u : 0u) + (waiting & GR_ARMED ? 1u : 0u);
    if (counted) atomic_fetch_sub_explicit(&head->waiters, counted, memory_order_seq_cst);
    GR_FAULT("reap: waiter uncounted");

    uint64_t number = gr_load_relaxed(&head->reaps);
    struct gr_death *death = &head->deaths[number % GR_DEATHS];
    gr_store_relaxed(&death->time_ns, (uint64_t)gr_now_ns());
    gr_store_relaxed(&death->pid, gr_load_relaxed(&entry->pid));
    gr_store_relaxed(&death->peer, word);
    gr_store_relaxed(&death->number, p);
    gr_store_relaxed(&death->voided, voided);
    gr_store_relaxed(&death->torn, torn);
    gr_store_relaxed(&death->reopened, reopened);
    gr_store_relaxed(&death->raised, raised);
    gr_store_sc(&head->reaps, number + 1);
    GR_FAULT("reap: recorded");
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
    GR_FAULT("reap: freed");
    atomic_fetch_and_explicit(&head->peer_mask, ~(UINT64_C(1) << p), memory_order_seq_cst);
}

static enum gr_result reap(struct gr_ring *ring, uint32_t p, int64_t patience_ns, bool *reaped) {
    *reaped = false;
    if (!is_dead(ring, p)) return GR_OK;
    enum gr_result result = lock(ring, patience_ns);
    if (result != GR_OK) return result;
    bool still = is_dead(ring, p); /* another reaper was here, and somebody joined with this number (A3) */
    if (still) clear_dead(ring, p);
    unlock(ring);
    if (still) gr_ring_bell(ring);
    *reaped = still;
    return GR_OK;
}

enum gr_result gr_reap(struct gr_ring *ring, uint32_t p, bool *reaped) {
    return reap(ring, p, PATIENCE_NS, reaped);
}

/* Clears whoever is dead.  Does not wait for LOCK: whoever has it may be doing the same. */
enum gr_result gr_reap_dead(struct gr_ring *ring, uint64_t *reaped) {
    if (reaped) *reaped = 0;
    if (gr_forked(ring)) return GR_FORKED;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        bool done;
        enum gr_result result = reap(ring, p, 0, &done);
        if (result == GR_LOCK_TIMEOUT) return GR_OK;
        if (result != GR_OK) return result;
        if (done && reaped) *reaped |= UINT64_C(1) << p;
    }
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

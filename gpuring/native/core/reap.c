/* Clears what peers leave behind: everything of a dead peer (reap), what a leaving peer still had,
 * and words that name a FREE entry, of which there should be none (orphans).
 *
 * All of it runs under LOCK and can be repeated. If a reaper is killed half-way, the entry is
 * still in use and its owner is still dead, so the next reaper does it again.
 */
#define _GNU_SOURCE
#include "reap.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "bell.h"
#include "exchange_socket.h"
#include "handles.h"
#include "lock.h"
#include "process.h"
#include "subscriptions.h"
#include "tear.h"

/* ---- who is dead ----------------------------------------------------------------------------- */

/* Whether a peer of a pinned ring uses the slots by the CPU alone. */
static bool uses_cpu(const struct gr_ring *ring, const struct gr_peer_entry *entry) {
    return ring->config.memory == GR_MEMORY_PINNED && gr_load_relaxed(&entry->gpu[0]) == 0 &&
           gr_load_relaxed(&entry->gpu[1]) == 0;
}

/* The peer's byte is unlocked. Whether its GPU work is gone, too, only a pidfd can tell. Within
 * one pid namespace everybody can get it. For a peer of another one this says yes only if that
 * peer has handed its pidfd over (exchange_message.c). */
static bool gpu_gone(struct gr_ring *ring, const struct gr_peer_entry *entry) {
    /* There is no GPU work then, and files are closed after the address space is gone. */
    if (ring->config.memory == GR_MEMORY_HOST) return true;
    if (uses_cpu(ring, entry)) return true;
    if (gr_load_acquire(&entry->pidns) != ring->pidns)
        /* Partner: look_after (watchdog.c). A stale value costs another look. */
        return gr_load_acquire(&ring->exited[entry - ring->peer]) ==
               gr_load_relaxed(&entry->id);
    pid_t pid = (pid_t)gr_load_acquire(&entry->pid);
    char state = 0;
    int fd = gr_pidfd(pid);
    if (fd < 0 && (errno == ESRCH || errno == EINVAL)) return true;
    /* A later process may have the same pid. The start time tells, where /proc shows it. */
    uint64_t start = gr_process_start(pid, &state), joined = gr_load_acquire(&entry->start);
    bool gone = start && joined && start != joined;
    /* An old kernel, or no descriptor was left. */
    if (fd < 0) return gone || state == 'Z' || state == 'X';
    struct pollfd exited = {.fd = fd, .events = POLLIN};
    if (!gone) gone = poll(&exited, 1, 0) == 1;
    close(fd);
    return gone;
}

/* Outside of LOCK this is a guess: another reaper may be faster, so reap asks again (A3). */
static bool is_dead(struct gr_ring *ring, uint32_t p) {
    return state_of(gr_load_acquire(&ring->peer[p].word)) != GR_FREE && !gr_peer_alive(ring, p) &&
           gpu_gone(ring, &ring->peer[p]);
}

/* ---- torn frames ----------------------------------------------------------------------------- */

/* Under LOCK. Turns the READY frame of p in this slot TORN if its GPU work was not finished.
 * Returns 1 if there is such a frame. The slot's word names the last frame only; earlier ones are
 * known by the mark (G5). With events the word stays, because nobody raises a fence when an event
 * is complete: only a reader that acquires the frame, and asks the event, can tell. */
static uint64_t tear_ready(struct gr_ring *ring, struct gr_slot *slot, uint32_t p,
                           uint64_t reached) {
    uint64_t w = gr_load_sc(&slot->word);
    if (owner_of(w) != p || phase_of(w) != GR_READY || gr_load_relaxed(&slot->fence) <= reached)
        return 0;
    return ring->config.sync == GR_SYNC_EVENT ||
           gr_cas(&slot->word, w, claim_word(seq_of(w), p, GR_TORN));
}

/* ---- words that name a peer ------------------------------------------------------------------ */

/* Makes a claim void. The CAS fails if the owner, taken for dead while it lives, was faster. After
 * this and open_again the caller rings the bell (edge D). */
static uint64_t put_down(struct gr_slot *slot, uint64_t w) {
    return gr_cas(&slot->word, w, claim_word(seq_of(w), GR_NONE, GR_VOID));
}

/* A frame that was held goes back to its subscription, or is dropped. The caller has to raise
 * `redo` afterwards. */
static uint64_t open_again(struct gr_ring *ring, struct gr_take *take, uint64_t u, uint64_t t) {
    bool drop = policy_of(gr_load_sc(&ring->sub[u].word)) & GR_DROP;
    return gr_cas(&take->word, t, claim_word(seq_of(t), GR_NONE, drop ? GR_DONE : GR_OPEN));
}

struct cleared {
    uint64_t voided, reopened;
};

static uint64_t clear_take(struct gr_ring *ring, uint32_t p, uint32_t i, uint64_t u) {
    struct gr_take *take = take_of(ring, i, u);
    uint64_t t = gr_load_sc(&take->word);
    bool held = owner_of(t) == p && phase_of(t) == GR_HELD;
    uint64_t reopened = held ? open_again(ring, take, u, t) : 0;
    GR_FAULT("reap: take open");
    return reopened;
}

/* own: the peer's subscription. GR_NONE for a producer. */
static struct cleared clear_words(struct gr_ring *ring, uint32_t p, uint32_t own) {
    struct cleared cleared = {0, 0};
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t w = gr_load_sc(&ring->slot[i].word);
        if (owner_of(w) == p && phase_of(w) == GR_WRITING)
            cleared.voided += put_down(&ring->slot[i], w);
        GR_FAULT("reap: slot void");
        gr_each_sub(u, ring) cleared.reopened += clear_take(ring, p, i, u);
        /* Its bit may be cleared already. */
        if (own < ring->max_subscriptions) cleared.reopened += clear_take(ring, p, i, own);
    }
    return cleared;
}

/* Takes the peer out of `waiters`, so that a dead or leaving sleeper costs no more system calls
 * (edge D: the count may be too high, never too low). Partner: gr_announce and gr_withdraw, which
 * go by the same mark. A bit beyond the two comes from no build of ours. */
static void uncount(struct gr_ring *ring, struct gr_peer_entry *entry) {
    uint64_t waiting = atomic_exchange_explicit(&entry->waiting, 0, memory_order_seq_cst);
    uint32_t counted = (waiting & GR_SLEEPING ? 1u : 0u) + (waiting & GR_ARMED ? 1u : 0u);
    if (counted) atomic_fetch_sub_explicit(&ring->head->waiters, counted, memory_order_seq_cst);
}

/* Takes back what a LEAVING peer still has, because a verb in another thread got it just before
 * (A10). None of its verbs is in progress any more. If this process is killed here, a reaper goes
 * on. */
void gr_take_back(struct gr_ring *ring, uint32_t p, uint32_t u) {
    struct cleared cleared = clear_words(ring, p, u);
    if (cleared.reopened && u != GR_NONE)
        atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
    uncount(ring, &ring->peer[p]);
    GR_FAULT("leave: taken back");
    if (cleared.voided || cleared.reopened) gr_ring_bell(ring);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* Whether a word says WRITING or HELD although its owner's entry is FREE or cannot exist. Peers
 * leave no such word behind. But a peer may be taken for dead while it lives, if its process
 * closed the descriptor of its locks. If it was past the check of its own entry at that moment, it
 * swaps after it was cleared (A8). Outside of LOCK this is a guess. */
static bool is_orphan(const struct gr_ring *ring, uint64_t word, unsigned phase) {
    if (phase_of(word) != phase) return false;
    return owner_of(word) >= ring->max_peers ||
           state_of(gr_load_sc(&ring->peer[owner_of(word)].word)) == GR_FREE;
}

static bool has_orphans(const struct gr_ring *ring) {
    for (uint32_t i = 0; i < ring->slots; i++) {
        if (is_orphan(ring, gr_load_sc(&ring->slot[i].word), GR_WRITING)) return true;
        gr_each_sub(u, ring)
            if (is_orphan(ring, gr_load_sc(&take_of(ring, i, u)->word), GR_HELD)) return true;
    }
    return false;
}

/* Opens an orphan's frame again. Its owner's entry is in use meanwhile; if this process is killed
 * before it raises `redo`, a reaper clears that entry and raises it (A11). */
static void adopt(struct gr_ring *ring, uint32_t i, uint64_t u, uint64_t t) {
    const bool known = owner_of(t) < ring->max_peers;
    if (known)
        gr_store_sc(&ring->peer[owner_of(t)].word, peer_word(GR_LEAVING, GR_CONSUMER, (unsigned)u));
    open_again(ring, take_of(ring, i, u), u, t);
    atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
    if (known) gr_store_sc(&ring->peer[owner_of(t)].word, peer_word(GR_FREE, 0, 0));
}

/* No fence is raised here, because the process whose work it is may live. If this process is
 * killed before the bell, sleepers find out at the end of their slice. That is good enough, since
 * no peer that follows the protocol leaves an orphan. */
void gr_clear_orphans(struct gr_ring *ring) {
    bool any = false;
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t w = gr_load_sc(&ring->slot[i].word);
        if (is_orphan(ring, w, GR_WRITING)) any = true, put_down(&ring->slot[i], w);
        gr_each_sub(u, ring) {
            uint64_t t = gr_load_sc(&take_of(ring, i, u)->word);
            if (is_orphan(ring, t, GR_HELD)) any = true, adopt(ring, i, u, t);
        }
    }
    if (any) gr_ring_bell(ring);
}

/* ---- the dead -------------------------------------------------------------------------------- */

/* Everything up to the last store can be repeated: a reaper that finds a half-cleared entry clears
 * it again. */
static void clear_dead(struct gr_ring *ring, uint32_t p) {
    struct gr_head *head = ring->head;
    struct gr_peer_entry *entry = &ring->peer[p];
    uint64_t word = gr_load_relaxed(&entry->word), torn = 0, raised = 0;
    bool producer = role_of(word) == GR_PRODUCER;

    for (uint32_t i = 0; i < ring->slots; i++) {
        gr_word *fence = fence_of(ring, i, p);
        uint64_t promised = gr_load_acquire(work_of(ring, i, p)), reached = gr_load_acquire(fence);
        if (reached >= promised) continue;
        /* First the mark, then the phase, then the fence (G4). The raised fence lets streams go
         * on, and the mark must be there when their readers check. Until the fence is raised, all
         * of this can be repeated. */
        if (producer) {
            gr_mark_torn(tear_of(ring, i, p), gr_load_relaxed(&entry->id), reached);
            torn += tear_ready(ring, &ring->slot[i], p, reached);
            GR_FAULT("reap: slot torn");
        }
        /* Never beyond the promise, because the number's next owner uses higher values (G3). sc
         * carries the mark; partner: gr_torn's callers, which load the fence with acquire. */
        atomic_exchange_explicit(fence, promised, memory_order_seq_cst);
        raised++;
        GR_FAULT("reap: fence raised");
    }
    struct cleared cleared = clear_words(ring, p, producer ? (uint32_t)GR_NONE : sub_of(word));
    if (!producer) {
        /* Always, even with nothing counted above: an earlier reaper may have died right here. */
        uint32_t u = sub_of(word);
        if (u < ring->max_subscriptions) {
            atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);
            GR_FAULT("reap: redo bumped");
            if (!gr_has_other_member(ring, u, p)) gr_lose_last_member(ring, u);
        }
    }
    uncount(ring, entry);
    GR_FAULT("reap: waiter uncounted");
    if (ring->config.memory != GR_MEMORY_HOST) gr_remove_stale(ring, entry); /* else it had none */
    GR_FAULT("reap: socket removed");

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
    for (int k = 0; k < GR_LABEL_WORDS; k++)
        gr_store_relaxed(&death->label[k], gr_load_relaxed(&entry->label[k]));
    /* Carries the marks and the fences above; partner: somebody_died (device/released.c). */
    gr_store_sc(&head->reaps, number + 1);
    GR_FAULT("reap: recorded");
    /* After the record: readers that get the end of the stream look there for who has died (E10). A
     * producer that was leaving counted itself before its entry was LEAVING, and that count stays. */
    if (producer) gr_count_producers(ring, p, GR_DIED);
    /* Before the entry is FREE: if we are killed here, the next reaper rings (D12: a FREE entry is
     * not reaped, so nobody would ring). */
    gr_ring_bell(ring);
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
    GR_FAULT("reap: freed");
    atomic_fetch_and_explicit(&head->peer_mask[p / 64], ~bit_of(p), memory_order_seq_cst);
}

static enum gr_result reap(struct gr_ring *ring, uint32_t p, bool *reaped) {
    *reaped = false;
    if (!is_dead(ring, p)) return GR_OK;
    enum gr_result result = gr_lock(ring, 0);
    if (result != GR_OK) return result;
    /* Asked again under LOCK: another reaper may have cleared it, and a newcomer may have the
     * number (A3). */
    *reaped = is_dead(ring, p);
    if (*reaped) clear_dead(ring, p);
    gr_unlock(ring);
    return GR_OK;
}

/* For a producer that leaves, before it counts itself: whoever is counted last says how the stream
 * ended (E9). On a GPU ring a death counts from when the process is gone. */
void gr_clear_dead_producers(struct gr_ring *ring) {
    for (uint32_t p = 0; p < ring->max_peers; p++)
        if (role_of(gr_load_acquire(&ring->peer[p].word)) == GR_PRODUCER && is_dead(ring, p))
            clear_dead(ring, p);
}

static enum gr_result reap_orphans(struct gr_ring *ring) {
    if (!has_orphans(ring)) return GR_OK;
    enum gr_result result = gr_lock(ring, 0);
    if (result != GR_OK) return result;
    gr_clear_orphans(ring);
    gr_unlock(ring);
    return GR_OK;
}

/* For a verb that finds this peer in its way. Clears the peer if it is dead, or what it
 * orphaned. */
void gr_reap_one(struct gr_ring *ring, uint32_t p) {
    bool done;
    if (gr_forked(ring)) return;
    if (state_of(gr_load_acquire(&ring->peer[p].word)) == GR_FREE) reap_orphans(ring);
    else reap(ring, p, &done);
}

/* Clears all dead peers and all orphans, and gives up the subscriptions to which nobody has come
 * back. It does not wait for LOCK, because its holder may be doing the same. */
enum gr_result gr_reap_dead(struct gr_ring *ring, uint64_t reaped[GR_MASK_WORDS]) {
    if (reaped) memset(reaped, 0, GR_MASK_WORDS * sizeof *reaped);
    if (gr_forked(ring)) return GR_FORKED;
    enum gr_result result = GR_OK;
    for (uint32_t p = 0; p < ring->max_peers && result == GR_OK; p++) {
        bool done;
        result = reap(ring, p, &done);
        if (done && reaped) reaped[p / 64] |= bit_of(p);
    }
    if (result == GR_OK) result = reap_orphans(ring);
    if (result == GR_OK) gr_give_up_late(ring);
    return result == GR_LOCK_TIMEOUT ? GR_OK : result;
}

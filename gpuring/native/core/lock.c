/* LOCK, the locked bytes that say who lives, and what is counted under LOCK.
 *
 * LOCK is an OFD write lock on a reserved byte of the header's file. The kernel drops it when its
 * holder dies, so there is no owner word and nothing to steal. Under it every step leaves words
 * from which the next holder can go on. If a reaper is killed half-way, the next one repeats its
 * work: each step can be repeated, and "entry FREE" is the last store.
 *
 * Each peer holds another OFD lock while it lives: peer p locks byte p, through a description that
 * is never mapped. The kernel drops that lock a little before the dead process's GPU work is gone.
 * So on a GPU ring nothing of a dead peer is cleared before its pidfd says that the process is
 * gone altogether (G1: the slot was given to the next writer, and two GPU writes overlapped).
 */
#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include "bell.h"
#include "handles.h"

/* ---- locks ----------------------------------------------------------------------------------- */

int gr_lock_byte(int lock_fd, short type, int byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(lock_fd, F_OFD_SETLK, &lock);
}

/* Locks that this handle holds itself are not reported: callers know their own (ring->mine). */
static bool byte_locked(struct gr_ring *ring, int byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(ring->lock_fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* patience_ns 0 tries once. A healthy holder keeps LOCK for microseconds, a stopped one for
 * ever. */
enum gr_result gr_lock(struct gr_ring *ring, int64_t patience_ns) {
    if (gr_forked(ring)) return GR_FORKED;
    int64_t deadline = gr_now_ns() + patience_ns;
    struct timespec nap = {.tv_nsec = 100 * 1000};
    bool mutexed = false;
    for (;;) {
        if (!mutexed) mutexed = pthread_mutex_trylock(&ring->mutex) == 0;
        if (mutexed) {
            if (gr_lock_byte(ring->lock_fd, F_WRLCK, GR_LOCK_BYTE) == 0) return GR_OK;
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
bool gr_masks_cover(const struct gr_ring *ring) {
    const struct gr_head *head = ring->head;
    for (uint32_t p = 0; p < ring->max_peers; p++)
        if (state_of(gr_load_acquire(&ring->peer[p].word)) != GR_FREE &&
            !(gr_load_acquire(&head->peer_mask[p / 64]) & bit_of(p)))
            return false;
    for (uint32_t u = 0; u < ring->max_subscriptions; u++)
        if (mode_of(gr_load_acquire(&ring->sub[u].word)) != GR_SUB_FREE &&
            !(gr_load_acquire(&head->sub_mask[u / 64]) & bit_of(u)))
            return false;
    return true;
}

void gr_unlock(struct gr_ring *ring) {
    GR_ASSERT(gr_masks_cover(ring));
    gr_lock_byte(ring->lock_fd, F_UNLCK, GR_LOCK_BYTE);
    pthread_mutex_unlock(&ring->mutex);
}

/* ---- who is alive ---------------------------------------------------------------------------- */

/* The id is set before the entry is LIVE, and cleared after it is FREE. So another thread of this
 * process that sees the entry LIVE also sees the id: release; partner: gr_is_ours. Without it that
 * thread would take this peer for dead, because F_OFD_GETLK does not report one's own locks (A6).
 * A leave at that very moment is noticed under LOCK (A3: death is checked again there). */
void gr_set_mine(struct gr_ring *ring, uint32_t p, uint64_t id) {
    gr_store_release(&ring->mine[p], id);
}

bool gr_peer_alive(struct gr_ring *ring, uint32_t p) {
    return gr_is_ours(ring, p) || byte_locked(ring, (int)p);
}

bool gr_is_creator(const struct gr_ring *ring) {
    const struct gr_head *head = ring->head;
    return head->creator_pid == ring->pid && head->creator_start == ring->start &&
           head->creator_pidns == ring->pidns;
}

bool gr_creator_alive(struct gr_ring *ring) {
    return gr_is_creator(ring) || byte_locked(ring, GR_CREATOR_BYTE);
}

bool gr_attached(struct gr_ring *ring) { return byte_locked(ring, GR_ATTACHED_BYTE); }

/* ---- counters, all under LOCK ---------------------------------------------------------------- */

enum { ENDS_ID = 40, ENDS_MAX = GR_MAX_PRODUCERS }; /* gr_peer_entry.ends */
static uint64_t left_by(uint64_t ends) { return ends >> 12 & ENDS_MAX; }
static uint64_t died_by(uint64_t ends) { return ends & ENDS_MAX; }

/* Notes in a producer's entry how it ended. A reaper that is killed leaves this to the next one, so
 * it must not count twice: the word that counts also names who was counted last (E7: two reapers
 * counted one death, and a stream of two producers ended while the other one was still to come).
 * False: it was counted before. */
static bool note_end(struct gr_peer_entry *entry, enum gr_end how) {
    const uint64_t ends = gr_load_relaxed(&entry->ends), id = gr_load_relaxed(&entry->id);
    uint64_t left = left_by(ends), died = died_by(ends);
    if (ends >> (64 - ENDS_ID) == (id & ((UINT64_C(1) << ENDS_ID) - 1))) return false;
    left += how == GR_LEFT && left < ENDS_MAX;
    died += how == GR_DIED && died < ENDS_MAX;
    gr_store_relaxed(&entry->ends, id << (64 - ENDS_ID) | left << 12 | died);
    GR_FAULT("producers: end noted");
    return true;
}

/* Stores what readers ask about producers in one word, so that none of them has to scan entries
 * that change meanwhile (E3: a scan found no producer though there was always one). It is stored
 * before a leaver's or a dead peer's entry is cleared, and after a joiner's entry is LIVE. Partner:
 * end_of_stream. */
void gr_count_producers(struct gr_ring *ring, uint32_t without, enum gr_end how) {
    uint64_t live = 0, left = 0, died = 0;
    const uint64_t before = gr_load_relaxed(&ring->head->producers);
    const bool counted = how != GR_NOT_ENDED && !note_end(&ring->peer[without], how);
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        const uint64_t word = gr_load_relaxed(&ring->peer[p].word);
        const uint64_t ends = gr_load_relaxed(&ring->peer[p].ends);
        live += p != without && state_of(word) == GR_LIVE && role_of(word) == GR_PRODUCER;
        left += left_by(ends);
        died += died_by(ends);
    }
    /* A peer that left and was killed before its entry was free is reaped, maybe after others have
     * gone. It is not the last one (E8: the last producer had died, and readers were told that the
     * stream had ended). If the counts are not in the word yet, a reaper was killed before it stored
     * them. */
    if (counted && left == left_of(before) && died == died_of(before)) how = end_of(before);
    gr_store_sc(&ring->head->producers, producers_word(died, left, live, how));
    GR_FAULT("producers counted");
}

bool gr_has_other_member(struct gr_ring *ring, uint32_t u, uint32_t p) {
    for (uint32_t q = 0; q < ring->max_peers; q++) {
        uint64_t word = gr_load_relaxed(&ring->peer[q].word);
        if (q != p && state_of(word) == GR_LIVE && role_of(word) == GR_CONSUMER &&
            sub_of(word) == u)
            return true;
    }
    return false;
}

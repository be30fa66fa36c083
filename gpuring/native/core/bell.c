/* The clock and the doorbell, for everything that changes a ring or waits for a change.
 *
 * A sleeper announces itself in `waiters`, reads the bell, looks at the ring, and only then sleeps
 * on that bell value. A waker makes its change, then looks for waiters, then rings. All of these
 * are sc accesses, so no wake-up is lost (edge D, docs/holes.md). The sleepers are in wait.c and
 * notify.c.
 */
#define _GNU_SOURCE
#include "bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
int64_t gr_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
int64_t gr_now_coarse_ns(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }

/* Call it after the change. [edge D, waker] partner: gr_announce. The change was an sc access, so
 * the load of `waiters` cannot pass it. A stale 0 would leave a sleeper asleep: it would have
 * looked before the change, and announced itself after this load, which sc forbids. */
void gr_ring_bell(struct gr_ring *ring) { gr_ring_bell_of(ring->head); }
void gr_ring_bell_of(struct gr_head *head) {
    if (atomic_load_explicit(&head->waiters, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&head->bell, 1, memory_order_seq_cst);
    GR_FAULT("bell: rung");
    syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Counts the sleeper in `waiters`, then marks that in its entry; gr_withdraw undoes both in the
 * other order. A kill in between leaves `waiters` too high by one, which costs a system call per
 * ring, and never too low. A reaper takes back what is marked.
 *
 * [edge D, sleeper] the count comes before the bell is read and before the look; partner:
 * gr_ring_bell. A peer that has left or was reaped is not counted. It does not sleep either,
 * because its look fails.
 */
void gr_announce(const struct gr_peer *me, uint64_t bit) {
    if (gr_begin(me) != GR_OK) return;
    atomic_fetch_add_explicit(&me->ring->head->waiters, 1, memory_order_seq_cst);
    GR_FAULT("sleep: counted");
    /* sc like its clearing: our notifier's thread and a reaper write peer.waiting, too */
    atomic_fetch_or_explicit(&me->ring->peer[me->self.number].waiting, bit, memory_order_seq_cst);
    GR_FAULT("sleep: marked");
    gr_end(me);
}

/* The mark says whether the count is still ours. A reaper that took us for dead, and our own
 * leave, take both back; if we took the count back again, some sleeper would not be woken (edge
 * D). */
void gr_withdraw(const struct gr_peer *me, uint64_t bit) {
    if (gr_begin(me) != GR_OK) return;
    gr_word *waiting = &me->ring->peer[me->self.number].waiting;
    if (atomic_fetch_and_explicit(waiting, ~bit, memory_order_seq_cst) & bit) {
        GR_FAULT("sleep: unmarked");
        atomic_fetch_sub_explicit(&me->ring->head->waiters, 1, memory_order_seq_cst);
    }
    gr_end(me);
}

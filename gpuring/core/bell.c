/* The clock and the doorbell: what everybody may use who changes a ring, or waits for a change.
 *
 * A sleeper announces itself (waiters), reads the bell, looks, and only then sleeps on that bell value;
 * a waker changes, then looks for waiters, then rings.  Both pairs are sc (edge D: no lost wake-up; docs/holes.md).
 * The sleepers are in wait.c and notify.c.
 */
#define _GNU_SOURCE
#include "ring.h"

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

/* Call after the change.  [edge D, waker] partner: gr_sleep.  The change before it was an sc access, so
 * the load of waiters cannot pass it; a stale 0 would need a sleeper whose look came before the change
 * and whose announcement came after this load, which sc forbids. */
void gr_ring_bell(struct gr_ring *ring) {
    struct gr_head *head = ring->head;
    if (atomic_load_explicit(&head->waiters, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&head->bell, 1, memory_order_seq_cst);
    GR_FAULT("bell: rung");
    syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Counted first, marked second, and undone the other way round: killed in between, waiters is too high by
 * one (a system call per ring), never too low.  A reaper takes back what is marked.
 * [edge D, sleeper] the count comes before the bell and the look; partner: gr_ring_bell.
 * Who is not himself any more is not counted, and does not sleep: his look says so. */
void gr_announce(const struct gr_peer *me, uint64_t bit) {
    if (gr_begin(me) != GR_OK) return;
    atomic_fetch_add_explicit(&me->ring->head->waiters, 1, memory_order_seq_cst);
    GR_FAULT("sleep: counted");
    /* sc like its clearing: peer.waiting is shared with our notifier's thread and with a reaper */
    atomic_fetch_or_explicit(&me->ring->peer[me->number].waiting, bit, memory_order_seq_cst);
    GR_FAULT("sleep: marked");
    gr_end(me);
}

/* The mark says whether the count is still ours: a reaper that took us for dead, or our own leave, has taken both
 * back, and one too few would leave somebody asleep. */
void gr_withdraw(const struct gr_peer *me, uint64_t bit) {
    if (gr_begin(me) != GR_OK) return;
    if (atomic_fetch_and_explicit(&me->ring->peer[me->number].waiting, ~bit, memory_order_seq_cst) & bit) {
        GR_FAULT("sleep: unmarked");
        atomic_fetch_sub_explicit(&me->ring->head->waiters, 1, memory_order_seq_cst);
    }
    gr_end(me);
}

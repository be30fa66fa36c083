/* Waiting: a short adaptive spin, then a futex; the doorbell; waiting for a fence on the host.
 *
 * A sleeper announces itself (waiters), reads the bell, looks, and only then sleeps on that bell value;
 * a waker changes, then looks for waiters, then rings.  Both pairs are sc (Edge D, docs/protocol.md).
 * No sleep is longer than a slice, so whatever went wrong elsewhere (a stopped waker, a close by a
 * process without an entry) costs a slice and not a hang.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
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

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Call after the change.  [edge D, waker] partner: gr_sleep.  The change before it was an sc access, so
 * the load of waiters cannot pass it; a stale 0 would need a sleeper whose look came before the change
 * and whose announcement came after this load, which sc forbids. */
void gr_ring_bell(struct gr_ring *ring) {
    struct gr_head *head = ring->head;
    if (atomic_load_explicit(&head->waiters, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&head->bell, 1, memory_order_seq_cst);
    FAULT("bell: rung");
    syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* How long to spin next time: long if a spin of GR_SPIN_MAX_NS would have been enough, whether or not this
 * one was (a wake-up costs a system call on the other side), short if it would have been in vain. */
static void learn(struct gr_peer *me, int64_t now) {
    if (now - me->wait_ns < GR_SPIN_MAX_NS + GR_WAKE_NS)
        me->spin_ns = me->spin_ns * 2 < GR_SPIN_MAX_NS ? me->spin_ns * 2 : GR_SPIN_MAX_NS;
    else
        me->spin_ns = me->spin_ns / 2 > GR_SPIN_MIN_NS ? me->spin_ns / 2 : GR_SPIN_MIN_NS;
}

enum gr_result gr_spin(struct gr_peer *me, gr_verb verb) {
    int64_t now = gr_now_ns(), until = now + me->spin_ns;
    me->wait_ns = now;
    if (until > me->deadline_ns) until = me->deadline_ns;
    while (now < until) {
        for (int k = 0; k < 4; k++) pause_cpu();
        enum gr_result result = verb(me);
        now = gr_now_ns();
        if (result != GR_BLOCKED) {
            learn(me, now);
            return result;
        }
    }
    return GR_BLOCKED;
}

/* Returns what the verb returned, GR_BLOCKED at the deadline, or GR_SIGNAL after a slice or a signal. */
enum gr_result gr_sleep(struct gr_peer *me, gr_verb verb) {
    struct gr_head *head = me->ring->head;
    struct gr_peer_entry *entry = &me->ring->peer[me->number];
    int64_t now = gr_now_ns(), slice_end = now + GR_SLICE_NS;
    if (slice_end > me->deadline_ns) slice_end = me->deadline_ns;
    enum gr_result result;
    bool signalled = false;

    /* Counted first, marked second, and undone the other way round: killed in between, waiters is too
     * high by one (a system call per ring), never too low.  A reaper takes back what is marked. */
    atomic_fetch_add_explicit(&head->waiters, 1, memory_order_seq_cst); /* [edge D, sleeper] */
    FAULT("sleep: counted");
    store_relaxed(&entry->waiting, 1);
    FAULT("sleep: marked");
    for (;;) {
        uint32_t bell = atomic_load_explicit(&head->bell, memory_order_seq_cst); /* before the look */
        result = verb(me);
        if (result != GR_BLOCKED || signalled) break;
        now = gr_now_ns();
        if (now >= slice_end) break;
        struct timespec rest = {.tv_sec = (slice_end - now) / 1000000000,
                                .tv_nsec = (slice_end - now) % 1000000000};
        signalled = syscall(SYS_futex, &head->bell, FUTEX_WAIT, bell, &rest, NULL, 0) != 0 && errno == EINTR;
    }
    store_relaxed(&entry->waiting, 0);
    FAULT("sleep: unmarked");
    atomic_fetch_sub_explicit(&head->waiters, 1, memory_order_seq_cst);

    learn(me, gr_now_ns());
    if (result != GR_BLOCKED) return result;
    if (signalled) return GR_SIGNAL;
    if (slice_end == me->deadline_ns) return GR_BLOCKED;
    /* A whole slice without progress: whoever is in the way may be dead.  The watchdog knows sooner,
     * where there is one. */
    gr_reap_dead(me->ring, NULL);
    return GR_SIGNAL;
}

/* Host gate: waits until fence[peer][index] >= value.  The word is written by a GPU or by whoever saw
 * the peer's event complete, so there is nothing to sleep on: spin, then nap.  One slice at the most. */
enum gr_result gr_wait_fence(struct gr_peer *me, uint32_t peer, uint32_t index, uint64_t value) {
    const gr_word *fence = fence_of(me->ring, index, peer);
    int64_t start = gr_now_ns(), now = start;
    while (load_acquire((gr_word *)fence) < value) {
        now = gr_now_ns();
        if (now >= me->deadline_ns) return GR_BLOCKED;
        if (now - start > GR_SLICE_NS) {
            gr_reap_dead(me->ring, NULL);
            return GR_SIGNAL;
        }
        if (now - start < GR_FENCE_SPIN_NS) {
            for (int k = 0; k < 16; k++) pause_cpu();
        } else {
            struct timespec nap = {.tv_nsec = 20 * 1000};
            if (nanosleep(&nap, NULL) != 0) return GR_SIGNAL;
        }
    }
    return GR_OK;
}

/* Stream gate, timeline: whether fence[peer][index] >= value comes in a moment, so that no wait need be put
 * into the stream.  A GPU that finds a wait pending takes longer to go on than a host that sees the word
 * change.  It looks only while our own last work is still to be done: then the stream has no use for the
 * wait yet, and nothing is later for it.  A look in vain makes it blind for a while (fences that take a
 * switch of contexts, or real work). */
bool gr_soon(struct gr_peer *me, uint32_t peer, uint32_t index, uint64_t value) {
    gr_word *fence = fence_of(me->ring, index, peer), *own = fence_of(me->ring, me->last_index, me->number);
    if (me->blind > 0) {
        me->blind--;
        return false;
    }
    const int64_t until = gr_now_ns() + GR_PATIENCE_NS;
    do {
        if (load_acquire(fence) >= value) {
            me->backoff = 0;
            return true;
        }
        if (load_acquire(own) >= me->last_value) return false;
        for (int k = 0; k < 4; k++) pause_cpu();
    } while (gr_now_ns() < until);
    me->backoff = me->backoff < 128 ? 2 * me->backoff + 1 : me->backoff;
    me->blind = me->backoff;
    return false;
}

/* Waiting: a short adaptive spin, then a futex; the doorbell; waiting for a fence on the host.
 *
 * A sleeper announces itself (waiters), reads the bell, looks, and only then sleeps on that bell value;
 * a waker changes, then looks for waiters, then rings.  Both pairs are sc (Edge D, docs/protocol.md).
 * Who sleeps at several rings does so at each: announced everywhere, every bell read, then every look,
 * then one sleep on all those values.
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

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same on every architecture */
#endif

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
    GR_FAULT("bell: rung");
    syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Counted first, marked second, and undone the other way round: killed in between, waiters is too high by
 * one (a system call per ring), never too low.  A reaper takes back what is marked.
 * [edge D, sleeper] the count comes before the bell and the look; partner: gr_ring_bell. */
void gr_announce(const struct gr_peer *me, uint64_t bit) {
    atomic_fetch_add_explicit(&me->ring->head->waiters, 1, memory_order_seq_cst);
    GR_FAULT("sleep: counted");
    /* sc like its clearing: peer.waiting is shared with our notifier's thread and with a reaper */
    atomic_fetch_or_explicit(&me->ring->peer[me->number].waiting, bit, memory_order_seq_cst);
    GR_FAULT("sleep: marked");
}

/* The mark says whether the count is still ours: a reaper that took us for dead has taken both back, and
 * one too few would leave somebody asleep. */
void gr_withdraw(const struct gr_peer *me, uint64_t bit) {
    gr_word *waiting = &me->ring->peer[me->number].waiting;
    if (!is_mine(me)) return;
    if (!(atomic_fetch_and_explicit(waiting, ~bit, memory_order_seq_cst) & bit)) return;
    GR_FAULT("sleep: unmarked");
    atomic_fetch_sub_explicit(&me->ring->head->waiters, 1, memory_order_seq_cst);
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
    int64_t now = gr_now_ns(), slice_end = now + GR_SLICE_NS;
    if (slice_end > me->deadline_ns) slice_end = me->deadline_ns;
    enum gr_result result;
    bool signalled = false;

    gr_announce(me, GR_SLEEPING);
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
    gr_withdraw(me, GR_SLEEPING);

    learn(me, gr_now_ns());
    if (result != GR_BLOCKED) return result;
    if (signalled) return GR_SIGNAL;
    if (slice_end == me->deadline_ns) return GR_BLOCKED;
    /* A whole slice without progress: whoever is in the way may be dead.  The watchdog knows sooner,
     * where there is one. */
    gr_reap_dead(me->ring, NULL);
    return GR_SIGNAL;
}

/* ---- several bells ---------------------------------------------------------------------------- */

/* False: a bell moved, the time is up, or nobody knows: look again.  True: so, and a signal came.
 *
 * Before Linux 5.16, and under a seccomp filter that does not know futex_waitv, this sleeps at the first
 * bell only, and not longer than a nap when there are others. */
bool gr_wait_bells(struct gr_waited *waited, uint32_t n, int64_t until_ns) {
    static _Atomic bool missing; /* relaxed: who does not see it yet asks the kernel himself */
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    bool for_ever = until_ns == INT64_MAX;
    if (!gr_load_relaxed(&missing)) {
        if (syscall(SYS_futex_waitv, waited, n, 0, for_ever ? NULL : &until, CLOCK_MONOTONIC) >= 0) return false;
        if (errno == EINTR) return true;
        if (errno == EAGAIN || errno == ETIMEDOUT || errno == EFAULT) return false; /* EFAULT: notify.c */
        if (errno == ENOSYS || errno == EPERM) gr_store_relaxed(&missing, true); /* else (no memory) this time only */
    }
    int64_t now = gr_now_ns(), rest_ns = for_ever ? INT64_MAX : until_ns - now;
    if (n > 1 && rest_ns > GR_NAP_NS) rest_ns = GR_NAP_NS;
    if (rest_ns <= 0) return false;
    struct timespec rest = {.tv_sec = rest_ns / 1000000000, .tv_nsec = rest_ns % 1000000000};
    int operation = waited->flags & GR_WAITED_PRIVATE ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
    return syscall(SYS_futex, (uint32_t *)(uintptr_t)waited->address, operation, (uint32_t)waited->value, &rest, NULL,
                   0) != 0 && errno == EINTR;
}

static bool look_at_all(struct gr_peer *const *peers, uint32_t n, bool *ready) {
    bool any = false;
    for (uint32_t k = 0; k < n; k++) any |= ready[k] = gr_ready(peers[k]) != GR_BLOCKED;
    return any;
}

/* GR_OK: ready[k] says which of the n <= GR_MAX_WAITED peers have an answer; all of them were looked at, so
 * none hides another.  GR_BLOCKED at the deadline, GR_SIGNAL after a slice or a signal: call again. */
enum gr_result gr_select(struct gr_peer *const *peers, uint32_t n, int64_t deadline_ns, bool *ready) {
    struct gr_waited waited[GR_MAX_WAITED];
    int64_t now = gr_now_ns(), slice_end = now + GR_SLICE_NS, spin_end = now + peers[0]->spin_ns;
    peers[0]->wait_ns = now;
    if (slice_end > deadline_ns) slice_end = deadline_ns;
    bool any = look_at_all(peers, n, ready), signalled = false;
    while (!any && now < spin_end && now < slice_end) {
        for (int k = 0; k < 4; k++) pause_cpu();
        any = look_at_all(peers, n, ready);
        now = gr_now_ns();
    }
    if (any) {
        learn(peers[0], now);
        return GR_OK;
    }
    if (now >= deadline_ns) return GR_BLOCKED;

    for (uint32_t k = 0; k < n; k++) gr_announce(peers[k], GR_SLEEPING); /* [edge D, sleeper] at every ring ... */
    for (;;) {
        for (uint32_t k = 0; k < n; k++) /* ... then every bell, before the looks */
            waited[k] = (struct gr_waited){
                .value = atomic_load_explicit(&peers[k]->ring->head->bell, memory_order_seq_cst),
                .address = (uintptr_t)&peers[k]->ring->head->bell, .flags = GR_WAITED_U32};
        any = look_at_all(peers, n, ready);
        if (any || signalled || gr_now_ns() >= slice_end) break;
        signalled = gr_wait_bells(waited, n, slice_end);
    }
    for (uint32_t k = 0; k < n; k++) gr_withdraw(peers[k], GR_SLEEPING);
    learn(peers[0], gr_now_ns());

    if (any) return GR_OK;
    if (signalled) return GR_SIGNAL;
    if (slice_end == deadline_ns) return GR_BLOCKED;
    for (uint32_t k = 0; k < n; k++) gr_reap_dead(peers[k]->ring, NULL); /* as gr_sleep */
    return GR_SIGNAL;
}

/* ---- fences ------------------------------------------------------------------------------------ */

/* Host gate: waits until fence[peer][index] >= value.  The word is written by a GPU or by whoever saw
 * the peer's event complete, so there is nothing to sleep on: spin, then nap.  One slice at the most. */
enum gr_result gr_wait_fence(struct gr_peer *me, uint32_t peer, uint32_t index, uint64_t value) {
    const gr_word *fence = fence_of(me->ring, index, peer);
    int64_t start = gr_now_ns(), now = start;
    while (gr_load_acquire((gr_word *)fence) < value) {
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

static inline bool paid(const gr_word *fence, uint64_t value, gr_query query, void *event) {
    return gr_load_acquire((gr_word *)fence) >= value || (query && query(event) == 0);
}

static inline bool paid_by(const gr_word *fence, uint64_t value, gr_query query, void *event, int64_t until) {
    while (!paid(fence, value, query, event)) {
        if (gr_now_ns() >= until) return false;
        for (int k = 0; k < 4; k++) pause_cpu();
    }
    return true;
}

/* Stream gate: whether fence[peer][index] >= value comes in a moment, so that no wait need be put into the
 * stream.  A GPU that finds a wait pending takes longer to go on than a host that sees the word change.
 *
 * It looks only while our own last work is still to be done: then the stream has no use for the wait yet,
 * and nothing is later for it.  If not even our work of the last lap on this slot is done, the host is
 * farther ahead than the ring is long, every fence is far, and it would stay so: that work is awaited first,
 * which leaves the stream a lap of work.  A look in vain makes it blind for a while (fences that take a
 * switch of contexts, or real work).
 *
 * With events, which raise no word by themselves, `query` tells of theirs, of ours on this slot and of the
 * one of our last work; without, it is NULL. */
bool gr_soon(struct gr_peer *me, uint32_t peer, uint32_t index, uint64_t value, gr_query query, void *theirs,
             void *ours, void *last) {
    const struct gr_ring *ring = me->ring;
    const gr_word *fence = fence_of(ring, index, peer), *last_fence = fence_of(ring, me->last_index, me->number);
    if (me->blind > 0) {
        me->blind--;
        return false;
    }
    int64_t now = gr_now_ns(), until = now + GR_LAP_NS;
    if (until > me->deadline_ns) until = me->deadline_ns;
    if (paid_by(fence_of(ring, index, me->number), gr_load_relaxed(work_of(ring, index, me->number)), query, ours, until)) {
        now = gr_now_ns();
        until = now + GR_PATIENCE_NS;
        if (until > me->deadline_ns) until = me->deadline_ns;
        do {
            if (paid(fence, value, query, theirs)) {
                me->backoff = 0;
                return true;
            }
            if (paid(last_fence, me->last_value, query, last)) return false;
            for (int k = 0; k < 4; k++) pause_cpu();
        } while (gr_now_ns() < until);
    }
    me->backoff = me->backoff < 128 ? 2 * me->backoff + 1 : me->backoff;
    me->blind = me->backoff;
    return false;
}

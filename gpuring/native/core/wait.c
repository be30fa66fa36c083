/* Waiting: first spin, for a short adaptive time or as long as was asked for; then sleep on a
 * futex, at one bell or at several (docs/decisions/0009-how-a-wait-waits.md).
 *
 * Edge D, no lost wake-up (bell.c): announce, then read the bell, then look, then sleep on that
 * bell value. A sleeper at several rings does each of these at all of them before the next.
 *
 * No sleep is longer than a slice, so a mistake elsewhere costs a slice, and no process hangs.
 * Only two rare cases need the slice. One is a waker that was stopped or killed between its change
 * and the bell and is not reaped, such as a process without an entry that closes the ring. The
 * other is a signal that came to another thread, or just before the sleep. Where no watchdog looks
 * after the ring a slice stays at 50 ms, because the dead are found only after it.
 */
#define _GNU_SOURCE
#include "wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "acquire.h"
#include "bell.h"
#include "reap.h"
#include "subscriptions.h"
#include "trace.h"
#include "watchdog.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same on every architecture */
#endif

static int64_t slice_ns(int64_t waited_ns, bool watched) {
    if (!watched || waited_ns < GR_SLICE_NS) return GR_SLICE_NS;
    return waited_ns < GR_SLICE_MAX_NS ? waited_ns : GR_SLICE_MAX_NS;
}

/* A whole slice has passed without an answer, so the peer that is in the way may be dead. A
 * watchdog finds that sooner, but its tick may be long, and no pidfd tells of a process that lives
 * and has lost its locks. So the peer in the way is checked here in any case. If no frame was
 * published, no peer is in the way. */
static void look_after(struct gr_ring *ring, const struct gr_culprit *culprit) {
    if (!gr_is_watched(ring)) gr_reap_dead(ring, NULL);
    else {
        gr_tell_of_joins(ring);
        if (culprit->peer < ring->max_peers) gr_reap_one(ring, culprit->peer);
        else if (culprit->reason == GR_BY_SUBSCRIPTION) gr_give_up_late(ring);
    }
}

void gr_set_spin(struct gr_peer *me, int64_t ns) {
    me->wait.spin_fixed = ns >= 0;
    me->wait.spin_ns = ns >= 0 ? ns : GR_SPIN_MAX_NS;
}

/* Chooses how long to spin next time. Longer if a spin of GR_SPIN_MAX_NS would have been enough
 * for this wait, whether or not this one was, because a wake-up costs the other side a system
 * call. Shorter if that spin would have been in vain. */
static void learn(struct gr_peer *me, int64_t now) {
    if (me->wait.spin_fixed) return;
    const int64_t longer = 2 * me->wait.spin_ns, shorter = me->wait.spin_ns / 2;
    if (now - me->wait.begun_ns < GR_SPIN_MAX_NS + GR_WAKE_NS)
        me->wait.spin_ns = longer < GR_SPIN_MAX_NS ? longer : GR_SPIN_MAX_NS;
    else me->wait.spin_ns = shorter > GR_SPIN_MIN_NS ? shorter : GR_SPIN_MIN_NS;
}

static enum gr_result look_until(struct gr_peer *me, gr_verb verb, int64_t now, int64_t until) {
    enum gr_result result = GR_BLOCKED;
    while (result == GR_BLOCKED && now < until) {
        for (int k = 0; k < 4; k++) gr_pause();
        result = verb(me);
        now = gr_now_ns();
    }
    if (result != GR_BLOCKED) learn(me, now);
    return result;
}

/* Spins for the rest of this wait's spin, but at most a slice: GR_SIGNAL if there is more. A peer
 * that spins for seconds is not counted as a sleeper, but checks for dead peers like one. */
static enum gr_result spin_on(struct gr_peer *me, gr_verb verb, int64_t now) {
    int64_t rest = me->wait.spin_ns - (now - me->wait.begun_ns),
            until = now + (rest < GR_SLICE_NS ? rest : GR_SLICE_NS);
    if (until > me->wait.deadline_ns) until = me->wait.deadline_ns;
    enum gr_result result = look_until(me, verb, now, until);
    if (result != GR_BLOCKED || until == me->wait.deadline_ns || rest <= GR_SLICE_NS) return result;
    look_after(me->ring, &me->last.culprit);
    return GR_SIGNAL;
}

/* At the beginning of a wait, and of each of its slices. */
static inline void trace_wait(struct gr_peer *me) {
    me->wait.traced = gr_traced(me->ring);
    if (me->wait.traced) gr_trace_wait(me, &me->last.culprit, false);
}
/* Called after a look that was blocked. The tracing of the ring may have been turned on or off
 * since the slice began, which rings the bell. */
static inline void trace_on(struct gr_peer *me) {
    if (gr_traced(me->ring) != me->wait.traced) trace_wait(me);
}
/* Called at the end of a wait. If the verb has got a slot, it has written its own event, which ends
 * the wait. */
static inline enum gr_result trace_end(const struct gr_peer *me, enum gr_result result) {
    if (result != GR_OK && result != GR_SIGNAL && gr_traced(me->ring) &&
        (result != GR_BLOCKED || gr_now_ns() >= me->wait.deadline_ns))
        gr_trace(me, 0, GR_DID_STOP, 0, 0, 0);
    return result;
}

enum gr_result gr_spin(struct gr_peer *me, gr_verb verb) {
    int64_t now = gr_now_ns();
    me->wait.begun_ns = now;
    trace_wait(me);
    return trace_end(me, spin_on(me, verb, now));
}

static enum gr_result answer(struct gr_peer *me) { return gr_ready(me); }

/* For event loops, which have other things to do: spins before a notifier is armed, for as long as
 * the peer's fixed spin and at most at_most_ns. */
enum gr_result gr_spin_ready(struct gr_peer *me, int64_t at_most_ns) {
    int64_t now = gr_now_ns(), spin_ns = me->wait.spin_fixed ? me->wait.spin_ns : 0;
    enum gr_result result = gr_ready(me);
    return result != GR_BLOCKED
               ? result
               : look_until(me, answer, now, now + (spin_ns < at_most_ns ? spin_ns : at_most_ns));
}

/* ---- asleep: at one bell, and awake a little before an answer that is foreseen --------------- */

/* Moving averages, over about the last eight samples, of the value and of its error. An outlier is
 * cut off, so that no single sample counts for much. */
static void average(int64_t sample, int64_t *mean, int64_t *off) {
    int64_t error = sample - *mean, limit = 4 * *off + 10 * 1000;
    error = error > limit ? limit : error < -limit ? -limit : error;
    *mean += error / 8;
    *off += ((error < 0 ? -error : error) - *off) / 8;
}

/* Learns from an answer that came at `at`, and that the peer had slept for. One that came much too
 * early or much too late is left out, because there may have been others between that it did not
 * sleep for. Four such in a row are a new rhythm. */
static void observe(struct gr_rhythm *rhythm, int64_t at) {
    int64_t distance = at - rhythm->last_ns;
    rhythm->last_ns = at;
    if (distance < rhythm->period_ns / 2 || distance > rhythm->period_ns + rhythm->period_ns / 2) {
        if (++rhythm->strange < 4) return;
        rhythm->period_ns = rhythm->period_off_ns = distance;
    }
    rhythm->strange = 0;
    average(distance, &rhythm->period_ns, &rhythm->period_off_ns);
}

/* Returns when to wake up to spin for the answer, until `*until`; 0: do not. The answer is
 * foreseen if twice the mean errors of the rhythm and of the timer are less than the share of the
 * period that may be spun. Where timers have proved too inexact, they are tried again now and
 * then. */
static int64_t foresee(struct gr_peer *me, int64_t now, int64_t *until) {
    struct gr_rhythm *rhythm = &me->wait.rhythm;
    int64_t margin = 2 * (rhythm->period_off_ns + rhythm->late_off_ns) + 1000;
    int64_t expected = rhythm->last_ns + rhythm->period_ns;
    int64_t early = expected - margin - (rhythm->late_ns ? rhythm->late_ns : GR_LATE_NS);
    rhythm->saved_ns += (now - (rhythm->counted_ns ? rhythm->counted_ns : now)) / GR_SPIN_SHARE;
    rhythm->counted_ns = now;
    if (rhythm->saved_ns > GR_SAVED_MAX_NS) rhythm->saved_ns = GR_SAVED_MAX_NS;
    if (me->wait.spin_fixed || early <= now || margin > rhythm->period_ns / GR_SPIN_SHARE ||
        rhythm->saved_ns < margin) {
        rhythm->late_off_ns -= rhythm->late_off_ns / 64;
        return 0;
    }
    *until = expected + margin;
    return early;
}

/* Announces itself and sleeps: until the verb has an answer, until the time `until`, or until a
 * signal. */
static enum gr_result sleep_until(struct gr_peer *me, gr_verb verb, int64_t until,
                                  bool *signalled) {
    struct gr_head *head = me->ring->head;
    enum gr_result result;
    gr_announce(me, GR_SLEEPING);
    for (;;) {
        /* [edge D, sleeper] partner: gr_ring_bell. The bell is read before the look, or a change
         * between the two would be missed (D1). */
        uint32_t bell = atomic_load_explicit(&head->bell, memory_order_seq_cst);
        result = verb(me);
        if (result != GR_BLOCKED || *signalled) break;
        int64_t now = gr_now_ns();
        if (now >= until) break;
        trace_on(me);
        gr_tell_of_joins(me->ring);
        struct timespec rest = {.tv_sec = (until - now) / 1000000000,
                                .tv_nsec = (until - now) % 1000000000};
        *signalled = syscall(SYS_futex, &head->bell, FUTEX_WAIT, bell, &rest, NULL, 0) != 0 &&
                     errno == EINTR;
    }
    gr_withdraw(me, GR_SLEEPING);
    return result;
}

/* The timer has ended a sleep at about `early`, and not the bell. If the foreseen answer comes, it
 * comes within microseconds. */
static enum gr_result spin_for_it(struct gr_peer *me, gr_verb verb, int64_t early, int64_t until) {
    struct gr_rhythm *rhythm = &me->wait.rhythm;
    int64_t now = gr_now_ns(), late_ns = now - early;
    if (rhythm->late_ns == 0) rhythm->late_ns = late_ns, rhythm->late_off_ns = late_ns / 16;
    average(late_ns, &rhythm->late_ns, &rhythm->late_off_ns);
    if (until > now + rhythm->saved_ns) until = now + rhythm->saved_ns;
    if (until > me->wait.deadline_ns) until = me->wait.deadline_ns;
    enum gr_result result = look_until(me, verb, now, until);
    rhythm->saved_ns -= gr_now_ns() - now;
    return result;
}

static enum gr_result sleep_a_slice(struct gr_peer *me, gr_verb verb) {
    int64_t now = gr_now_ns(), slice_end, until = 0;
    enum gr_result result = GR_BLOCKED;
    bool signalled = false, spun = false;
    /* A spin that is longer than a slice goes on. */
    if (me->wait.spin_fixed && now - me->wait.begun_ns < me->wait.spin_ns) {
        result = spin_on(me, verb, now);
        if (result != GR_BLOCKED) return result;
        now = gr_now_ns();
        if (now >= me->wait.deadline_ns) return GR_BLOCKED;
    }
    slice_end = now + slice_ns(now - me->wait.begun_ns, gr_is_watched(me->ring));
    if (slice_end > me->wait.deadline_ns) slice_end = me->wait.deadline_ns;

    int64_t early = foresee(me, now, &until);
    if (early != 0 && early < slice_end) {
        result = sleep_until(me, verb, early, &signalled);
        if (result == GR_BLOCKED && !signalled) {
            result = spin_for_it(me, verb, early, until);
            spun = result != GR_BLOCKED;
        }
    }
    if (result == GR_BLOCKED && !signalled) result = sleep_until(me, verb, slice_end, &signalled);

    now = gr_now_ns();
    if (!spun) learn(me, now);
    if (result != GR_BLOCKED) {
        /* A sleeper sees the frame some microseconds late; the frame's record says when it
         * came. */
        int64_t at = now;
        if (result == GR_OK && me->self.role == GR_CONSUMER && !spun)
            at = (int64_t)gr_load_relaxed(&me->ring->slot[me->last.index].time_ns);
        observe(&me->wait.rhythm, at > me->wait.begun_ns && at < now ? at : now);
        return result;
    }
    if (signalled) return GR_SIGNAL;
    if (slice_end == me->wait.deadline_ns) return GR_BLOCKED;
    look_after(me->ring, &me->last.culprit);
    return GR_SIGNAL;
}

/* Returns what the verb returned, GR_BLOCKED at the deadline, or GR_SIGNAL after a slice or a
 * signal. */
enum gr_result gr_sleep(struct gr_peer *me, gr_verb verb) {
    trace_wait(me);
    return trace_end(me, sleep_a_slice(me, verb));
}

/* ---- several bells --------------------------------------------------------------------------- */

/* Sleeps until a bell moves, the time is up, or a signal comes. True only if a signal interrupted
 * the sleep; either way, look again.
 *
 * Before Linux 5.16, and under a seccomp filter that does not know futex_waitv, it sleeps at the
 * first bell only, and not longer than a nap if there are others. */
bool gr_wait_bells(struct gr_waited *waited, uint32_t n, int64_t until_ns) {
    /* Relaxed: a thread that does not see it yet asks the kernel itself. */
    static _Atomic bool missing;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    bool for_ever = until_ns == INT64_MAX;
    if (!gr_load_relaxed(&missing)) {
        if (syscall(SYS_futex_waitv, waited, n, 0, for_ever ? NULL : &until, CLOCK_MONOTONIC) >= 0)
            return false;
        if (errno == EINTR) return true;
        /* EFAULT: a ring was unmapped meanwhile (notify.c). */
        if (errno == EAGAIN || errno == ETIMEDOUT || errno == EFAULT) return false;
        /* Any other error, such as no memory, concerns this call only. */
        if (errno == ENOSYS || errno == EPERM) gr_store_relaxed(&missing, true);
    }
    int64_t now = gr_now_ns(), rest_ns = for_ever ? INT64_MAX : until_ns - now;
    if (n > 1 && rest_ns > GR_NAP_NS) rest_ns = GR_NAP_NS;
    if (rest_ns <= 0) return false;
    struct timespec rest = {.tv_sec = rest_ns / 1000000000, .tv_nsec = rest_ns % 1000000000};
    int operation = waited->flags & GR_WAITED_PRIVATE ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
    return syscall(SYS_futex, (uint32_t *)(uintptr_t)waited->address, operation,
                   (uint32_t)waited->value, &rest, NULL, 0) != 0 &&
           errno == EINTR;
}

static bool look_at_all(struct gr_peer *const *peers, uint32_t n, bool *ready) {
    bool any = false;
    uint64_t seq;
    for (uint32_t k = 0; k < n; k++)
        any |= ready[k] = gr_look(peers[k], &seq, &peers[k]->last.culprit) != GR_BLOCKED;
    return any;
}

static void look_after_all(struct gr_peer *const *peers, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) look_after(peers[k]->ring, &peers[k]->last.culprit);
}

/* GR_OK: ready[k] says which of the n <= GR_MAX_WAITED peers have an answer. All were looked at,
 * so a ready peer hides no other. GR_BLOCKED at the deadline. GR_SIGNAL after a slice or a signal:
 * call again with the same begun_ns, the time of the first call. It spins as long as the first
 * peer would, or as long as the longest fixed spin. */
enum gr_result gr_select(struct gr_peer *const *peers, uint32_t n, int64_t begun_ns,
                         int64_t deadline_ns, bool *ready) {
    struct gr_waited waited[GR_MAX_WAITED];
    bool watched = gr_is_watched(peers[0]->ring);
    int64_t now = gr_now_ns(), spin_ns = peers[0]->wait.spin_ns;
    for (uint32_t k = 1; k < n; k++) {
        if (peers[k]->wait.spin_fixed && peers[k]->wait.spin_ns > spin_ns)
            spin_ns = peers[k]->wait.spin_ns;
        watched &= gr_is_watched(peers[k]->ring);
    }
    int64_t slice_end = now + slice_ns(now - begun_ns, watched && now - begun_ns >= spin_ns);
    peers[0]->wait.begun_ns = begun_ns;
    if (slice_end > deadline_ns) slice_end = deadline_ns;
    bool any = look_at_all(peers, n, ready), signalled = false;
    while (!any && now < slice_end && now - begun_ns < spin_ns) {
        for (int k = 0; k < 4; k++) gr_pause();
        any = look_at_all(peers, n, ready);
        now = gr_now_ns();
    }
    if (any) {
        learn(peers[0], now);
        return GR_OK;
    }
    if (now >= deadline_ns) return GR_BLOCKED;
    if (now - begun_ns < spin_ns) { /* a slice is over, but not the spin */
        look_after_all(peers, n);
        return GR_SIGNAL;
    }

    for (uint32_t k = 0; k < n; k++) {
        peers[k]->wait.begun_ns = begun_ns;
        trace_wait(peers[k]);
    }
    /* [edge D, sleeper] partner: gr_ring_bell. First announce at every ring, then read every bell,
     * then look at every ring (D11: with one bell only, the others went unheard). */
    for (uint32_t k = 0; k < n; k++) gr_announce(peers[k], GR_SLEEPING);
    for (;;) {
        for (uint32_t k = 0; k < n; k++)
            waited[k] = (struct gr_waited){
                .value = atomic_load_explicit(&peers[k]->ring->head->bell, memory_order_seq_cst),
                .address = (uintptr_t)&peers[k]->ring->head->bell, .flags = GR_WAITED_U32};
        any = look_at_all(peers, n, ready);
        if (any || signalled || gr_now_ns() >= slice_end) break;
        for (uint32_t k = 0; k < n; k++) {
            trace_on(peers[k]);
            gr_tell_of_joins(peers[k]->ring);
        }
        signalled = gr_wait_bells(waited, n, slice_end);
    }
    for (uint32_t k = 0; k < n; k++) gr_withdraw(peers[k], GR_SLEEPING);
    for (uint32_t k = 0; k < n; k++)
        if ((any || gr_now_ns() >= deadline_ns) && gr_traced(peers[k]->ring))
            gr_trace(peers[k], 0, GR_DID_STOP, 0, 0, 0);
    learn(peers[0], gr_now_ns());

    if (any) return GR_OK;
    if (signalled) return GR_SIGNAL;
    if (slice_end == deadline_ns) return GR_BLOCKED;
    look_after_all(peers, n); /* as in gr_sleep */
    return GR_SIGNAL;
}

/* The watchdog: one native thread of the process, for all its handles.
 *
 * It needs no GIL, so it clears a dead peer also while the main thread sits in a CUDA call.  It sleeps in
 * poll() on the pidfds of the peers of other processes, and so hears of their deaths at once.  Newcomers it hears of from
 * threads of its process that wait: a join rings the bell, and who finds on his way to sleep that somebody has joined
 * wakes it (gr_tell_of_joins).  For whatever that misses it looks around by a tick, which begins anew with each join,
 * and grows to a second while nothing happens.  A peer without a usable pidfd (another pid namespace, an old kernel) is
 * looked at every TICK_MS, and everybody now and then: a handle may have been given up by a process that lives.
 * Whatever it does, gr_reap_dead does, under the same lock and after the same checks as anybody else.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { TICK_MS = 20, LONG_TICK_MS = 1000, FULL_LOOK_MS = 100, MAX_POLLED = 1024 };

/* Written under gr_lock_handles: the thread holds it while it looks, not while it sleeps. */
static _Atomic bool watching; /* the thread runs */
static int wake_fd = -1;

/* In a forked child, which has one thread, after process.c's handler: that was installed first. */
static void fork_child(void) {
    watching = false;
    if (wake_fd >= 0) close(wake_fd);
    wake_fd = -1;
}
static void install_fork_handler(void) { pthread_atfork(NULL, NULL, fork_child); }

/* Opens pidfds for peers that have come since the last look, and closes those of peers that left.  True: look again
 * soon, for somebody has joined, and may have an entry only in a moment, or has no pidfd. */
static bool refresh(struct gr_ring *ring) {
    uint64_t joins = gr_load_acquire(&ring->head->joins); /* before the entries */
    bool joined = joins != gr_load_relaxed(&ring->joins_seen);
    gr_store_relaxed(&ring->joins_seen, joins);
    ring->unwatchable = 0;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        struct gr_peer_entry *entry = &ring->peer[p];
        uint64_t id = gr_load_acquire(&entry->id);
        bool here = state_of(gr_load_acquire(&entry->word)) != GR_FREE;
        if (ring->pidfd[p] >= 0 && (!here || id != ring->watched_id[p])) {
            close(ring->pidfd[p]);
            ring->pidfd[p] = -1;
        }
        if (!here || gr_load_acquire(&ring->mine) >> p & 1) continue;
        if (ring->pidfd[p] < 0 && gr_load_acquire(&entry->pidns) == ring->pidns)
            ring->pidfd[p] = gr_pidfd((pid_t)gr_load_acquire(&entry->pid));
        ring->watched_id[p] = id;
        if (ring->pidfd[p] < 0) ring->unwatchable |= UINT64_C(1) << p; /* gone already, or never visible */
    }
    return joined || ring->unwatchable != 0;
}

static void *watch(void *unused) {
    (void)unused;
    static struct pollfd polled[MAX_POLLED];
    int tick_ms = TICK_MS;
    int64_t looked_ns = 0; /* at everybody */
    struct gr_ring *handles = gr_lock_handles();
    for (;;) {
        nfds_t n = 1;
        int64_t now = gr_now_ns();
        bool any = false, soon = false, full = now - looked_ns >= FULL_LOOK_MS * INT64_C(1000000);
        if (full) looked_ns = now;
        polled[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
        for (struct gr_ring *ring = handles; ring; ring = ring->next) {
            if (!ring->watched) continue;
            any = true;
            soon |= refresh(ring);
            if (full || ring->unwatchable) gr_reap_dead(ring, NULL);
            for (uint32_t p = 0; p < ring->max_peers; p++)
                if (ring->pidfd[p] >= 0 && n < MAX_POLLED)
                    polled[n++] = (struct pollfd){.fd = ring->pidfd[p], .events = POLLIN};
        }
        tick_ms = soon ? TICK_MS : tick_ms < LONG_TICK_MS / 2 ? 2 * tick_ms : LONG_TICK_MS;
        gr_unlock_handles();
        int fired = poll(polled, n, any ? tick_ms : -1);
        handles = gr_lock_handles();
        if (polled[0].revents & POLLNVAL) break; /* somebody closed all our descriptors (a daemon) */
        uint64_t woken;
        if (polled[0].revents & POLLIN && read(wake_fd, &woken, sizeof woken) > 0) fired--;
        if (fired <= 0) continue;
        for (struct gr_ring *ring = handles; ring; ring = ring->next) {
            if (!ring->watched) continue;
            gr_reap_dead(ring, NULL);
            for (uint32_t p = 0; p < ring->max_peers; p++) {
                struct pollfd exited = {.fd = ring->pidfd[p], .events = POLLIN};
                if (ring->pidfd[p] < 0 || poll(&exited, 1, 0) != 1) continue;
                /* Whether it was cleared, left before, or LOCK was busy: its pidfd has no more to say. */
                close(ring->pidfd[p]);
                ring->pidfd[p] = -1;
                if (state_of(gr_load_acquire(&ring->peer[p].word)) != GR_FREE &&
                    gr_load_acquire(&ring->peer[p].id) == ring->watched_id[p])
                    ring->unwatchable |= UINT64_C(1) << p;
            }
        }
    }
    watching = false;
    wake_fd = -1;
    gr_unlock_handles();
    return NULL;
}

static void wake(void) {
    uint64_t one = 1;
    if (watching && write(wake_fd, &one, sizeof one) < 0) { /* full: it is awake */
    }
}

bool gr_is_watched(const struct gr_ring *ring) {
    return atomic_load_explicit(&watching, memory_order_relaxed) &&
           atomic_load_explicit(&ring->watched, memory_order_relaxed);
}

/* Call on the way to sleep, or now and then while spinning.  Costs two loads, unless somebody has joined. */
void gr_tell_of_joins(struct gr_ring *ring) {
    if (gr_load_relaxed(&ring->head->joins) == gr_load_relaxed(&ring->joins_seen) || !gr_is_watched(ring)) return;
    gr_lock_handles();
    wake();
    gr_unlock_handles();
}

/* Starts the thread at the first call of a process, and wakes it: there are peers to look after.  Where
 * no thread can be had, whoever waits looks after the dead once a slice (wait.c). */
void gr_watch(struct gr_ring *ring) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handler);
    gr_lock_handles();
    ring->watched = true;
    if (!watching) {
        pthread_t thread;
        sigset_t all, before;
        if (wake_fd < 0) wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        sigfillset(&all); /* signals are for the threads of the program */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        watching = wake_fd >= 0 && pthread_create(&thread, NULL, watch, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (watching) pthread_detach(thread);
    }
    wake();
    gr_unlock_handles();
}

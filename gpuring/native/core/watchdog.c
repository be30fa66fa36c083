/* The watchdog: one native thread of the process, for all its handles.
 *
 * It needs no GIL, so it clears dead peers even while the main thread is in a CUDA call. It sleeps
 * in poll() on the pidfds of the other processes that have peers in our rings. A process of another
 * pid namespace has to hand over its pidfd (exchange_message.c). Threads of its own process report
 * newcomers (gr_tell_of_joins). It also finds them at each tick, which is short after a join and
 * grows to a second while nothing happens.
 *
 * A peer without a usable pidfd is looked at every TICK_MS. All peers are looked at now and then,
 * because a process may live and have given up its handle. It also leaves for peers of its own
 * process that were dropped while somebody else had LOCK (gr_leave).
 */
#define _GNU_SOURCE
#include "watchdog.h"

#include <poll.h>
#include <pthread.h>

#include "bell.h"
#include "exchange_talk.h"
#include "handles.h"
#include "lock.h"
#include "members.h"
#include "pidfds.h"
#include "process.h"
#include "reap.h"
#include "thread.h"

enum { TICK_MS = 20, LONG_TICK_MS = 1000, FULL_LOOK_MS = 100, MAX_SOCKETS = 1024 };

/* It holds gr_lock_handles while it looks, and not while it sleeps. */
static struct gr_thread watchdog = {.out = -1, .in = -1, .lost = gr_lose_pidfds};

/* In a forked child, which has one thread. It runs after the handler of handles.c, which was
 * installed first. */
static void fork_child(void) {
    if (gr_has_its_pipe(&watchdog)) gr_close_pidfds();
    else gr_lose_pidfds();
    gr_close_talks();
    gr_close_pipe(&watchdog);
}
static void install_fork_handler(void) { pthread_atfork(NULL, NULL, fork_child); }

/* Whether the pidfd of this peer's process will report its death. False: it has reported it
 * already, or there is no pidfd, because the process is gone, or has not answered, or the kernel
 * gives none. If there are too many processes, those that are not watched are found at the tick. */
static bool look_after(struct gr_ring *ring, uint32_t p) {
    const struct gr_peer_entry *entry = &ring->peer[p];
    const uint64_t id = gr_load_acquire(&entry->id); /* before who it is */
    const struct gr_who who = gr_who_is(entry);
    const bool foreign = who.pidns != ring->pidns;
    const struct gr_process *process = gr_see_process(&who);
    if (!process) {
        if (gr_process_count() == GR_MAX_PIDFDS) return !foreign;
        if (foreign) {
            gr_ask_for_pidfd(ring, &who);
            return false;
        }
        int fd = gr_pidfd((pid_t)who.pid);
        if (fd < 0) return false;
        process = gr_add_process(&who, fd);
    }
    if (!process->exited) return true;
    /* Whether the number was given to another peer meanwhile: that one would have its byte, or its
     * entry would name another process by now. Partner: gpu_gone. */
    if (foreign && !gr_peer_alive(ring, p)) {
        const struct gr_who still = gr_who_is(entry);
        if (gr_same_who(&still, &who)) gr_store_release(&ring->exited[p], id);
    }
    return false;
}

/* Watches the processes of the ring's peers. True: look again soon, because a peer has joined
 * whose entry may not be complete yet, or one cannot be watched. */
static bool refresh(struct gr_ring *ring) {
    /* Before the entries: a join in between is then seen by the next look. */
    uint64_t joins = gr_load_acquire(&ring->head->joins);
    bool joined = joins != gr_load_relaxed(&ring->joins_seen);
    gr_store_relaxed(&ring->joins_seen, joins);
    ring->unwatchable = false;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        struct gr_peer_entry *entry = &ring->peer[p];
        if (state_of(gr_load_acquire(&entry->word)) == GR_FREE || gr_is_ours(ring, p)) continue;
        if (!look_after(ring, p)) ring->unwatchable = true;
    }
    return joined || ring->unwatchable;
}

/* The least time between two looks at all peers, at most a second. A look costs a system call for
 * each peer, and each of these calls takes the longer the more peers there are. */
static int64_t full_look_ns(void) {
    const int64_t more_ms = (int64_t)gr_process_count() * gr_process_count() / 64;
    return (FULL_LOOK_MS + (more_ms < 900 ? more_ms : 900)) * INT64_C(1000000);
}

static void *watch(void *life) {
    struct pollfd polled[1 + GR_MAX_PIDFDS + MAX_SOCKETS];
    int tick_ms = TICK_MS;
    int64_t looked_ns = 0; /* when all peers were looked at */
    struct gr_ring *handles = gr_lock_handles();
    for (;;) {
        int64_t now = gr_now_ns();
        bool any = false, soon = false, full = now - looked_ns >= full_look_ns();
        bool can_answer = gr_answer(handles);
        if (full) looked_ns = now;
        gr_begin_look();
        for (struct gr_ring *ring = handles; ring; ring = ring->next) {
            if (!ring->watched) continue;
            any = true;
            soon |= refresh(ring);
            soon |= gr_leave_late(ring);
            if (full || ring->unwatchable) gr_reap_dead(ring, NULL);
        }
        if (!any) gr_end_talks();
        gr_end_look();
        polled[0] = (struct pollfd){.fd = watchdog.out, .events = POLLIN};
        const uint32_t watched = gr_list_pidfds(polled + 1);
        uint32_t n = 1 + watched;
        /* If they cannot be answered now, clients wait for the tick, or for the hearer. */
        if (can_answer) n += gr_list_sockets(handles, polled + n, MAX_SOCKETS);
        else soon = true;
        tick_ms = soon ? TICK_MS : tick_ms < LONG_TICK_MS / 2 ? 2 * tick_ms : LONG_TICK_MS;
        gr_unlock_handles();
        poll(polled, n, any ? tick_ms : -1);
        handles = gr_lock_handles();
        if (!gr_goes_on(&watchdog, (uintptr_t)life)) break;
        /* The pidfd has nothing more to report. Rings that have peers of this process are looked at
         * next, and soon again, until LOCK was free and the peers are cleared. */
        gr_note_exits(polled + 1, watched);
    }
    gr_unlock_handles();
    return NULL;
}

/* ---- for everybody --------------------------------------------------------------------------- */

bool gr_is_watched(const struct gr_ring *ring) {
    return atomic_load_explicit(&watchdog.runs, memory_order_relaxed) &&
           atomic_load_explicit(&ring->watched, memory_order_relaxed);
}

/* Call it on the way to sleep, when a poll is in vain, before a stream waits for a peer, and now
 * and then while spinning. It costs two relaxed loads unless a peer has joined. A stale value only
 * delays the news to the next call, or to the watchdog's tick. */
void gr_tell_of_joins(struct gr_ring *ring) {
    if (gr_load_relaxed(&ring->head->joins) == gr_load_relaxed(&ring->joins_seen) ||
        !gr_is_watched(ring))
        return;
    gr_lock_handles();
    gr_wake(&watchdog);
    gr_unlock_handles();
}

/* Starts the threads at the first call in a process, and wakes the watchdog, because there are
 * peers to look after. If no thread can be started, every wait checks for dead peers after each
 * slice (wait.c). */
void gr_watch(struct gr_ring *ring) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handler);
    gr_lock_handles();
    ring->watched = true;
    if (ring->slots_fd >= 0) gr_start_hearer(&watchdog);
    gr_start_thread(&watchdog, watch);
    gr_wake(&watchdog);
    gr_unlock_handles();
}

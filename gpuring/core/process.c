/* What a process has of its own: the list of its handles, its identity, its fork, its watchdog.
 *
 * The watchdog is one native thread for all handles.  It needs no GIL, so it clears a dead peer also
 * while the main thread sits in a CUDA call.  It sleeps in poll() on the pidfds of the peers of other
 * processes and looks for newcomers every TICK_MS; a peer without a usable pidfd (another pid namespace,
 * an old kernel) is looked at every tick, and everybody every few ticks: a handle may have been given up
 * by a process that lives.  Whatever it does, gr_reap_dead does, under the same lock and
 * after the same checks as anybody else.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TICK_MS = 20, FULL_LOOK_TICKS = 5, MAX_POLLED = 1024 };

/* Everything below is guarded by this mutex; the watchdog holds it while it looks, not while it sleeps. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gr_ring *handles;
static bool watching; /* the thread runs */
static int wake_fd = -1;
static _Atomic unsigned generation; /* counts forks: a handle of an earlier one belongs to the parent */

/* ---- identity --------------------------------------------------------------------------------- */

/* Its start time (/proc/PID/stat field 22) and state; 0 if there is no such process, or /proc hides it. */
uint64_t gr_process_start(pid_t pid, char *state) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) return 0;
    line[n] = 0;
    char *at = strrchr(line, ')'); /* the command's name may hold anything, a parenthesis too */
    if (!at || at[1] != ' ') return 0;
    if (state) *state = at[2];
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static uint64_t pid_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

int gr_pidfd(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

/* ---- a forked child ------------------------------------------------------------------------- */
/* A fork copies lock_fd, and the copy would keep a dead parent's locks alive.  The child closes it, and
 * the generation makes every call through the inherited handle fail with GR_FORKED. */

static void close_fds(struct gr_ring *ring) {
    close(ring->lock_fd);
    ring->lock_fd = -1;
    for (uint32_t p = 0; p < GR_MAX_PEERS; p++)
        if (ring->pidfd[p] >= 0) close(ring->pidfd[p]);
}

static void fork_prepare(void) { pthread_mutex_lock(&mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&mutex); }
static void fork_child(void) {
    atomic_fetch_add(&generation, 1);
    for (struct gr_ring *ring = handles; ring; ring = ring->next) close_fds(ring);
    handles = NULL;
    watching = false;
    if (wake_fd >= 0) close(wake_fd);
    wake_fd = -1;
    pthread_mutex_unlock(&mutex);
}
static void install_fork_handlers(void) { pthread_atfork(fork_prepare, fork_parent, fork_child); }

bool gr_forked(const struct gr_ring *ring) {
    return ring->generation != atomic_load_explicit(&generation, memory_order_relaxed);
}

/* ---- handles -------------------------------------------------------------------------------- */

void gr_enlist(struct gr_ring *ring) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
    ring->pid = (uint64_t)getpid();
    ring->start = gr_process_start(getpid(), NULL);
    ring->pidns = pid_namespace();
    for (uint32_t p = 0; p < GR_MAX_PEERS; p++) ring->pidfd[p] = -1;
    pthread_mutex_lock(&mutex);
    ring->generation = atomic_load(&generation);
    ring->next = handles;
    if (handles) handles->prev = ring;
    handles = ring;
    pthread_mutex_unlock(&mutex);
}

/* Gives up the locks: to everybody else this handle is gone.  The mapping stays, for arrays over it. */
void gr_disown(struct gr_ring *ring) {
    if (gr_forked(ring) || ring->lock_fd < 0) return;
    pthread_mutex_lock(&mutex);
    if (ring->prev) ring->prev->next = ring->next;
    else handles = ring->next;
    if (ring->next) ring->next->prev = ring->prev;
    close_fds(ring);
    pthread_mutex_unlock(&mutex);
}

void gr_detach(struct gr_ring *ring) {
    gr_disown(ring);
    munmap(ring->head, ring->layout.nbytes);
    pthread_mutex_destroy(&ring->mutex);
    free(ring);
}

/* ---- watchdog ---------------------------------------------------------------------------------- */

/* Opens pidfds for peers that have come since the last look, and closes those of peers that left.  True:
 * somebody must be looked at by tick. */
static bool refresh(struct gr_ring *ring) {
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
    return ring->unwatchable != 0;
}

static void *watch(void *unused) {
    (void)unused;
    static struct pollfd polled[MAX_POLLED];
    unsigned ticks = 0;
    pthread_mutex_lock(&mutex);
    for (;;) {
        nfds_t n = 1;
        bool any = false;
        polled[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
        for (struct gr_ring *ring = handles; ring; ring = ring->next) {
            if (!ring->watched) continue;
            any = true;
            if (refresh(ring) || ticks % FULL_LOOK_TICKS == 0) gr_reap_dead(ring, NULL);
            for (uint32_t p = 0; p < ring->max_peers; p++)
                if (ring->pidfd[p] >= 0 && n < MAX_POLLED)
                    polled[n++] = (struct pollfd){.fd = ring->pidfd[p], .events = POLLIN};
        }
        ticks++;
        pthread_mutex_unlock(&mutex);
        int fired = poll(polled, n, any ? TICK_MS : -1);
        pthread_mutex_lock(&mutex);
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
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Starts the thread at the first call of a process, and wakes it: there are peers to look after.  Where
 * no thread can be had, whoever waits looks after the dead once a slice (gr_sleep). */
void gr_watch(struct gr_ring *ring) {
    pthread_mutex_lock(&mutex);
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
    uint64_t one = 1;
    if (watching && write(wake_fd, &one, sizeof one) < 0) { /* full: it is awake */
    }
    pthread_mutex_unlock(&mutex);
}

/* The list of the process's handles, what is closed in other threads, and what a fork does to them. */
#define _GNU_SOURCE
#include "handles.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "exchange_socket.h"
#include "process.h"
#include "thread.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the lists */
static struct gr_ring *handles;
/* Descriptors that a thread is to close, each until its thread begins to close it. */
static struct aside {
    int fd;
    bool listened; /* this process has listened at it */
    uint64_t dev, ino;
    struct aside *next;
} *asides;
/* Counts forks: a handle with another count belongs to a parent process. Relaxed where it is read,
 * because only the child's fork handler changes it, before the child runs anything else. */
static _Atomic unsigned generation;

static bool is_file(int fd, uint64_t dev, uint64_t ino) {
    struct stat now;
    return fstat(fd, &now) == 0 && now.st_dev == dev && now.st_ino == ino;
}

/* Whether the descriptors of a handle are still its own. Not if the program has closed all that it
 * has, as a daemon does. Their numbers may be those of its own files then. */
bool gr_has_its_files(const struct gr_ring *ring) {
    return is_file(ring->lock_fd, ring->lock_dev, ring->lock_ino);
}

/* ---- a forked child -------------------------------------------------------------------------- */
/* A fork copies lock_fd, and that copy would keep a dead parent's locks alive. A copy of its
 * socket would keep clients waiting. So the child closes them, and also what the parent is about
 * to close aside, because it does not have the parent's threads. `generation` makes every call
 * through an inherited handle fail with GR_FORKED. */

static void close_fds(struct gr_ring *ring) {
    if (!gr_has_its_files(ring)) ring->slots_fd = ring->listen_fd = -1;
    else close(ring->lock_fd);
    if (ring->slots_fd >= 0) close(ring->slots_fd);
    if (ring->listen_fd >= 0) close(ring->listen_fd);
    ring->lock_fd = ring->slots_fd = ring->listen_fd = -1;
}

static void fork_prepare(void) { pthread_mutex_lock(&mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&mutex); }
static void fork_child(void) {
    atomic_fetch_add(&generation, 1);
    for (struct gr_ring *ring = handles; ring; ring = ring->next) close_fds(ring);
    handles = NULL;
    for (struct aside *aside = asides; aside; aside = aside->next)
        if (is_file(aside->fd, aside->dev, aside->ino)) close(aside->fd);
    asides = NULL;
    pthread_mutex_unlock(&mutex);
}
static void install_fork_handlers(void) { pthread_atfork(fork_prepare, fork_parent, fork_child); }

/* Call it before other fork handlers are installed. Handlers that prepare a fork run in the
 * opposite order, so this mutex is the last one to be taken. */
void gr_mind_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
}

bool gr_forked(const struct gr_ring *ring) {
    return ring->generation != atomic_load_explicit(&generation, memory_order_relaxed);
}

/* ---- what other threads close ---------------------------------------------------------------- */

/* Under the mutex. NULL: there is no memory for it. */
static struct aside *put_aside(int fd, bool listened) {
    struct stat at;
    struct aside *aside = fstat(fd, &at) == 0 ? malloc(sizeof *aside) : NULL;
    if (!aside) return NULL;
    *aside = (struct aside){fd, listened, at.st_dev, at.st_ino, asides};
    return asides = aside;
}

/* After this, the last close of the socket closes nothing else. */
static void empty_queue(int fd) {
    const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    for (;;) {
        const int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client >= 0) close(client);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            nanosleep(&nap, NULL);
        else if (errno != EINTR && errno != ECONNABORTED) break;
    }
}

static void *close_it(void *argument) {
    struct aside *aside = argument, **at = &asides;
    if (aside->listened) empty_queue(aside->fd);
    pthread_mutex_lock(&mutex);
    while (*at != aside) at = &(*at)->next;
    *at = aside->next;
    pthread_mutex_unlock(&mutex);
    close(aside->fd);
    free(aside);
    return NULL;
}

static void begin_to_close(struct aside *aside, int fd) {
    if (!aside) {
        close(fd);
    } else if (gr_begin_thread(close_it, aside) != 0) {
        aside->listened = false;
        close_it(aside);
    }
}

void gr_close_aside(int fd) {
    gr_mind_forks();
    pthread_mutex_lock(&mutex);
    struct aside *aside = put_aside(fd, false);
    pthread_mutex_unlock(&mutex);
    begin_to_close(aside, fd);
}

/* ---- handles --------------------------------------------------------------------------------- */

void gr_enlist(struct gr_ring *ring) {
    gr_mind_forks();
    ring->pid = (uint64_t)getpid();
    ring->start = gr_process_start(getpid(), NULL);
    ring->pidns = gr_pid_namespace();
    pthread_mutex_lock(&mutex);
    ring->generation = atomic_load(&generation);
    ring->next = handles;
    if (handles) handles->prev = ring;
    handles = ring;
    pthread_mutex_unlock(&mutex);
}

/* Gives up the locks, so for everybody else this handle is gone. The mapping stays, because arrays
 * over it may still be in use. */
void gr_disown(struct gr_ring *ring) {
    if (gr_forked(ring) || ring->lock_fd < 0) return;
    pthread_mutex_lock(&mutex);
    if (ring->prev) ring->prev->next = ring->next;
    else handles = ring->next;
    if (ring->next) ring->next->prev = ring->prev;
    gr_withdraw_offer(ring, handles);
    /* Those who have connected and were not answered may have sent what takes long to close. The
     * watchdog may be in poll() on the socket, and would then be the last one that has it. So
     * nobody connects from now on, and what is queued there is closed first. */
    const int listen_fd = gr_has_its_files(ring) ? ring->listen_fd : -1;
    struct aside *aside = listen_fd >= 0 ? put_aside(listen_fd, true) : NULL;
    ring->listen_fd = -1;
    close_fds(ring);
    pthread_mutex_unlock(&mutex);
    if (listen_fd < 0) return;
    shutdown(listen_fd, SHUT_RDWR);
    begin_to_close(aside, listen_fd);
}

struct gr_ring *gr_lock_handles(void) {
    pthread_mutex_lock(&mutex);
    return handles;
}
void gr_unlock_handles(void) { pthread_mutex_unlock(&mutex); }

void gr_detach(struct gr_ring *ring) {
    gr_disown(ring);
    munmap(ring->head, ring->layout.nbytes);
    if (ring->events)
        munmap(ring->events, ring->layout.traced_nbytes - ring->layout.nbytes);
    pthread_mutex_destroy(&ring->mutex);
    free(ring);
}

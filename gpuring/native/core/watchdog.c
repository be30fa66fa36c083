/* The watchdog: one native thread of the process, for all its handles. And the hearer, another one
 * if the process offers descriptors.
 *
 * It needs no GIL, so it clears dead peers even while the main thread is in a CUDA call. It sleeps
 * in poll() on the pidfds of the other processes that have peers in our rings, which tell it of
 * deaths at once. It hears of newcomers from the threads of its own process: a join rings the bell,
 * and a thread that sees that a peer has joined wakes it, on its way to sleep, when a poll is in
 * vain, and before it waits for GPU work or has a stream wait (gr_tell_of_joins). For what that
 * misses it looks around at each tick. A tick is short after a join, and grows to a second while
 * nothing happens.
 *
 * A process of another pid namespace has to hand over its pidfd (offer.c). The watchdog asks it, if
 * the ring is one in which descriptors are offered, and answers at the sockets of its own process.
 * What comes at these sockets is for the hearer, who may have to wait (talk.c).
 *
 * A program may close all its descriptors, as a daemon does, and their numbers may be those of its
 * own files then. So each of the two threads wakes by a pipe, which is looked at before it is used,
 * and before anything that came with it: an inode tells whether a descriptor is still the same. A
 * thread whose pipe is gone ends, and closes nothing. The next join starts another one.
 *
 * A peer without a usable pidfd is looked at every TICK_MS. All peers are looked at now and then,
 * because a process may live and have given up its handle. All clearing is done by gr_reap_dead,
 * under the same lock and after the same checks as anywhere else.
 *
 * It also leaves for peers of its own process that were dropped while LOCK was not to be had
 * (gr_leave). Until it has, it tries every TICK_MS.
 */
#define _GNU_SOURCE
#include "offer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TICK_MS = 20, LONG_TICK_MS = 1000, FULL_LOOK_MS = 100, MAX_POLLED = 1024,
       MAX_SOCKETS = 1024, MAX_UNKNOWN = 64 };

/* A thread, and the pipe that wakes it. Written under gr_lock_handles. The watchdog holds that while
 * it looks, and not while it sleeps. */
static struct thread {
    _Atomic bool runs;
    int out, in;
    uint64_t ino;  /* of the pipe */
    uint64_t life; /* how many threads there were: an earlier one has nothing to say any more */
} watchdog = {.out = -1, .in = -1}, hearer = {.out = -1, .in = -1};

/* The processes that have peers in our rings, and those that have handed their pidfds over, which
 * may be about to join. One descriptor serves all peers of a process, in all rings, so an engine
 * with hundreds of clients needs one for each client. */
static struct process {
    struct gr_who who;
    uint64_t look; /* the last one that found a peer of this process; 0: none has yet */
    int fd;        /* its pidfd */
    bool exited;   /* its pidfd has said so, and stays readable */
} processes[MAX_POLLED - 1];
static uint32_t process_count;
static uint64_t looks;

/* ---- the threads ------------------------------------------------------------------------------ */

static bool is_pipe_of(const struct thread *thread, int fd) {
    struct stat now;
    return fd >= 0 && fstat(fd, &now) == 0 && S_ISFIFO(now.st_mode) && now.st_ino == thread->ino;
}

static bool open_pipe(struct thread *thread) {
    struct stat at;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    thread->out = fds[0];
    thread->in = fds[1];
    thread->ino = fstat(fds[0], &at) == 0 ? (uint64_t)at.st_ino : 0;
    return true;
}

static void close_pipe(struct thread *thread) {
    if (is_pipe_of(thread, thread->out)) close(thread->out);
    if (is_pipe_of(thread, thread->in)) close(thread->in);
    thread->out = thread->in = -1;
    thread->runs = false;
}

/* The process has closed its descriptors. What the thread had may be anybody's by now. */
static void lose(struct thread *thread) {
    thread->runs = false;
    thread->out = thread->in = -1;
    thread->life++;
    if (thread == &watchdog) process_count = 0;
}

static void wake(struct thread *thread) {
    if (!thread->runs) return;
    if (!is_pipe_of(thread, thread->in)) lose(thread);
    else if (write(thread->in, "", 1) < 0) { /* full: it is awake */
    }
}

/* False: the thread is to end, and has nothing that it may close. */
static bool goes_on(struct thread *thread, uint64_t life) {
    char woken[256];
    if (thread->life != life) return false;
    if (!is_pipe_of(thread, thread->out)) {
        lose(thread);
        return false;
    }
    if (read(thread->out, woken, sizeof woken) < 0) { /* something else has happened */
    }
    return true;
}

static void start(struct thread *thread, void *(*run)(void *)) {
    pthread_t made;
    sigset_t all, before;
    if (thread->runs && !is_pipe_of(thread, thread->in)) lose(thread);
    if (thread->runs || !open_pipe(thread)) return;
    sigfillset(&all); /* signals are for the threads of the program */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread->runs = pthread_create(&made, NULL, run, (void *)(uintptr_t)thread->life) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (thread->runs) pthread_detach(made);
    else close_pipe(thread);
}

/* In a forked child, which has one thread. It runs after the handler of process.c, which was
 * installed first. */
static void fork_child(void) {
    while (process_count) close(processes[--process_count].fd);
    gr_close_talks();
    close_pipe(&watchdog);
    close_pipe(&hearer);
}
static void install_fork_handler(void) { pthread_atfork(NULL, NULL, fork_child); }

/* ---- the watchdog ------------------------------------------------------------------------------ */

static struct process *find(const struct gr_who *who) {
    for (uint32_t k = 0; k < process_count; k++)
        if (gr_same_who(&processes[k].who, who)) return &processes[k];
    return NULL;
}

/* The last one takes its place. */
static void forget_process(uint32_t k) {
    close(processes[k].fd);
    processes[k] = processes[--process_count];
}

/* After a look at all rings: those whose peers have left, and those that had none and have
 * exited. */
static void forget_processes(void) {
    for (uint32_t k = process_count; k-- > 0;)
        if (processes[k].look == 0 ? processes[k].exited : processes[k].look != looks)
            forget_process(k);
}

/* A process hands its pidfd over before it joins, so that it is known even if it is killed right
 * then. Of those that have no peer yet only a few are kept. One that is dropped is asked when it
 * has joined. */
void gr_know(const struct gr_who *who, int pidfd) {
    uint32_t unknown = 0;
    for (uint32_t k = 0; k < process_count; k++) unknown += processes[k].look == 0;
    if (find(who) || process_count == MAX_POLLED - 1 || unknown == MAX_UNKNOWN) close(pidfd);
    else processes[process_count++] = (struct process){.who = *who, .fd = pidfd};
}

static struct gr_who who_is(const struct gr_peer_entry *entry) {
    return (struct gr_who){.pid = gr_load_acquire(&entry->pid),
                           .start = gr_load_acquire(&entry->start),
                           .pidns = gr_load_acquire(&entry->pidns)};
}

/* Whether the pidfd of this peer's process will tell of its death. False: it has told already, or
 * there is none, because the process is gone, or has not answered, or the kernel gives none. If
 * there are too many processes, those that are not watched are found at the tick.
 *
 * A process that has exited is kept until its peers are cleared. Its pidfd tells nothing new then.
 * To open another one and poll it would keep a CPU busy while LOCK is held by a stopped process. */
static bool look_after(struct gr_ring *ring, uint32_t p) {
    const struct gr_peer_entry *entry = &ring->peer[p];
    const uint64_t id = gr_load_acquire(&entry->id); /* before who it is */
    const struct gr_who who = who_is(entry);
    const bool foreign = who.pidns != ring->pidns;
    struct process *process = find(&who);
    if (!process) {
        if (process_count == MAX_POLLED - 1) return !foreign;
        if (foreign) {
            gr_ask_for_pidfd(ring, &who);
            return false;
        }
        int fd = gr_pidfd((pid_t)who.pid);
        if (fd < 0) return false;
        process = &processes[process_count++];
        *process = (struct process){.who = who, .fd = fd};
    }
    process->look = looks;
    if (!process->exited) return true;
    /* Whether the number was given to another peer meanwhile: that one would have its byte, or its
     * entry would name another process by now. Partner: gpu_gone. */
    if (foreign && !gr_peer_alive(ring, p)) {
        const struct gr_who still = who_is(entry);
        if (gr_same_who(&still, &who)) gr_store_release(&ring->exited[p], id);
    }
    return false;
}

/* Watches the processes of the ring's peers. True: look again soon, because a peer has joined whose
 * entry may not be complete yet, or one cannot be watched. */
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
    const int64_t more_ms = (int64_t)process_count * process_count / 64;
    return (FULL_LOOK_MS + (more_ms < 900 ? more_ms : 900)) * INT64_C(1000000);
}

static void *watch(void *life) {
    struct pollfd polled[MAX_POLLED + MAX_SOCKETS];
    int tick_ms = TICK_MS;
    int64_t looked_ns = 0; /* when all peers were looked at */
    struct gr_ring *handles = gr_lock_handles();
    for (;;) {
        int64_t now = gr_now_ns();
        bool any = false, soon = false, full = now - looked_ns >= full_look_ns();
        bool can_answer = gr_answer(handles);
        if (full) looked_ns = now;
        looks++;
        for (struct gr_ring *ring = handles; ring; ring = ring->next) {
            if (!ring->watched) continue;
            any = true;
            soon |= refresh(ring);
            soon |= gr_leave_late(ring);
            if (full || ring->unwatchable) gr_reap_dead(ring, NULL);
        }
        if (!any) gr_end_talks();
        forget_processes();
        polled[0] = (struct pollfd){.fd = watchdog.out, .events = POLLIN};
        const uint32_t watched = process_count;
        for (uint32_t k = 0; k < watched; k++)
            polled[1 + k] = (struct pollfd){.fd = processes[k].exited ? -1 : processes[k].fd,
                                            .events = POLLIN};
        uint32_t n = 1 + watched;
        /* If they cannot be answered now, clients wait for the tick, or for the hearer. */
        if (can_answer) n += gr_list_sockets(handles, polled + n, MAX_SOCKETS);
        else soon = true;
        tick_ms = soon ? TICK_MS : tick_ms < LONG_TICK_MS / 2 ? 2 * tick_ms : LONG_TICK_MS;
        gr_unlock_handles();
        poll(polled, n, any ? tick_ms : -1);
        handles = gr_lock_handles();
        if (!goes_on(&watchdog, (uintptr_t)life)) break;
        /* The pidfd has told all. Rings that have peers of this process are looked at next, and
         * soon again, until LOCK was free and the peers are cleared. Meanwhile others may have
         * been added to the list, at its end. */
        for (uint32_t k = 0; k < watched; k++)
            processes[k].exited |= polled[1 + k].revents != 0;
    }
    gr_unlock_handles();
    return NULL;
}

/* ---- the hearer -------------------------------------------------------------------------------- */

enum { HEAR_MS = 1000 }; /* how often it looks whose time is over */

static void *hear(void *life) {
    struct pollfd polled[1 + GR_MAX_TALKS];
    for (bool room = false;; room = gr_hear_talks()) {
        gr_lock_handles();
        if (!goes_on(&hearer, (uintptr_t)life)) break;
        if (room) wake(&watchdog);
        polled[0] = (struct pollfd){.fd = hearer.out, .events = POLLIN};
        const uint32_t n = 1 + gr_list_talks(polled + 1);
        gr_unlock_handles();
        poll(polled, n, n > 1 ? HEAR_MS : -1);
    }
    gr_unlock_handles();
    return NULL;
}

bool gr_has_hearer(void) { return hearer.runs; }
void gr_wake_hearer(void) { wake(&hearer); }

bool gr_is_watched(const struct gr_ring *ring) {
    return atomic_load_explicit(&watchdog.runs, memory_order_relaxed) &&
           atomic_load_explicit(&ring->watched, memory_order_relaxed);
}

/* Call it on the way to sleep, when a poll is in vain, before a stream waits for a peer, and now and
 * then while spinning. It costs two relaxed loads unless a peer has joined. A stale value only
 * delays the news to the next call, or to the watchdog's tick. */
void gr_tell_of_joins(struct gr_ring *ring) {
    if (gr_load_relaxed(&ring->head->joins) == gr_load_relaxed(&ring->joins_seen) ||
        !gr_is_watched(ring))
        return;
    gr_lock_handles();
    wake(&watchdog);
    gr_unlock_handles();
}

/* Starts the threads at the first call in a process, and wakes the watchdog, because there are peers
 * to look after. If no thread can be started, every wait checks for dead peers after each slice
 * (wait.c). */
void gr_watch(struct gr_ring *ring) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handler);
    gr_lock_handles();
    ring->watched = true;
    if (ring->slots_fd >= 0) start(&hearer, hear);
    start(&watchdog, watch);
    wake(&watchdog);
    gr_unlock_handles();
}

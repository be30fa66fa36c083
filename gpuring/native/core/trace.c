/* Events of peers: written by the peers themselves, read by the tracer. trace.h says when. */
#define _GNU_SOURCE
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bell.h"
#include "handles.h"
#include "header.h"
#include "lock.h"

/* ---- peers ----------------------------------------------------------------------------------- */

enum room { THERE = 1 };               /* of gr_ring.room; 0: unknown; else: when there was none */
enum { BLANK_NS = 100 * 1000 * 1000 }; /* an event that takes longer to write is not waited for */

/* Whether any ring of this process may be traced. Relaxed: a stale value costs one slice. */
static _Atomic bool any;

static uint32_t thread_id(const struct gr_ring *ring) {
    static _Thread_local struct {
        uint64_t pid; /* a forked child has handles of its own, and another one here */
        uint32_t tid;
    } self;
    if (self.pid != ring->pid) {
        self.pid = ring->pid;
        self.tid = (uint32_t)syscall(SYS_gettid);
    }
    return self.tid;
}

/* Maps the table of events. Two threads may come here at once; the slower one undoes it. NULL: it
 * is not there, or there is no memory for it. */
static struct gr_trace_table *map_events(struct gr_ring *ring, int fd) {
    const uint64_t at = ring->layout.nbytes, nbytes = ring->layout.traced_nbytes - at;
    struct stat now;
    if (fstat(fd, &now) != 0 || (uint64_t)now.st_size != ring->layout.traced_nbytes) return NULL;
    struct gr_trace_table *mapped =
        mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    if (mapped == MAP_FAILED) return NULL;
    struct gr_trace_table *expected = NULL;
    if (atomic_compare_exchange_strong(&ring->events, &expected, mapped)) return mapped;
    munmap(mapped, nbytes);
    return expected;
}

/* The second of a time, which is not THERE. */
static uint32_t second_of(int64_t now) { return (uint32_t)(now / 1000000000) + THERE + 1; }

/* Sees to it that the peer number's events have memory: a store into a hole of a full /dev/shm would
 * end the process (SIGBUS). Without memory it has no events, and tries again in the next second. */
static struct gr_trace_table *make_room(struct gr_ring *ring, uint32_t number, int64_t now) {
    const int error = errno;
    int fd = gr_has_its_files(ring) ? gr_again(ring->lock_fd, O_RDWR) : -1;
    struct gr_trace_table *events = atomic_load_explicit(&ring->events, memory_order_acquire);
    if (fd >= 0 && !events) events = map_events(ring, fd);
    const uint64_t at = ring->layout.nbytes + number * sizeof(struct gr_trace_table);
    const bool there = fd >= 0 && events &&
                       posix_fallocate(fd, (off_t)at, sizeof(struct gr_trace_table)) == 0;
    gr_store_release(&ring->room[number], there ? THERE : second_of(now));
    if (fd >= 0) close(fd);
    errno = error;
    return there ? events + number : NULL;
}

static struct gr_trace_table *events_of(struct gr_ring *ring, uint32_t number, int64_t now) {
    const uint32_t room = gr_load_acquire(&ring->room[number]);
    if (room == THERE) return atomic_load_explicit(&ring->events, memory_order_acquire) + number;
    return room == second_of(now) ? NULL : make_room(ring, number, now);
}

/* Writes one event. Several threads of the process may do so at once. Partner: gr_trace_read. It
 * reads `count` after the event, so the turn is taken, with sc, before anything is overwritten. */
static void write_event(struct gr_ring *ring, uint32_t number, uint64_t id, int64_t now,
                        enum gr_event_kind kind, const uint64_t about[4]) {
    struct gr_trace_table *events = events_of(ring, number, now);
    if (!events) return;
    uint64_t turn = atomic_fetch_add_explicit(&events->count, 1, memory_order_seq_cst);
    struct gr_trace_event *event = &events->event[turn % GR_TRACE_EVENTS];
    gr_store_relaxed(&event->turn, 0);
    GR_FAULT("trace: begun");
    gr_store_relaxed(&event->time_ns, (uint64_t)now);
    gr_store_relaxed(&event->what, (uint64_t)thread_id(ring) << 32 | kind);
    gr_store_relaxed(&event->who, ring->pid << 32 | (id & 0xffffffff));
    for (int k = 0; k < 4; k++) gr_store_relaxed(&event->about[k], about[k]);
    gr_store_release(&event->turn, turn + 1);
    if (!gr_load_relaxed(&any)) gr_store_relaxed(&any, true);
}

/* Whether it is on at that time. Whoever sees that the time is over turns it off. If the tracer
 * goes on just now, the word has another value, and the swap fails. */
static bool is_on(const struct gr_ring *ring, int64_t now) {
    gr_word *until_ns = &ring->head->traced_until_ns;
    uint64_t until = gr_load_relaxed(until_ns);
    if (until > (uint64_t)now) return true;
    if (until) gr_cas(until_ns, until, 0);
    return false;
}

static void trace(const struct gr_peer *me, int64_t now, enum gr_event_kind kind,
                  const uint64_t about[4]) {
    if (is_on(me->ring, now) && !gr_forked(me->ring))
        write_event(me->ring, me->self.number, me->self.id, now, kind, about);
}

void gr_trace(const struct gr_peer *me, int64_t now_ns, enum gr_event_kind kind, uint64_t a,
              uint64_t b, uint64_t c) {
    trace(me, now_ns ? now_ns : gr_now_ns(), kind, (const uint64_t[4]){a, b, c, 0});
}

void gr_trace_wait(const struct gr_peer *me, const struct gr_culprit *culprit, bool in_loop) {
    const uint64_t id = culprit->peer < me->ring->max_peers
                            ? gr_load_relaxed(&me->ring->peer[culprit->peer].id)
                            : 0;
    const uint64_t word = (uint64_t)culprit->reason | (uint64_t)(culprit->peer & 0xffff) << 8 |
                          (uint64_t)(culprit->subscription & 0xffff) << 24 |
                          (uint64_t)in_loop << 40;
    trace(me, gr_now_ns(), GR_DID_WAIT,
          (const uint64_t[4]){word, culprit->seq, id, (uint64_t)me->wait.begun_ns});
}

/* Into the table of one peer of the ring that has events by now. */
static bool annotate(struct gr_ring *ring, int64_t now, enum gr_event_kind kind,
                     const uint64_t name[4]) {
    if (!is_on(ring, now)) return false;
    for (uint32_t p = 0; p < ring->max_peers; p++)
        if (gr_is_ours(ring, p) && gr_load_acquire(&ring->room[p]) == THERE) {
            write_event(ring, p, gr_load_relaxed(&ring->peer[p].id), now, kind, name);
            break;
        }
    return true;
}

void gr_annotate(enum gr_event_kind kind, const char name[32]) {
    if (!gr_load_relaxed(&any)) return;
    uint64_t words[4];
    memcpy(words, name, sizeof words);
    bool on = false;
    const int64_t now = gr_now_ns(); /* one for all rings, so that a reader knows it for the same */
    for (struct gr_ring *ring = gr_lock_handles(); ring; ring = ring->next)
        on |= annotate(ring, now, kind, words);
    gr_unlock_handles();
    if (!on) gr_store_relaxed(&any, false);
}

/* ---- the tracer ------------------------------------------------------------------------------ */

/* True: the time is extended. */
static bool extend(struct gr_tracer *tracer) {
    return atomic_exchange_explicit(&tracer->head->traced_until_ns,
                                    (uint64_t)(gr_now_ns() + GR_TRACE_NS),
                                    memory_order_seq_cst) != 0;
}
bool gr_trace_on(struct gr_tracer *tracer) { return extend(tracer); }
void gr_trace_off(struct gr_tracer *tracer) {
    gr_store_sc(&tracer->head->traced_until_ns, 0);
    gr_ring_bell_of(tracer->head);
}

/* -1: errno. A hole reads as zeros. It is not mapped, because a load from a hole would take memory,
 * too. */
static int read_at(const struct gr_tracer *tracer, void *to, size_t nbytes, uint64_t at) {
    ssize_t n;
    do n = pread(tracer->fd, to, nbytes, (off_t)at);
    while (n < 0 && errno == EINTR);
    if (n >= 0 && (size_t)n < nbytes) errno = EIO;
    return n == (ssize_t)nbytes ? 0 : -1;
}

static uint64_t place_of(const struct gr_tracer *tracer, uint32_t number) {
    return tracer->events_at + number * sizeof(struct gr_trace_table);
}

void gr_trace_end(struct gr_tracer *tracer) {
    const int error = errno;
    if (tracer->head) munmap(tracer->head, GR_PAGE);
    if (tracer->fd >= 0) close(tracer->fd);
    free(tracer);
    errno = error;
}

static struct gr_tracer *fail(struct gr_tracer *tracer) {
    if (tracer) gr_trace_end(tracer);
    return NULL;
}

struct gr_tracer *gr_trace_begin(int fd, const char **why, char *text, size_t text_nbytes) {
    struct gr_config config;
    struct gr_layout layout;
    if (!gr_check(fd, &config, &layout, why, text, text_nbytes)) return NULL;
    struct gr_tracer *tracer = calloc(1, sizeof *tracer);
    if (!tracer) return NULL;
    tracer->peers = config.max_peers;
    tracer->events_at = layout.nbytes;
    tracer->fences_at = layout.fence;
    tracer->fences_nbytes = sizeof(uint64_t) * config.slots * config.max_peers;
    tracer->fd = gr_again(fd, O_RDWR);
    /* One at a time: the second one would turn it off for the first. */
    if (tracer->fd < 0 || gr_lock_byte(tracer->fd, F_WRLCK, GR_TRACER_BYTE) != 0) {
        if (errno == EACCES) errno = EAGAIN;
        return fail(tracer);
    }
    /* It is never made shorter again: a peer may write at any time (SIGBUS). */
    if (ftruncate(tracer->fd, (off_t)layout.traced_nbytes) != 0) return fail(tracer);
    /* Of another description, because a mapping keeps a description, and with it the lock. */
    void *head = mmap(NULL, GR_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED) return fail(tracer);
    tracer->head = head;
    for (uint32_t p = 0; p < tracer->peers; p++) /* of an earlier trace */
        if (read_at(tracer, &tracer->next[p], 8, place_of(tracer, p)) != 0) return fail(tracer);
    extend(tracer);
    gr_ring_bell_of(tracer->head);
    return tracer;
}

/* How many of the events are whole. An event that is being written ends the row, for BLANK_NS. After
 * that its writer was probably killed. Then it counts as missed, and its turn is 0. */
static uint32_t whole(struct gr_tracer *tracer, uint32_t number, const struct gr_trace_event *events,
                      uint32_t n) {
    int64_t *since = &tracer->blank_ns[number];
    for (uint32_t k = 0; k < n; k++) {
        if (gr_load_relaxed(&events[k].turn) == tracer->next[number] + k + 1) {
            *since = 0;
            continue;
        }
        if (k == 0 && *since == 0) *since = gr_now_ns();
        if (k != 0 || gr_now_ns() - *since < BLANK_NS) return k;
        *since = 0;
        return 1;
    }
    return n;
}

int gr_trace_read(struct gr_tracer *tracer, uint32_t number, struct gr_trace_event *events, uint32_t n) {
    const uint64_t place = place_of(tracer, number), table = place + offsetof(struct gr_trace_table, event);
    uint64_t count, *next = &tracer->next[number];
    if (read_at(tracer, &count, 8, place) != 0) return -1;
    if (count < *next) *next = count; /* made up */
    if (count - *next > GR_TRACE_EVENTS) {
        tracer->missed[number] += count - GR_TRACE_EVENTS - *next;
        *next = count - GR_TRACE_EVENTS;
        tracer->blank_ns[number] = 0;
    }
    uint64_t at = *next % GR_TRACE_EVENTS;
    if (n > count - *next) n = (uint32_t)(count - *next);
    if (n > GR_TRACE_EVENTS - at) n = (uint32_t)(GR_TRACE_EVENTS - at);
    if (n == 0) return 0;
    if (read_at(tracer, events, n * sizeof *events, table + at * sizeof *events) != 0) return -1;
    n = whole(tracer, number, events, n);
    /* Partner: write_event. Events of which the turn has come again since may be a mixture. */
    if (read_at(tracer, &count, 8, place) != 0) return -1;
    uint32_t gone = 0;
    if (count > *next + GR_TRACE_EVENTS) {
        const uint64_t over = count - GR_TRACE_EVENTS - *next;
        gone = over < n ? (uint32_t)over : n;
    }
    for (uint32_t k = 0; k < n; k++) {
        const bool good = k >= gone && gr_load_relaxed(&events[k].turn) == *next + k + 1;
        if (!good) gr_store_relaxed(&events[k].turn, 0), tracer->missed[number]++;
    }
    *next += n;
    return (int)n;
}

int gr_trace_fences(const struct gr_tracer *tracer, uint64_t *fences) {
    return read_at(tracer, fences, tracer->fences_nbytes, tracer->fences_at);
}

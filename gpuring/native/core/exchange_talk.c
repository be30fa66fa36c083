/* Connections whose other side has not been heard yet, and the hearer, the thread that hears them.
 *
 * The watchdog of the process answers, so a main thread that never returns from a call into the
 * driver does not matter. It never waits for a client, and does a bounded number of steps at a
 * time. So it reads nothing that a client sends, and closes no connection. Descriptors may have come
 * with it, even more than there is room for, and to close one may take seconds or for ever (a TCP
 * socket that lingers, a file of a FUSE). The hearer reads and closes, and has no lock meanwhile.
 * What a client sends is read once, into a buffer of the right size. A client that sends nothing
 * is answered all the same, and then forgotten.
 */
#define _GNU_SOURCE
#include "exchange_talk.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bell.h"
#include "exchange_message.h"
#include "exchange_socket.h"
#include "handles.h"

enum { ANSWERS = 32 }; /* at one look; the others come at the next one, which comes at once */
#define TALK_NS (INT64_C(5) * 1000 * 1000 * 1000) /* how long the other side may take */

static struct gr_thread hearer = {.out = -1, .in = -1};
static struct gr_thread *answerer; /* the watchdog: woken when there is room for talks again */

/* ---- talks: connections whose other side has not been heard yet ------------------------------ */

/* The watchdog begins them, and the hearer ends them. */
enum { MAX_TALKS = 64 };
static struct talk {
    int fd;
    uint64_t ino;     /* of its socket */
    int64_t until_ns; /* 0: it is only to be closed */
    struct gr_who me, asked; /* asked: zero if the other side has connected */
} talks[MAX_TALKS];
static uint32_t talk_count;

static uint64_t ino_of(int fd) {
    struct stat at;
    return fstat(fd, &at) == 0 ? (uint64_t)at.st_ino : 0;
}

/* The caller has made sure that there is room. welcome: the other side may be a peer, so it gets
 * our message, and we read its message. */
static void begin_talk(int fd, const struct gr_ring *ring, struct gr_who asked, bool welcome,
                       int slots) {
    if (welcome) gr_tell(fd, ring, slots);
    talks[talk_count++] = (struct talk){.fd = fd,
                                        .ino = ino_of(fd),
                                        .until_ns = welcome ? gr_now_ns() + TALK_NS : 0,
                                        .me = gr_who_am_i(ring),
                                        .asked = asked};
    gr_wake(&hearer);
}

static void forget_talk(uint32_t k) {
    memmove(&talks[k], &talks[k + 1], (--talk_count - k) * sizeof *talks);
}

static bool is_ours(const struct talk *talk) { return ino_of(talk->fd) == talk->ino; }

/* One turn of the hearer. The caller does not have gr_lock_handles. No other thread ends talks.
 * True: the list was full, and is not full any more. If the program closes all its descriptors just
 * after this has checked one, and opens others, a message or one of these may be lost.
 *
 * If there are many talks, the oldest are ended. Their clients have been answered, and processes
 * that were asked for something will be asked again. */
static bool hear_talks(void) {
    gr_lock_handles();
    bool room = false;
    for (uint32_t k = 0; k < talk_count;) {
        const struct talk talk = talks[k];
        const bool ours = is_ours(&talk); /* not if the process closed everything */
        struct gr_heard heard = {.slots = -1, .pidfd = -1};
        gr_unlock_handles();
        const int said = ours && talk.until_ns ? gr_hear(talk.fd, &heard) : -1;
        gr_lock_handles();
        if (said == 0 && talk_count <= MAX_TALKS / 2 && gr_now_ns() < talk.until_ns) {
            k++;
            continue;
        }
        room |= talk_count == MAX_TALKS;
        forget_talk(k);
        gr_keep_pidfd(&talk.me, &heard);
        gr_unlock_handles();
        if (heard.slots >= 0) close(heard.slots);
        if (ours && is_ours(&talk)) close(talk.fd);
        gr_lock_handles();
    }
    gr_unlock_handles();
    return room;
}

static uint32_t list_talks(struct pollfd *polled) {
    for (uint32_t k = 0; k < talk_count; k++)
        polled[k] = (struct pollfd){.fd = talks[k].fd, .events = POLLIN};
    return talk_count;
}

void gr_end_talks(void) {
    for (uint32_t k = 0; k < talk_count; k++) talks[k].until_ns = 0;
    if (talk_count) gr_wake(&hearer);
}

void gr_close_talks(void) {
    while (talk_count)
        if (is_ours(&talks[--talk_count])) close(talks[talk_count].fd);
    gr_close_pipe(&hearer);
}

void gr_ask_for_pidfd(struct gr_ring *ring, const struct gr_who *who) {
    if (atomic_load_explicit(&ring->slots_fd, memory_order_relaxed) < 0 ||
        talk_count == MAX_TALKS || !hearer.runs)
        return;
    for (uint32_t k = 0; k < talk_count; k++)
        if (gr_same_who(&talks[k].asked, who)) return;
    int fd = gr_connect(ring, who);
    if (fd >= 0) begin_talk(fd, ring, *who, gr_may_be_peer(ring, fd), -1);
}

/* ---- for the watchdog ------------------------------------------------------------------------ */

/* Whether the descriptor is still that of our socket. Not if the process has closed all its
 * descriptors, as a daemon does. Then the number may be that of a socket at which the program
 * itself listens. */
static bool is_listening(const struct gr_ring *ring) {
    return ino_of(ring->listen_fd) == ring->listen_ino;
}

/* Answers those who have connected to this ring's socket. False: they cannot be answered now,
 * because there is no descriptor to do it with, or the hearer has not made room. */
static bool serve(struct gr_ring *ring) {
    if (!is_listening(ring)) {
        ring->listen_fd = -1;
        atomic_store_explicit(&ring->slots_fd, -1, memory_order_relaxed);
        return true;
    }
    for (int k = 0; k < ANSWERS; k++) {
        if (talk_count == MAX_TALKS || !hearer.runs) return false;
        int fd = accept4(ring->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        int slots = atomic_load_explicit(&ring->slots_fd, memory_order_relaxed);
        begin_talk(fd, ring, (struct gr_who){0}, gr_may_be_peer(ring, fd), slots);
    }
    return true;
}

uint32_t gr_list_sockets(const struct gr_ring *handles, struct pollfd *polled, uint32_t most) {
    uint32_t n = 0;
    for (const struct gr_ring *ring = handles; ring && n < most; ring = ring->next)
        if (ring->listen_fd >= 0)
            polled[n++] = (struct pollfd){.fd = ring->listen_fd, .events = POLLIN};
    return n;
}

bool gr_answer(struct gr_ring *handles) {
    bool can = true;
    for (struct gr_ring *ring = handles; ring; ring = ring->next)
        if (ring->listen_fd >= 0) can &= serve(ring);
    return can;
}

/* ---- the hearer ------------------------------------------------------------------------------ */

enum { HEAR_MS = 1000 }; /* how often it looks whose time is over */

static void *hear(void *life) {
    struct pollfd polled[1 + MAX_TALKS];
    for (bool room = false;; room = hear_talks()) {
        gr_lock_handles();
        if (!gr_goes_on(&hearer, (uintptr_t)life)) break;
        if (room) gr_wake(answerer);
        polled[0] = (struct pollfd){.fd = hearer.out, .events = POLLIN};
        const uint32_t n = 1 + list_talks(polled + 1);
        gr_unlock_handles();
        poll(polled, n, n > 1 ? HEAR_MS : -1);
    }
    gr_unlock_handles();
    return NULL;
}

void gr_start_hearer(struct gr_thread *wakes) {
    answerer = wakes;
    gr_start_thread(&hearer, hear);
}

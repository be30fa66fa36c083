/* Fetches the descriptor of a ring's slots: asks the creator and all peers, and takes the first
 * answer.
 *
 * Any process that answers may lie, and send descriptors whose close takes for ever, or more
 * descriptors than there is room for. So a thread of its own reads each answer. The thread that asks
 * waits for one answer for a moment, and then for the others as well, but never beyond its time. */
#define _GNU_SOURCE
#include "exchange_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bell.h"
#include "exchange_message.h"
#include "exchange_socket.h"
#include "handles.h"
#include "process.h"
#include "thread.h"

enum { AGAIN_NS = 10 * 1000 * 1000 }; /* when to ask, or look, again */

/* ---- one answer ------------------------------------------------------------------------------ */

/* The thread that asked and the one that reads the answer share it. The last one to let go frees
 * it. */
enum { HEARING, HEARD, LET_GO };
struct gr_hearing {
    _Atomic uint32_t state;
    int fd, said, error;
    struct gr_heard heard;
};

static void drop(struct gr_hearing *hearing) {
    if (hearing->heard.slots >= 0) gr_close_aside(hearing->heard.slots);
    if (hearing->heard.pidfd >= 0) close(hearing->heard.pidfd);
    free(hearing);
}

static void *hear(void *argument) {
    struct gr_hearing *hearing = argument;
    const int fd = hearing->fd;
    hearing->said = gr_hear(fd, &hearing->heard);
    hearing->error = errno;
    if (atomic_exchange(&hearing->state, HEARD) == LET_GO) drop(hearing);
    else syscall(SYS_futex, &hearing->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    close(fd); /* more may have come */
    return NULL;
}

/* Its connection is the thread's now. False: no memory. */
static bool begin_hearing(struct gr_asked *asked) {
    struct gr_hearing *hearing = malloc(sizeof *hearing);
    if (!hearing) return false;
    *hearing = (struct gr_hearing){.fd = asked->fd, .heard = {.slots = -1, .pidfd = -1}};
    asked->hearing = hearing;
    asked->fd = -1;
    if (gr_begin_thread(hear, hearing) != 0) hear(hearing);
    return true;
}

static bool is_heard(struct gr_hearing *hearing, int64_t until_ns) {
    int64_t left_ns;
    while (atomic_load(&hearing->state) == HEARING && (left_ns = until_ns - gr_now_ns()) > 0) {
        const struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        syscall(SYS_futex, &hearing->state, FUTEX_WAIT_PRIVATE, HEARING, &left, NULL, 0);
    }
    return atomic_load(&hearing->state) == HEARD;
}

/* ---- all who are asked ----------------------------------------------------------------------- */

static void list(struct gr_fetch *fetch, const struct gr_ring *ring, struct gr_who who) {
    const struct gr_who me = gr_who_am_i(ring);
    if (gr_same_who(&who, &me)) return;
    for (uint32_t k = 0; k < fetch->n; k++)
        if (gr_same_who(&fetch->asked[k].who, &who)) return;
    fetch->asked[fetch->n++] = (struct gr_asked){.who = who, .fd = -1};
}

/* Lists whom to ask: the creator, and the processes of all peers. */
void gr_fetch_begin(struct gr_fetch *fetch, struct gr_ring *ring) {
    const struct gr_head *head = ring->head;
    fetch->n = 0;
    list(fetch, ring, (struct gr_who){.pid = head->creator_pid,
                                      .start = head->creator_start,
                                      .pidns = head->creator_pidns});
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        const struct gr_peer_entry *entry = &ring->peer[p];
        if (state_of(gr_load_acquire(&entry->word)) != GR_FREE)
            list(fetch, ring, gr_who_is(entry));
    }
}

static bool is_here(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

/* Connects to the processes that accept. 1: one of them is to be asked again soon. -1: this process
 * can make no connection; errno. */
static int greet_all(struct gr_fetch *fetch, const struct gr_ring *ring) {
    int again = 0;
    for (uint32_t k = 0; k < fetch->n; k++) {
        struct gr_asked *asked = &fetch->asked[k];
        if (asked->fd >= 0 || asked->hearing || asked->gone) continue;
        if (gr_now_ns() < asked->next_ns) {
            again = 1;
            continue;
        }
        asked->fd = gr_greet(ring, &asked->who);
        if (asked->fd < 0 && is_here(errno)) return -1;
        asked->gone = asked->fd < 0 && errno != EAGAIN && errno != EINTR;
        asked->met |= !asked->gone;
        if (asked->fd < 0 && !asked->gone) again = 1;
    }
    return again;
}

/* A copy of what this process has offered itself. -1: errno, ENOENT if it has offered nothing. */
static int own(const struct gr_ring *ring) {
    struct gr_ring *other = gr_lock_handles();
    while (other && !(other->slots_fd >= 0 && gr_same_ring(other, ring) && gr_has_its_files(other)))
        other = other->next;
    errno = ENOENT;
    int fd = other ? fcntl(other->slots_fd, F_DUPFD_CLOEXEC, 0) : -1, error = errno;
    gr_unlock_handles();
    errno = error;
    return fd;
}

/* The answer of a process: the descriptor of the slots, or -1. errno is EMFILE if it was lost. */
static int take_answer(struct gr_asked *asked, const struct gr_ring *ring) {
    struct gr_hearing *hearing = asked->hearing;
    const int said = hearing->said, slots = hearing->heard.slots;
    const bool lost = said < 0 && hearing->error == EMFILE;
    asked->hearing = NULL;
    asked->without = said > 0 && slots < 0;
    asked->gone = said != 0 && !asked->without;
    asked->next_ns = gr_now_ns() + AGAIN_NS;
    const struct gr_who me = gr_who_am_i(ring);
    gr_lock_handles();
    gr_keep_pidfd(&me, &hearing->heard);
    gr_unlock_handles();
    free(hearing);
    errno = lost ? EMFILE : EAGAIN;
    return slots;
}

/* Waits until `until_ns`, or a signal, for the first descriptor that comes, and returns it.
 * -1: errno is EAGAIN if some have not answered yet, ENOENT if no process could answer, or says what
 * this process lacks. */
int gr_fetch_go_on(struct gr_fetch *fetch, struct gr_ring *ring, int64_t until_ns) {
    struct pollfd polled[GR_MAX_PEERS + 1];
    int slots = own(ring);
    if (slots < 0 && is_here(errno)) return -1;
    while (slots < 0) {
        const int again = greet_all(fetch, ring);
        if (again < 0) return -1;
        bool open = again, soon = again;
        for (uint32_t k = 0; k < fetch->n; k++) {
            polled[k] = (struct pollfd){.fd = fetch->asked[k].fd, .events = POLLIN};
            soon |= fetch->asked[k].hearing != NULL;
            open |= polled[k].fd >= 0 || soon;
        }
        if (!open) {
            errno = ENOENT;
            return -1;
        }
        int64_t left_ms = (until_ns - gr_now_ns() + 999999) / 1000000;
        if (left_ms < 0) left_ms = 0;
        if (soon && left_ms > AGAIN_NS / 1000000) left_ms = AGAIN_NS / 1000000;
        int fired = poll(polled, fetch->n, left_ms > 1000000 ? 1000000 : (int)left_ms);
        const int64_t moment_ns = gr_now_ns() + AGAIN_NS;
        for (uint32_t k = 0; k < fetch->n && slots < 0; k++) {
            struct gr_asked *asked = &fetch->asked[k];
            if (fired > 0 && polled[k].revents && !begin_hearing(asked)) return -1;
            if (!asked->hearing || !is_heard(asked->hearing, moment_ns)) continue;
            slots = take_answer(asked, ring);
            if (slots < 0 && errno == EMFILE) return -1;
        }
        if (slots < 0 && (fired < 0 || gr_now_ns() >= until_ns)) {
            errno = EAGAIN;
            return -1;
        }
    }
    return slots;
}

void gr_fetch_end(struct gr_fetch *fetch) {
    for (uint32_t k = 0; k < fetch->n; k++) {
        struct gr_hearing *hearing = fetch->asked[k].hearing;
        if (fetch->asked[k].fd >= 0) gr_close_aside(fetch->asked[k].fd);
        if (hearing && atomic_exchange(&hearing->state, LET_GO) == HEARD) drop(hearing);
    }
    fetch->n = 0;
}

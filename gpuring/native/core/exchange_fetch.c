/* Fetches the descriptor of a ring's slots: asks the creator and all peers, and takes the first
 * answer. */
#define _GNU_SOURCE
#include "exchange_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "bell.h"
#include "exchange_message.h"
#include "exchange_socket.h"
#include "handles.h"
#include "process.h"

enum { AGAIN_NS = 10 * 1000 * 1000 }; /* when to ask again */

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

/* Connects to those who can be connected to. 1: one of them is to be asked again soon. -1: this
 * process cannot make one; errno. */
static int greet_all(struct gr_fetch *fetch, const struct gr_ring *ring) {
    int again = 0;
    for (uint32_t k = 0; k < fetch->n; k++) {
        struct gr_asked *asked = &fetch->asked[k];
        if (asked->fd >= 0 || asked->gone) continue;
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

/* Waits until `until_ns`, or a signal, for the first descriptor that comes, and returns it.
 * -1: errno is EAGAIN if some have not answered yet, ENOENT if there is nobody who could, or what
 * this process lacks. */
int gr_fetch_go_on(struct gr_fetch *fetch, struct gr_ring *ring, int64_t until_ns) {
    struct pollfd polled[GR_MAX_PEERS + 1];
    int slots = own(ring);
    if (slots < 0 && is_here(errno)) return -1;
    while (slots < 0) {
        const int again = greet_all(fetch, ring);
        if (again < 0) return -1;
        bool open = again;
        for (uint32_t k = 0; k < fetch->n; k++) {
            polled[k] = (struct pollfd){.fd = fetch->asked[k].fd, .events = POLLIN};
            open |= polled[k].fd >= 0;
        }
        if (!open) {
            errno = ENOENT;
            return -1;
        }
        int64_t left_ms = (until_ns - gr_now_ns() + 999999) / 1000000;
        if (left_ms < 0) left_ms = 0;
        if (again && left_ms > AGAIN_NS / 1000000) left_ms = AGAIN_NS / 1000000;
        int fired = poll(polled, fetch->n, left_ms > 1000000 ? 1000000 : (int)left_ms);
        for (uint32_t k = 0; k < fetch->n && fired > 0; k++) {
            struct gr_asked *asked = &fetch->asked[k];
            struct gr_heard heard;
            if (asked->fd < 0 || !polled[k].revents) continue;
            int said = gr_hear(asked->fd, &heard);
            if (said == 0) continue;
            const bool lost = said < 0 && errno == EMFILE;
            close(asked->fd);
            asked->fd = -1;
            asked->without = said > 0 && heard.slots < 0;
            asked->gone = !asked->without;
            asked->next_ns = gr_now_ns() + AGAIN_NS;
            if (lost && slots < 0) {
                errno = EMFILE;
                return -1;
            }
            if (said < 0) continue;
            const struct gr_who me = gr_who_am_i(ring);
            gr_lock_handles();
            gr_keep_pidfd(&me, &heard);
            gr_unlock_handles();
            if (slots < 0) slots = heard.slots;
            else if (heard.slots >= 0) close(heard.slots);
        }
        if (slots < 0 && (fired < 0 || gr_now_ns() >= until_ns)) {
            errno = EAGAIN;
            return -1;
        }
    }
    return slots;
}

void gr_fetch_end(struct gr_fetch *fetch) {
    for (uint32_t k = 0; k < fetch->n; k++)
        if (fetch->asked[k].fd >= 0) close(fetch->asked[k].fd);
    fetch->n = 0;
}

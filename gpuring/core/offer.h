/* What offer.c, talk.c and watchdog.c share. */
#ifndef GPURING_OFFER_H
#define GPURING_OFFER_H

#include <poll.h>

#include "ring.h"

static inline bool gr_same_who(const struct gr_who *a, const struct gr_who *b) {
    return a->pid == b->pid && a->start == b->start && a->pidns == b->pidns;
}

static inline struct gr_who gr_who_am_i(const struct gr_ring *ring) {
    return (struct gr_who){.pid = ring->pid, .start = ring->start, .pidns = ring->pidns};
}

/* offer.c */
/* A connection to the socket of a process of the ring, without a wait. -1: errno. */
int gr_connect(const struct gr_ring *ring, const struct gr_who *who);

/* talk.c */
struct gr_heard {
    struct gr_who who;
    int slots, pidfd; /* -1 if it did not come */
};
/* The same, with our message under way. */
int gr_greet(const struct gr_ring *ring, const struct gr_who *who);
/* 1: a message was read. 0: not yet. -1: none will come, or what came is none; errno is EMFILE if
 * descriptors were lost because this process has too many. */
int gr_hear(int fd, struct gr_heard *heard);

/* All that follows is called under gr_lock_handles. */
void gr_keep_pidfd(const struct gr_who *me, const struct gr_heard *heard);
enum { GR_MAX_TALKS = 64 };
/* Asks a process of the ring for its pidfd, unless it was asked and has time to answer. */
void gr_ask_for_pidfd(struct gr_ring *ring, const struct gr_who *who);
/* Lists the sockets to poll, at most `most` of them; returns how many. */
uint32_t gr_list_sockets(const struct gr_ring *handles, struct pollfd *polled, uint32_t most);
/* Answers and hears whoever is there, without a wait. False: there is no descriptor to answer with,
 * so the sockets stay readable for now. */
bool gr_attend(struct gr_ring *handles);
void gr_forget_talks(bool ours); /* ours: their descriptors are still ours to close */

/* watchdog.c */
/* Takes over the pidfd of a process of another pid namespace. */
void gr_know(const struct gr_who *who, int pidfd);

#endif

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
/* The same, with our message under way. The caller may wait at its close. */
int gr_greet(const struct gr_ring *ring, const struct gr_who *who);
/* 1: a message was read. 0: not yet. -1: none will come, or what came is none; errno is EMFILE if
 * descriptors were lost because this process has too many. */
int gr_hear(int fd, struct gr_heard *heard);

/* One turn of the hearer: hears whoever has said something, and ends talks. It may wait for as long
 * as it takes to close what others have sent. True: there is room for talks again. */
bool gr_hear_talks(void);

/* All that follows is called under gr_lock_handles. None of it waits. */
void gr_keep_pidfd(const struct gr_who *me, const struct gr_heard *heard);
enum { GR_MAX_TALKS = 64 };
/* Asks a process of the ring for its pidfd, unless it was asked and has time to answer. */
void gr_ask_for_pidfd(struct gr_ring *ring, const struct gr_who *who);
/* Lists the sockets at which to listen, at most `most` of them; returns how many. */
uint32_t gr_list_sockets(const struct gr_ring *handles, struct pollfd *polled, uint32_t most);
/* Answers whoever is there. False: not all can be answered now, so the sockets stay readable. */
bool gr_answer(struct gr_ring *handles);
uint32_t gr_list_talks(struct pollfd *polled); /* the same, of talks: GR_MAX_TALKS at most */
void gr_end_talks(void);   /* has the hearer do that */
void gr_close_talks(void); /* in a forked child, whose parent has them, too */

/* watchdog.c */
/* Takes over the pidfd of a process of another pid namespace. */
void gr_know(const struct gr_who *who, int pidfd);
bool gr_has_hearer(void);
void gr_wake_hearer(void);

#endif

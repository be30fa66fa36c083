/* What watchdog.c and offer.c share. Everything here is called under gr_lock_handles. */
#ifndef GPURING_OFFER_H
#define GPURING_OFFER_H

#include <poll.h>

#include "ring.h"

static inline bool gr_same_who(const struct gr_who *a, const struct gr_who *b) {
    return a->pid == b->pid && a->start == b->start && a->pidns == b->pidns;
}

/* offer.c */
enum { GR_MAX_TALKS = 64 };
/* Asks a process of the ring for its pidfd, unless it was asked and has time to answer. */
void gr_ask(struct gr_ring *ring, const struct gr_who *who);
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

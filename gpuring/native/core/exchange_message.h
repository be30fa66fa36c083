/* What processes say to each other at their sockets. Nothing here waits, except gr_hear, which
 * closes what has come and is not wanted. */
#pragma once

#include "process.h"
#include "ring.h"

struct gr_heard {
    struct gr_who who;
    int slots, pidfd; /* -1 if it did not come */
};
/* Whether the process at the other end of a connection may have what we have. */
bool gr_may_be_peer(const struct gr_ring *ring, int fd);
/* Says who we are, and hands over the descriptor of the slots; slots -1: none. */
void gr_tell(int fd, const struct gr_ring *ring, int slots);
/* Connects to a process of the ring, with our message under way. -1: errno. */
int gr_greet(const struct gr_ring *ring, const struct gr_who *who);
/* 1: a message was read. 0: not yet. -1: none will come, or what came is none; errno is EMFILE if
 * descriptors were lost because this process has too many. */
int gr_hear(int fd, struct gr_heard *heard);
/* Under gr_lock_handles. */
void gr_keep_pidfd(const struct gr_who *me, const struct gr_heard *heard);

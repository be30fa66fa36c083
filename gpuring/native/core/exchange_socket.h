/* Where the processes of a ring meet: see exchange_socket.c. Under whatever lock its callers
 * have. */
#pragma once

#include <string.h>
#include <sys/un.h>

#include "process.h"
#include "ring.h"

/* The directory of the ring; returns the length of its path. And the path of a process in it. */
int gr_socket_directory(const struct gr_ring *ring, struct sockaddr_un *at);
void gr_socket_path(const struct gr_ring *ring, const struct gr_who *who, const char *suffix,
                    struct sockaddr_un *at);
int gr_new_socket(void);
/* A connection to the socket of a process of the ring, without a wait. -1: errno. */
int gr_connect(const struct gr_ring *ring, const struct gr_who *who);
void gr_remove_stale(const struct gr_ring *ring, const struct gr_peer_entry *entry);
void gr_withdraw_offer(struct gr_ring *ring, struct gr_ring *handles);

/* Whether two handles are of one ring. */
static inline bool gr_same_ring(const struct gr_ring *a, const struct gr_ring *b) {
    return memcmp(a->head->epoch, b->head->epoch, sizeof a->head->epoch) == 0;
}

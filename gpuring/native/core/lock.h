/* LOCK, the locked bytes that say who lives, and what is counted under LOCK. For members.c and
 * reap.c, which change the members. Frame verbs never come here. */
#pragma once

#include "ring.h"

/* Bytes of lock_fd. Peer p locks byte p for as long as it lives. */
enum {
    GR_LOCK_BYTE = 256,     /* the membership lock */
    GR_CREATOR_BYTE = 257,  /* held by the creator's handle */
    GR_ATTACHED_BYTE = 259, /* shared by every handle that maps the header */
    /* In a header a process locks it while it takes the file's name away or looks whether it may.
     * In slots their maker locks it until their ring has its name. What lies behind it does not
     * count as using the ring. */
    GR_NAME_BYTE = 260,
    GR_TRACER_BYTE = 261,   /* held by the tracer of the ring */
    GR_SETTLING_BYTE = 262, /* held while somebody counts what earlier rings owe (host/debts.c) */
};

/* Locks a byte through that description (F_WRLCK, F_RDLCK), or unlocks it (F_UNLCK), and never
 * waits. 0, or -1: errno. */
int gr_lock_byte(int lock_fd, short type, int byte);

/* How long a join, a leave or a change of a subscription waits for LOCK. A healthy holder keeps it
 * for microseconds, a stopped one for ever. */
#define GR_PATIENCE_NS (INT64_C(5) * 1000 * 1000 * 1000)

/* Takes LOCK, or returns GR_LOCK_TIMEOUT; patience_ns 0 tries once. */
enum gr_result gr_lock(struct gr_ring *ring, int64_t patience_ns);
void gr_unlock(struct gr_ring *ring);
/* Under LOCK: whether each peer and each subscription in use has its bit in the masks. A bit too
 * few would hide it (M2). */
bool gr_masks_cover(const struct gr_ring *ring);

bool gr_peer_alive(struct gr_ring *ring, uint32_t number); /* its byte is locked, or it is ours */
bool gr_is_creator(const struct gr_ring *ring); /* whether this process has created it */
bool gr_creator_alive(struct gr_ring *ring);
bool gr_attached(struct gr_ring *ring); /* whether there is another handle, in any process */

/* Whether the peer has joined through this handle. Partner: gr_set_mine. */
static inline bool gr_is_ours(const struct gr_ring *ring, uint32_t p) {
    return gr_load_acquire(&ring->mine[p]) != 0;
}

/* What follows is called under LOCK. */
void gr_set_mine(struct gr_ring *ring, uint32_t p, uint64_t id);
void gr_count_producers(struct gr_ring *ring, uint32_t without, enum gr_end how);
bool gr_has_other_member(struct gr_ring *ring, uint32_t u, uint32_t p);

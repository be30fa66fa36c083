/* What members.c and reap.c share. Everything but gr_lock is called under LOCK. */
#ifndef GPURING_MEMBERS_H
#define GPURING_MEMBERS_H

#include "ring.h"

/* members.c */
/* Takes LOCK, or returns GR_LOCK_TIMEOUT; patience_ns 0 tries once. */
enum gr_result gr_lock(struct gr_ring *ring, int64_t patience_ns);
void gr_unlock(struct gr_ring *ring);
void gr_count_producers(struct gr_ring *ring, uint32_t without, enum gr_end how);
bool gr_has_other_member(struct gr_ring *ring, uint32_t u, uint32_t p);
void gr_remove_subscription(struct gr_ring *ring, uint32_t u);

/* reap.c */
void gr_take_back(struct gr_ring *ring, uint32_t p, uint32_t u);
void gr_clear_orphans(struct gr_ring *ring);

#endif

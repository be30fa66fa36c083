/* What is owed to a durable subscription by rings that had the name of its ring earlier. */
#pragma once

#include "ring.h"

/* A ring that had this name before owes `n` frames to the subscription, and has `earlier`, which is
 * above 1, in its epoch. Then the caller has that ring forget the subscription, and says so here.
 * Whoever is killed in between, gr_being_settled tells the next one which ring has yet to forget.
 * GR_CLOSED: the earlier one still owes it, to the ring that follows both. GR_BLOCKED: nothing is
 * owed to the subscription that has this number now, or another ring is being settled. */
enum gr_result gr_settle(struct gr_ring *ring, uint32_t u, uint64_t earlier, uint64_t n);
enum gr_result gr_settled(struct gr_ring *ring, uint32_t u);
uint64_t gr_being_settled(struct gr_ring *ring, uint32_t u); /* 0: none */
/* No earlier ring owes it anything any more. */
enum gr_result gr_all_settled(struct gr_ring *ring, uint32_t u);

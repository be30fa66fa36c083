/* What earlier rings of the same name still owe to a durable subscription. */
#pragma once

#include "ring.h"

/* gr_settle adds the `n` frames that an earlier ring owes to the subscription. `earlier`, which is
 * above 1, is the part of that ring's epoch that names it. Then the caller has that ring forget the
 * subscription, and calls gr_settled. If the caller is killed in between, gr_being_settled tells
 * the next one which ring has yet to forget. GR_CLOSED: this ring was closed, and the earlier one
 * still owes the frames, to the ring that follows both. GR_BLOCKED: nothing is owed to the
 * subscription that has this number now, or another ring is being settled. */
enum gr_result gr_settle(struct gr_ring *ring, uint32_t u, uint64_t earlier, uint64_t n);
enum gr_result gr_settled(struct gr_ring *ring, uint32_t u);
uint64_t gr_being_settled(struct gr_ring *ring, uint32_t u); /* 0: none */
/* No earlier ring owes it anything any more. */
enum gr_result gr_all_settled(struct gr_ring *ring, uint32_t u);

/* The verbs of producers, one call for one whole transition; and promises, which consumers make,
 * too. */
#pragma once

#include "peer.h"

uint64_t gr_frontier(struct gr_ring *ring);
enum gr_result gr_claim(struct gr_peer *me);
uint64_t gr_promise(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_publish(struct gr_peer *me, uint32_t index, uint64_t seq, uint64_t value,
                          uint32_t ndim, const uint64_t *shape);
void gr_drop(struct gr_peer *me);
enum gr_result gr_abandon(struct gr_peer *me, uint32_t index, uint64_t seq);
void gr_list_pending(struct gr_peer *me, uint32_t index);
/* The look of a claim. GR_OK: *c could be claimed now. */
enum gr_result gr_look_to_claim(const struct gr_peer *me, uint64_t *c, struct gr_culprit *culprit);

/* The verbs of consumers, one call for one whole transition; whether a verb of either role would
 * be blocked; and which frames are torn. */
#ifndef GPURING_CONSUME_H
#define GPURING_CONSUME_H

#include <stdbool.h>
#include <stdint.h>

#include "peer.h"

enum gr_result gr_acquire(struct gr_peer *me);
enum gr_result gr_latest(struct gr_peer *me);
enum gr_result gr_release(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_give_back(struct gr_peer *me, uint32_t index, uint64_t seq);
/* For a reader that comes here from another ring, before its first verb: what was there before its
 * subscription is lost. */
void gr_count_before(struct gr_peer *me);
void gr_skip_torn(struct gr_peer *me);
bool gr_torn(const struct gr_ring *ring, uint32_t index, uint32_t producer, uint64_t producer_id,
             uint64_t value);
bool gr_holds(struct gr_peer *me, uint32_t index, uint64_t *seq);
enum gr_result gr_look(const struct gr_peer *me, uint64_t *seq, struct gr_culprit *culprit);

/* GR_BLOCKED if claim or acquire would be blocked now; anything else is an answer that it would
 * have. */
static inline enum gr_result gr_ready(const struct gr_peer *me) {
    uint64_t seq;
    struct gr_culprit culprit;
    return gr_look(me, &seq, &culprit);
}

#endif

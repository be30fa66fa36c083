/* How a consumer gets a frame, one call for one whole transition; and whether a verb of either role
 * would be blocked. */
#pragma once

#include "peer.h"

enum gr_result gr_acquire(struct gr_peer *me);
enum gr_result gr_latest(struct gr_peer *me);
/* For a reader that follows from another ring. Counts as lost what was in this ring before its
 * subscription began. Call it before its first verb. */
void gr_count_before(struct gr_peer *me);
/* For a ring that a bridge fills. lost: how much had been lost upstream when the ring was made. If
 * the join has made a subscription that begins with the ring, it counts what was lost upstream
 * since then. Call it before its first verb. */
static inline void gr_count_since(struct gr_peer *me, int64_t lost) {
    if (!me->cursor.first) return;
    me->cursor.counts_on = true;
    me->cursor.lost_before = (uint32_t)lost;
}
/* Counts n frames as lost; they are reported with the next frame. */
void gr_count_lost(struct gr_peer *me, uint64_t n);
enum gr_result gr_look(const struct gr_peer *me, uint64_t *seq, struct gr_culprit *culprit);

/* GR_BLOCKED if claim or acquire would be blocked now; anything else is an answer that it would
 * have. */
static inline enum gr_result gr_ready(const struct gr_peer *me) {
    uint64_t seq;
    struct gr_culprit culprit;
    return gr_look(me, &seq, &culprit);
}

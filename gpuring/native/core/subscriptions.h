/* Subscriptions: where they begin, and how long they stay. For members.c and reap.c, and for callers
 * that make durable ones. */
#pragma once

#include "peer.h"

enum gr_start { GR_START_NEXT, GR_START_OLDEST, GR_START_AT };

/* In `owed` of a subscription: what else that word says, and the number itself. */
#define GR_COUNTED (UINT64_C(1) << 63) /* in `owed` */
#define GR_SETTLED (UINT64_C(1) << 62)
#define GR_OWED (GR_SETTLED - 1)

/* What a subscription is made with. */
struct gr_terms {
    unsigned mode, policy;
    enum gr_start from;
    uint64_t start;
    /* durable: for how long producers wait for it without a member, 0 for ever; how many frames of
     * earlier rings it has lost, of which its next member is told; `earlier` of its entry */
    uint64_t patience_ns, owed, earlier;
};

/* Makes a durable subscription, or makes one durable that is there, with this patience.
 * GR_MODE_MISMATCH: it is there with the other mode or policy. */
enum gr_result gr_subscribe(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                            const struct gr_terms *terms);
/* Makes it an ordinary subscription, which goes with its last member, and at once if it has none.
 * False in *found: there is none of this name. */
enum gr_result gr_unsubscribe(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                              bool *found);
/* Gives up durable subscriptions whose patience is over. Does not wait for LOCK. */
void gr_give_up_late(struct gr_ring *ring);
/* How many frames it has lost that were reported to nobody, if another ring takes the name of this
 * one. GR_BLOCKED: a member lives, and may still read what is left here. */
enum gr_result gr_owed(struct gr_ring *ring, uint32_t u, uint64_t *owed);

/* A member is done with the frame that reported what was lost while the subscription had no member. */
void gr_pay(struct gr_peer *me);

/* What follows is called under LOCK. */
uint32_t gr_find_subscription(const struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                              uint32_t *unused);
void gr_begin_subscription(struct gr_ring *ring, uint32_t u, const char name[GR_NAME_WORDS * 8],
                 const struct gr_terms *terms);
bool gr_agrees(const struct gr_ring *ring, uint32_t u, const struct gr_terms *terms);
bool gr_take_up(struct gr_ring *ring, struct gr_peer *me);
void gr_lose_last_member(struct gr_ring *ring, uint32_t u);

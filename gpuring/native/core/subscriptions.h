/* Subscriptions: where they begin, and how long they stay. For members.c and reap.c, and for who
 * makes a durable one. */
#pragma once

#include "peer.h"

enum gr_start { GR_START_NEXT, GR_START_OLDEST, GR_START_AT };

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
/* It goes with its last member, so at once if it has none. False in *found: there is none of this
 * name. */
enum gr_result gr_unsubscribe(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                              bool *found);
/* Gives up durable subscriptions whose patience is over. Does not wait for LOCK. */
void gr_give_up_late(struct gr_ring *ring);
/* How many frames it has lost that nobody was told of, if another ring takes the name of this one. A
 * member that lives may still read what is left here, so that counts only if there is none. */
uint64_t gr_owed(struct gr_ring *ring, uint32_t u);
/* Whether a member of it lives. */
bool gr_is_read(struct gr_ring *ring, uint32_t u);

/* A ring that had this name before owes `n` frames to the subscription, and has `earlier`, which is
 * above 1, in its epoch. Then the caller has that ring forget the subscription, and says so here.
 * Whoever is killed in between, gr_being_settled tells the next one which ring has yet to forget.
 * GR_CLOSED: this ring owes it no more than the earlier one, to the ring that follows both. */
enum gr_result gr_settle(struct gr_ring *ring, uint32_t u, uint64_t earlier, uint64_t n);
enum gr_result gr_settled(struct gr_ring *ring, uint32_t u);
uint64_t gr_being_settled(struct gr_ring *ring, uint32_t u); /* 0: none */
/* No earlier ring owes it anything any more. */
enum gr_result gr_all_settled(struct gr_ring *ring, uint32_t u);

/* A member is done with the frame with which it was told what was lost while nobody read. */
void gr_pay(struct gr_peer *me);

/* What follows is called under LOCK. */
uint32_t gr_find_subscription(const struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                              uint32_t *unused);
void gr_begin_subscription(struct gr_ring *ring, uint32_t u, const char name[GR_NAME_WORDS * 8],
                 const struct gr_terms *terms);
bool gr_agrees(const struct gr_ring *ring, uint32_t u, const struct gr_terms *terms);
bool gr_take_up(struct gr_ring *ring, struct gr_peer *me);
void gr_lose_last_member(struct gr_ring *ring, uint32_t u);

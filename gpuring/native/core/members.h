/* Membership: join, leave and close. From any thread, under no lock of this library. */
#pragma once

#include "peer.h"
#include "subscriptions.h"

/* A join starts no watchdog: call gr_watch, too (watchdog.h). */
enum gr_result gr_join_producer(struct gr_ring *ring, struct gr_peer *me);
enum gr_result gr_join_consumer(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                                unsigned mode, unsigned policy, enum gr_start from,
                                uint64_t start, struct gr_peer *me);
void gr_set_label(const struct gr_peer *me, const char label[8 * GR_LABEL_WORDS]);
enum gr_result gr_leave(struct gr_peer *me);
/* Whether a dropped peer could not leave yet, because somebody else had LOCK. Then call gr_watch,
 * which does the rest. */
static inline bool gr_leaves_late(const struct gr_peer *me) {
    return gr_load_acquire(&me->ring->unleft[me->self.number]) == me->self.id;
}
bool gr_leave_late(struct gr_ring *ring); /* for the watchdog, and who gives the handle up */
/* Drops all peers of a handle that is given up, when its owner has closed those that it knows. */
void gr_drop_all(struct gr_ring *ring);
/* From any thread: a claim or acquire in progress ends with GR_REAPED. */
void gr_stop(struct gr_peer *me, bool stop);
enum gr_result gr_close(struct gr_ring *ring);

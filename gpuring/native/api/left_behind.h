/* Rings that an endpoint has left over a restart, and still has: because slots are open there,
 * because its caller knows of no other ring yet, or because the endpoint was joined there. */
#pragma once

#include "opaque.h"

/* An endpoint may keep a ring after it has left it, and does so while it leaves. If a restart has
 * led to the ring, the last endpoint that gives it up detaches it. */
void hold(gpuring_ring *ring);
void let_go(gpuring_ring *ring);

/* From now on the endpoint is a member where `next` is. Frames that are held stay valid in the ring
 * before. */
gpuring_status leave_behind(struct endpoint *end, struct endpoint *next, gpuring_error *error);

/* The ring that the caller knows of. */
gpuring_ring *ring_told(const struct endpoint *end);
/* Called when a slot is handed out: the caller knows its ring from then on. */
static inline void tell_ring(struct endpoint *end) {
    if (end->told) let_go(end->told);
    end->told = NULL;
    end->restarted = false;
    end->late = -1;
}

/* The stream of its verbs from now on, also for slots of earlier rings. */
void use_stream(struct endpoint *end, void *stream);
/* Where the slot is open: `end`, or one that was left behind in an earlier ring. */
struct endpoint *where_open(struct endpoint *end, const gpuring_slot *slot);
/* After a slot of an earlier ring was ended. Leaves that ring if it was the last one. If that fails,
 * leave_all_behind tries again. */
void leave_if_done(struct endpoint *end, struct endpoint *owner);
/* Before `end` itself leaves: ends what was left behind, and leaves the earlier rings. If this
 * fails, it can be called again. */
gpuring_status leave_all_behind(struct endpoint *end, gpuring_error *error);
/* Called after that: gives up the handles. */
void let_go_of_rings(struct endpoint *end);

/* Rings that an endpoint has left over a restart, and still has: because slots are open there,
 * because its caller was told of no other one, or because it was joined there. */
#pragma once

#include "opaque.h"

/* An endpoint may hold a ring after it has left it, and does so while it leaves. The last one that
 * lets a ring go to which a restart has led detaches it. */
void hold(gpuring_ring *ring);
void let_go(gpuring_ring *ring);

/* Its place is that of `next` from now on. Frames that are held stay valid in the ring before. */
gpuring_status leave_behind(struct endpoint *end, struct endpoint *next, gpuring_error *error);

/* The ring that the caller knows of. */
gpuring_ring *ring_told(const struct endpoint *end);
/* When a slot is handed out: the caller has been told of its ring. */
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
/* Before `end` itself leaves: ends what was left behind, and leaves the earlier rings. If this fails,
 * it can be called again. */
gpuring_status leave_all_behind(struct endpoint *end, gpuring_error *error);
/* Behind that: gives up the handles. */
void let_go_of_rings(struct endpoint *end);

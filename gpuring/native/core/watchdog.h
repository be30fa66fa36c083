/* The thread that clears dead peers. From any thread, under no lock of this library. */
#pragma once

#include "ring.h"

/* Call it when a peer has joined through this handle, when one could not leave (gr_leave), or to
 * have the dead cleared. */
void gr_watch(struct gr_ring *ring);
bool gr_is_watched(const struct gr_ring *ring);
void gr_tell_of_joins(struct gr_ring *ring);

/* What dead processes have left in /dev/shm: rings without a living peer, and slots without a ring. */
#pragma once

#include "../core/ring.h"
#include "beside.h"

/* Whether the ring is open, and its creator alive. */
bool gh_is_kept(struct gr_ring *ring);
/* How many peers of it live. Of a copy of a header, too. */
uint32_t gh_live_peers(struct gr_ring *ring);

/* Removes what is left of one ring, or slots without a ring. Files of another user stay. Does not
 * wait.
 *
 * beside: the files that were beside the header before; those that are removed are marked there.
 * wanted: the epoch that the ring must have, or NULL. keep_durable: the header of a ring with
 * durable subscriptions stays, so that the next ring can take them from it. *removed: whether the
 * ring's own name is gone. */
gpuring_status gh_remove_left(const char *name, struct gh_beside *beside, const uint8_t *wanted,
                              bool keep_durable, bool *removed, gpuring_error *error);
/* The same for a ring of this epoch, or of any (NULL), if all are dead. */
gpuring_status gh_remove_dead(const char *name, const uint8_t *epoch, bool *removed,
                              gpuring_error *error);
/* The same for a process that is about to create a ring of this name. */
gpuring_status gh_make_room(const char *name, gpuring_error *error);

/* Whether the names of this ring go when the last process leaves it, because its creator is dead.
 * The caller leaves the ring and then calls gh_remove_dead, which looks who else is there.
 *
 * Two kinds of rings keep their names. One is the ring of a bridge: its importer, when it is started
 * again, goes on with it. The other has durable subscriptions, which the next ring of the name takes
 * over. */
bool gh_goes_with_the_last(const char *name, struct gr_ring *ring);

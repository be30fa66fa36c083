/* The name of a ring: who gets it, and how it is taken away. replacing.h says which ring makes way.
 *
 * A look never maps anything. It reads a copy, so another user's file cannot harm it. A process that
 * takes a name away looks first, and does both under a lock on that file (GR_NAME_BYTE). Slots get
 * their name before their header does, and lose it before the header does. So what a killed process
 * leaves is always found (leftovers.h).
 */
#pragma once

#include "../core/ring.h"
#include "names.h"

/* Gives the name to a whole header, which is open as `fd` and mapped as `ring`. A ring that makes
 * way is closed, and its durable subscriptions are those of the new one, too. */
gpuring_status gh_take_name(const char *name, int fd, gpuring_replace replace,
                            struct gr_ring *ring, gpuring_error *error);

/* Takes the name from its ring. close: closes the ring, too, even if it is in use; otherwise its
 * peers go on. *found: false if there was none. */
gpuring_status gh_remove_name(const char *name, bool close, bool *found, gpuring_error *error);

/* Whether another ring has the name of this one now, and was not closed. It needs no descriptor if
 * this one still has it. -1: errno. */
int gh_has_successor(const char *name, const struct gr_ring *ring);

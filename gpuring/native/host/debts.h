/* Rings that were replaced while somebody lived who read a durable subscription of theirs.
 *
 * Such a reader may still read all that is left there, or be killed before it has. Only the take
 * words of that ring know. So its header stays findable, under a name of its own (beside.h), until
 * nobody reads there any more. Then what it owes is owed by the ring that has the name by then:
 * whoever joins a durable subscription calls gh_settle first.
 *
 * No frame is counted twice, and none is forgotten, whoever is killed in between. The ring in which
 * it is counted notes in one store that it has counted and which ring that was. The earlier ring
 * forgets the subscription after that. core/earlier.c has the steps.
 */
#pragma once

#include "../core/ring.h"
#include "names.h"

/* Whether earlier rings may owe this one anything. */
bool gh_may_owe(const struct gr_ring *ring);
/* Has this ring owe its durable subscriptions what earlier rings of its name owe them in which
 * nobody reads any more. Does next to nothing if there is none.
 *
 * Waits for another process that is doing so, and for membership locks. If it cannot, who joins
 * next does it. */
void gh_settle(const char *name, struct gr_ring *ring);
/* Earlier rings owe nothing any more to a subscription that has ended here. */
gpuring_status gh_forget(const char *name, struct gr_ring *ring,
                         const char subscription[GH_SUBSCRIPTION], gpuring_error *error);

/* Makes the durable subscriptions of a ring that was closed in the one that takes its name.
 *
 * What nobody of a subscription has had is lost with the old ring, and is counted for whoever joins
 * the subscription next. But a member that lives can still read it. Then it is counted when nobody
 * of them lives any more, and *stays is true: the old ring has to stay findable. */
gpuring_status gh_carry_over(const char *name, struct gr_ring *old, struct gr_ring *ring,
                             bool *stays, gpuring_error *error);

/* Whether this is the header of an earlier ring of a ring that is there. */
bool gh_is_kept_aside(const char *name, const char *path);
/* Removes what earlier rings have left, for who removes the ring that has their name. */
gpuring_status gh_remove_asides(const char *name, gpuring_error *error);
/* The same if no ring has their name. */
gpuring_status gh_remove_stray_asides(const char *name, gpuring_error *error);

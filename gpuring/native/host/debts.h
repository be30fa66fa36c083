/* Rings that were replaced while a member of one of their durable subscriptions lived.
 *
 * Such a reader may still read all that is left there, or be killed before it has. Only the take
 * words of that ring show which. So its header stays findable, under a name of its own (beside.h),
 * until nobody reads there any more. After that the ring that has the name by then owes what the old
 * one owed: a process that joins a durable subscription calls gh_settle first.
 *
 * No frame is counted twice, and none is forgotten, whichever process is killed in between. The ring
 * in which losses are counted notes in one store that it has counted them, and which ring they come
 * from. After that the earlier ring forgets the subscription. core/earlier.c has the steps.
 */
#pragma once

#include "../core/ring.h"
#include "names.h"

/* Whether earlier rings may owe this one anything. */
bool gh_may_owe(const struct gr_ring *ring);
/* Moves to this ring what earlier rings of its name owe to its durable subscriptions, as far as nobody
 * reads in them any more. Does next to nothing if there is no earlier ring.
 *
 * Waits for another process that is doing so, and for membership locks. If that takes too long, the
 * next process that joins does it. */
void gh_settle(const char *name, struct gr_ring *ring);
/* Earlier rings owe nothing any more to a subscription that has ended here. */
gpuring_status gh_forget(const char *name, struct gr_ring *ring,
                         const char subscription[GH_SUBSCRIPTION], gpuring_error *error);

/* Makes the durable subscriptions of a closed ring in the ring that takes its name.
 *
 * The frames that no member of a subscription has had are lost with the old ring. They are counted for
 * the member that joins the subscription next. But a member that lives can still read them. Then they
 * are counted when no member lives any more, and *stays is true: the old ring has to stay findable. */
gpuring_status gh_carry_over(const char *name, struct gr_ring *old, struct gr_ring *ring,
                             bool *stays, gpuring_error *error);

/* Whether this is the header of an earlier ring of a ring that is there. */
bool gh_is_kept_aside(const char *name, const char *path);
/* Removes what earlier rings have left, when the ring that has their name is removed. */
gpuring_status gh_remove_asides(const char *name, gpuring_error *error);

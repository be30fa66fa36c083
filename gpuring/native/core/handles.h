/* The list of the process's handles, and what a fork does to them.
 *
 * The list is read and changed under gr_lock_handles, and so is what gr_ring says is written under
 * it. That lock is taken before no other one of this library, and after LOCK or none.
 */
#pragma once

#include "ring.h"

void gr_mind_forks(void);
/* Closes a descriptor that another process has sent, or a socket to which it may have sent some.
 * Such a close may take for ever (a TCP socket that lingers, a file of a FUSE). So a thread of its
 * own does it, if one can be started. */
void gr_close_aside(int fd);
void gr_enlist(struct gr_ring *ring);
void gr_disown(struct gr_ring *ring);
void gr_detach(struct gr_ring *ring);
/* Returns the first of the list, which does not change until gr_unlock_handles. */
struct gr_ring *gr_lock_handles(void);
void gr_unlock_handles(void);
/* True in a forked child. It has only a copy of the handle, whose locks are the parent's. */
bool gr_forked(const struct gr_ring *ring);
/* False after the program has closed its descriptors. */
bool gr_has_its_files(const struct gr_ring *ring);

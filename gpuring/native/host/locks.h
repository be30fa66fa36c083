/* Bytes of a ring's files that processes hold locked; core/lock.h says which. The kernel drops a
 * lock when its holder dies, however that dies. A lock belongs to a descriptor, and ends with it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Locks a byte until the descriptor is closed. 1, 0 if another has locked it, -1: errno. */
int gh_lock(int fd, int byte);
/* Waits up to patience_ns for the lock. Other processes keep it for microseconds only, unless they
 * were stopped. */
int gh_lock_within(int fd, int byte, int64_t patience_ns);
int gh_unlock(int fd, int byte);
/* Unlocks, and then closes. If another thread has forked meanwhile, the child also has the
 * descriptor. Then a close alone would not end the lock, because it belongs to both descriptors. */
void gh_unlock_and_close(int fd, int byte);
/* Whether another process is about to take the file's name away, or has not given it yet. */
bool gh_name_is_locked(int fd);
/* Whether a living process has any lock on the file other than that of its name. */
bool gh_is_in_use(int fd);

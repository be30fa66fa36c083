/* What to say when the system gives no memory, or no room in /dev/shm. */
#pragma once

#include "error.h"

/* For a system call about a ring's file. `what` is "its header" or the like, and has `nbytes`.
 * Returns GPURING_NO_ROOM, or GPURING_SYSTEM if sys_errno says something else. */
gpuring_status gh_fail_for_room(gpuring_error *error, const char *name, int sys_errno,
                                const char *what, uint64_t nbytes);

/* What a call that has failed says, in words.
 *
 * This folder is what a ring is to the operating system: its files in /dev/shm, who may open them,
 * in which order, and what a slot holds. Both callers of this library use it: the public functions
 * (native/api), and Python by way of native/names.pyx, which makes exceptions of what is said here.
 *
 * No file needs one that stands below it in this list, and the core needs none of them:
 *
 *   text         text of others, as it may be shown
 *   error        this
 *   names        what the files of a ring are called
 *   environment  what the environment says to all peers
 *   locks        bytes of a file that processes hold locked
 *   named        the file that has a name: a look at it, and then its opening
 *   room         no memory, no room
 *   slots        the slots of a ring in host memory, mapped
 *   making       how names come and go
 *   beside       the files beside the header of a ring
 *   sockets      what killed processes have left where slots are handed on
 *   debts        what rings that were replaced still owe to durable subscriptions
 *   leftovers    what the dead have left
 *   replacing    which ring makes way
 *   taking       who gets a name, and how it is taken away
 *   opening      the header of a ring by its name
 *   arrivals     waiting for a name
 *   json         a reader of JSON
 *   spec         what a slot holds: JSON, read and checked
 *   describing   what a slot is to hold: JSON, written
 *   in_the_way   who is in the way of a verb
 *   diagnosis    why a verb was refused
 */
#pragma once

#include "../../include/gpuring.h"

/* Writes what has failed, cut at the end of the room for it. Returns the status. In this folder an
 * error is never NULL. */
gpuring_status gh_fail(gpuring_error *error, gpuring_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a system call: GPURING_SYSTEM, the words for sys_errno, and what it was about. */
gpuring_status gh_fail_system(gpuring_error *error, int sys_errno, const char *what);

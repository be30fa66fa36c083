/* How the names of a ring come and go: new files, and what a creator takes away at its close. */
#pragma once

#include "../core/ring.h"
#include "names.h"

/* A new, empty file that has no name yet. If its maker dies, nothing is left. -1 with an error:
 * GPURING_FAILED if the directory cannot hold such files, or GPURING_SYSTEM. */
int gh_unnamed(uint32_t mode, gpuring_error *error);
/* 0, or -1: errno. EEXIST: another file has the name. */
int gh_give_name(int fd, const char *path);

/* A new segment of slots, mapped. While *making is open, others do not tidy it away: it is closed
 * when the ring has its name. A call that fails leaves nothing. GPURING_SYSTEM with EINTR: a signal
 * has come while memory was taken, and the call may be made again. */
gpuring_status gh_make_slots(const char *name, const uint8_t epoch[16], uint32_t mode,
                             uint32_t slots, uint64_t slot_nbytes, void **base, int *making,
                             gpuring_error *error);

/* Removes a name if it is that of a file of user `owner`. For names that are never used again.
 * 1, 0: there is none, -1: errno. */
int gh_remove_file(const char *path, uint32_t owner);

/* How long to wait for the lock of a name. Only a process that was stopped has it for so long. */
#define GH_NAME_PATIENCE_NS INT64_C(2000000000)

/* Removes the names of a ring that is ours and closed. Its name may be a later ring's by now. If it
 * has durable subscriptions, the next ring of the name takes its header's. */
gpuring_status gh_remove_own(const char *name, const uint8_t epoch[16], struct gr_ring *ring,
                             gpuring_error *error);
/* Whether a ring has subscriptions that the next ring of its name takes over. */
bool gh_has_durable(const struct gr_ring *ring);

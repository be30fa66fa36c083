/* The slots of a ring in host memory: a segment of /dev/shm that is found by its name. */
#pragma once

#include "names.h"

/* Maps the first nbytes of a file, to read and to write. NULL: errno, which is 0 if it has fewer
 * bytes. Whoever touches a mapping beyond the end of its file is killed. */
void *gh_map(int fd, uint64_t nbytes);

/* Opens and maps the slots of a ring that another process created, if user `owner` made them.
 *
 * The name of the slots contains the epoch of the ring, and any user can read it in /dev/shm. So if
 * the real segment is gone, another user may have put a file of the same name there.
 *
 * *fd is the segment; the caller closes it. GPURING_NOT_FOUND: they are gone, and waiting may
 * help. */
gpuring_status gh_open_slots(const char *name, const uint8_t epoch[16], uint32_t owner,
                             uint32_t slots, uint64_t slot_nbytes, void **base, int *fd,
                             gpuring_error *error);

/* The header of a ring by its name: a look at it, and its opening.
 *
 * GPURING_NOT_FOUND means that there is no ring of that name just now, and that waiting may help.
 * The text says more, or is empty: it is the detail of gh_fail_missing. */
#pragma once

#include "../core/ring.h"
#include "named.h"

/* The file that has the name of the ring's header. GPURING_OK: the caller ends the look. */
gpuring_status gh_find(const char *name, struct gh_named *named, gpuring_error *error);
/* A copy of the header in a file, which may be of anybody: no store of its owner can harm us. */
gpuring_status gh_read_header(const char *name, int fd, struct gr_ring **copy,
                              gpuring_error *error);

/* The mapped header of a ring of user `owner`. -1 means our own user, or root. *ring is NULL if
 * this fails. */
gpuring_status gh_attach_header(const char *name, int64_t owner, struct gr_ring **ring,
                                gpuring_error *error);
/* GPURING_PEER_LOST if neither the creator of a ring nor a producer in it lives. */
gpuring_status gh_check_living(const char *name, struct gr_ring *ring, gpuring_error *error);

/* The error of a wait for a name that is over. `detail` is the text of GPURING_NOT_FOUND. */
gpuring_status gh_fail_missing(const char *name, const char *detail, gpuring_error *error);

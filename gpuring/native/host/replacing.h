/* Which ring makes way for a new one of its name. */
#pragma once

#include "named.h"

/* Checks, before anything is made, that the name is free or may be taken. Removes what nobody uses
 * any more, first of all because its memory may be needed. GPURING_EXISTS, GPURING_NOT_PERMITTED,
 * GPURING_INCOMPATIBLE, GPURING_SYSTEM. */
gpuring_status gh_make_way(const char *name, gpuring_replace replace, gpuring_error *error);

/* Whether what has the name may be replaced: whose it is, and what `replace` allows. GPURING_EXISTS,
 * GPURING_NOT_PERMITTED, GPURING_INCOMPATIBLE. */
gpuring_status gh_may_replace(const char *name, const struct gh_named *named,
                              gpuring_replace replace, gpuring_error *error);
/* Checks that the creator of a ring that is open as `fd` is dead, or has closed it. GPURING_EXISTS,
 * GPURING_SYSTEM. */
gpuring_status gh_check_abandoned(const char *name, const struct gh_named *named, int fd,
                                  gpuring_error *error);
/* GPURING_EXISTS, with what has the name and what can be done. */
gpuring_status gh_taken(const char *name, const struct gh_named *named, gpuring_error *error);

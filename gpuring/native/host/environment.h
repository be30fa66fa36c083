/* What the environment of a process says to all of its peers. */
#pragma once

#include "error.h"

/* GPURING_SPIN, in nanoseconds: for how long a wait spins before it sleeps. -1: it is not set.
 * GPURING_INVALID: it is no number of seconds. */
gpuring_status gh_spin_ns(int64_t *ns, gpuring_error *error);

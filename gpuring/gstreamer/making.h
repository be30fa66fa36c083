/* A ring whose slots hold frames of some caps. */
#pragma once

#include "layout.h"

/* GPURING_EXISTS: the name is taken by a ring that does not make way. */
gpuring_status make_ring(const char *name, guint slots, const Layout *layout,
                         gpuring_memory memory, gint device, gpuring_replace replace,
                         gpuring_ring **ring, gpuring_error *error);

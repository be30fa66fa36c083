/* Creates a ring for frames of some caps. */
#pragma once

#include "layout.h"

/* GPURING_EXISTS: another ring has the name, and `replace` does not allow to replace it. */
gpuring_status make_ring(const char *name, guint slots, const Layout *layout,
                         gpuring_memory memory, gint device, gpuring_replace replace,
                         gpuring_ring **ring, gpuring_error *error);

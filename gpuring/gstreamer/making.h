/* A ring whose slots hold frames of some caps. */
#pragma once

#include "layout.h"

/* GPURING_EXISTS: the name is taken. */
gpuring_status make_ring(const char *name, guint slots, const Layout *layout, gpuring_ring **ring,
                         gpuring_error *error);

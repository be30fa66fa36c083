/* Device order by 64-bit words: the synchroniser. */
#pragma once

#include "state.h"

extern const struct gd_sync gd_timeline;

/* Device order by 64-bit words: the synchroniser. Its `paid` serves host memory, too. */
#ifndef GPURING_TIMELINE_H
#define GPURING_TIMELINE_H

#include "state.h"

extern const struct gd_sync gd_timeline;

#endif

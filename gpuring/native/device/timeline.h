/* Device order by 64-bit words: the synchroniser. */
#ifndef GPURING_TIMELINE_H
#define GPURING_TIMELINE_H

#include "state.h"

extern const struct gd_sync gd_timeline;

#endif

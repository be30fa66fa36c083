/* When frames play: the times of buffers, and the segments in which they lie. */
#pragma once

#include <gst/base/gstbasesrc.h>

typedef struct Timing {
    GstSegment segment;
    GstClockTime until; /* the end of the last frame */
} Timing;

void timing_init(Timing *timing);
/* A pts that goes back begins a segment. */
void timing_set(Timing *timing, GstBaseSrc *base, GstBuffer *buffer, GstClockTime pts,
                GstClockTime duration);

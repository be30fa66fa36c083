/* When frames play: the timestamps of buffers, and their segments. */
#pragma once

#include <gst/base/gstbasesrc.h>

typedef struct Timing {
    GstSegment segment;
    GstClockTime shift; /* of each pts, since pts began anew */
    GstClockTime until; /* the end of the last frame */
} Timing;

void timing_init(Timing *timing);
/* Sets the times of a buffer. If its pts is lower than the one before, it and the later ones are
 * shifted, so that they play behind the frames before. */
void timing_set(Timing *timing, GstBaseSrc *base, GstBuffer *buffer, GstClockTime pts,
                GstClockTime duration);

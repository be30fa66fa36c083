/* When frames play: the timestamps of buffers, and their segments. */
#pragma once

#include <gst/base/gstbasesrc.h>

typedef struct Timing {
    GstSegment segment;
    GstClockTime shift; /* of each pts, since pts began anew */
    GstClockTime until; /* the end of the last frame */
    /* Until a frame comes that was published after the last pause: when that ended, and whether
     * frames from before its end play at once, and not one behind the other. */
    gint64 resumed_ns;
    gboolean hurries;
} Timing;

void timing_init(Timing *timing);
/* A pause ends. Call it before the streaming thread goes on. If producers do not wait, the ring is
 * full of old frames. Played one behind the other they would hold up all later ones. */
void timing_resume(Timing *timing, gboolean producers_wait);
/* Sets the times of the buffer of a frame. If its pts is lower than the one before, it and the later
 * ones are shifted, so that they play behind the frames before. */
void timing_set(Timing *timing, GstBaseSrc *base, GstBuffer *buffer, gint64 published_ns,
                GstClockTime pts, GstClockTime duration);

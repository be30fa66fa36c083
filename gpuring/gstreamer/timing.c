#include "timing.h"

void timing_init(Timing *timing) { gst_segment_init(&timing->segment, GST_FORMAT_UNDEFINED); }

static GstClockTime running_time_now(GstBaseSrc *base) {
    GstClock *clock = gst_element_get_clock(GST_ELEMENT(base));
    if (!clock) return 0;
    const GstClockTime now = gst_clock_get_time(clock) - gst_element_get_base_time(GST_ELEMENT(base));
    gst_object_unref(clock);
    return now;
}

/* Begins a segment, so that the next frame plays at once, whatever its pts is: the first frame, or
 * the first one after a restart. It plays behind the frames before it, if these came faster than
 * they play. */
static void begin_segment(Timing *timing, GstBaseSrc *base, GstClockTime pts) {
    GstSegment *segment = &timing->segment;
    const GstClockTime played =
        segment->format == GST_FORMAT_TIME
            ? gst_segment_to_running_time(segment, GST_FORMAT_TIME, timing->until)
            : 0;
    gst_segment_init(segment, GST_FORMAT_TIME);
    segment->start = segment->time = segment->position = pts;
    segment->base =
        gst_base_src_is_live(base) ? MAX(running_time_now(base), played) : played;
    gst_base_src_new_segment(base, segment);
}

void timing_set(Timing *timing, GstBaseSrc *base, GstBuffer *buffer, GstClockTime pts,
                GstClockTime duration) {
    GST_BUFFER_PTS(buffer) = pts;
    GST_BUFFER_DURATION(buffer) = duration;
    /* A frame without a pts gets the time of its arrival. */
    gst_base_src_set_do_timestamp(base, !GST_CLOCK_TIME_IS_VALID(pts));
    if (!GST_CLOCK_TIME_IS_VALID(pts)) return;
    if (timing->segment.format != GST_FORMAT_TIME || pts < timing->segment.position)
        begin_segment(timing, base, pts);
    timing->segment.position = pts;
    timing->until = pts + (GST_CLOCK_TIME_IS_VALID(duration) ? duration : 0);
}

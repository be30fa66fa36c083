#include "timing.h"

void timing_init(Timing *timing) {
    gst_segment_init(&timing->segment, GST_FORMAT_UNDEFINED);
    timing->resumed_ns = 0;
    timing->hurries = FALSE;
}

static GstClockTime running_time_now(GstBaseSrc *base) {
    GstClock *clock = gst_element_get_clock(GST_ELEMENT(base));
    if (!clock) return 0;
    const GstClockTime now = gst_clock_get_time(clock) - gst_element_get_base_time(GST_ELEMENT(base));
    gst_object_unref(clock);
    return now;
}

/* The first frame plays at once, whatever its pts is. */
static void begin_segment(Timing *timing, GstBaseSrc *base, GstClockTime pts) {
    GstSegment *segment = &timing->segment;
    gst_segment_init(segment, GST_FORMAT_TIME);
    segment->start = segment->time = segment->position = pts;
    segment->base = gst_base_src_is_live(base) ? running_time_now(base) : 0;
    timing->shift = 0;
    gst_base_src_new_segment(base, segment);
}

/* When a frame plays that begins anew: at once, or behind the frames before it, if these came faster
 * than they play. The segment stays, because encoders with frames in hand do not bear a pts that
 * goes back. */
static GstClockTime begin_anew(const Timing *timing, GstBaseSrc *base) {
    const GstSegment *segment = &timing->segment;
    if (!gst_base_src_is_live(base)) return timing->until;
    const GstClockTime now = segment->start + running_time_now(base) - segment->base;
    return MAX(now, timing->until);
}

void timing_resume(Timing *timing, gboolean producers_wait) {
    if (timing->segment.format != GST_FORMAT_TIME) return; /* no frame came before */
    timing->resumed_ns = g_get_monotonic_time() * 1000;
    timing->hurries = !producers_wait;
    if (timing->hurries) timing->until = timing->segment.position;
}

/* The pts of the first frame after a restart may be lower than the one before. After a pause it may be
 * as much higher as the pause was long, for which the pipeline has not run. That may hold for all
 * frames from the pause on, or only for those behind the frames that the ring kept meanwhile. */
static gboolean begins_anew(Timing *timing, GstBaseSrc *base, gint64 published_ns, GstClockTime pts) {
    const gboolean was_paused = timing->resumed_ns && gst_base_src_is_live(base);
    if (published_ns > timing->resumed_ns) timing->resumed_ns = timing->hurries = 0;
    return was_paused || pts + timing->shift < timing->segment.position;
}

void timing_set(Timing *timing, GstBaseSrc *base, GstBuffer *buffer, gint64 published_ns,
                GstClockTime pts, GstClockTime duration) {
    GST_BUFFER_PTS(buffer) = pts;
    GST_BUFFER_DURATION(buffer) = duration;
    /* A frame without a pts gets the time of its arrival. */
    gst_base_src_set_do_timestamp(base, !GST_CLOCK_TIME_IS_VALID(pts));
    if (!GST_CLOCK_TIME_IS_VALID(pts)) return;
    if (timing->segment.format != GST_FORMAT_TIME) begin_segment(timing, base, pts);
    if (begins_anew(timing, base, published_ns, pts))
        timing->shift = begin_anew(timing, base) - pts;
    GST_BUFFER_PTS(buffer) = timing->segment.position = pts + timing->shift;
    timing->until =
        timing->segment.position +
        (GST_CLOCK_TIME_IS_VALID(duration) && !timing->hurries ? duration : 0);
}

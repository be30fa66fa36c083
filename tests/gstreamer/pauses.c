/* What gst-launch cannot show of an element: pauses PIPELINE
 *
 * Plays a pipeline that has the element by the name `it`, and says what each line of its input asks
 * for:
 *
 *     frames N   waits until N buffers have come in all
 *     latency    its answer to a latency query
 *     keep       keeps the next buffer, until it is asked to be drained
 *     free       frees it
 *     hold       holds the next question whether caps are taken, until the pipeline is stopped
 *     ready      waits until one is held, stops the pipeline, and tells the errors on its bus
 *     pause, play, rest, stop
 *     ring NAME  sets the property
 *     flicker    plays and pauses again, as fast as it can, and plays then
 *     flush      feeds it from now on, and pauses and plays again and again, while another thread
 *                flushes it
 *     step       goes on by one buffer
 *
 * Any other line names a property that is a number.
 */
#include <gst/gst.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static GMutex lock;
static GCond more;
static guint64 frames, flushes;
static gboolean is_to_keep, is_to_hold, is_held;
static GstBuffer *kept;

static GstPadProbeReturn count(GstPad *pad, GstPadProbeInfo *info, gpointer data) {
    (void)pad, (void)data;
    g_mutex_lock(&lock);
    frames++;
    if (is_to_keep) kept = gst_buffer_ref(GST_PAD_PROBE_INFO_BUFFER(info));
    is_to_keep = FALSE;
    g_cond_signal(&more);
    g_mutex_unlock(&lock);
    return GST_PAD_PROBE_OK;
}

static void await(guint64 wanted) {
    g_mutex_lock(&lock);
    while (frames < wanted) g_cond_wait(&more, &lock);
    printf("frames %" G_GUINT64_FORMAT "\n", frames);
    g_mutex_unlock(&lock);
}

static void keep_next(void) {
    g_mutex_lock(&lock);
    is_to_keep = TRUE;
    g_mutex_unlock(&lock);
    puts("keep");
}

static void free_kept(void) {
    g_mutex_lock(&lock);
    gst_clear_buffer(&kept);
    g_mutex_unlock(&lock);
    puts("free");
}

static GstPadProbeReturn hold(GstPad *pad, GstPadProbeInfo *info, gpointer data) {
    const GstQueryType asked = GST_QUERY_TYPE(GST_PAD_PROBE_INFO_QUERY(info));
    (void)data;
    g_mutex_lock(&lock);
    if (asked == GST_QUERY_DRAIN) gst_clear_buffer(&kept);
    g_mutex_unlock(&lock);
    if (asked != GST_QUERY_CAPS) return GST_PAD_PROBE_OK;
    g_mutex_lock(&lock);
    is_held = is_to_hold;
    g_cond_signal(&more);
    g_mutex_unlock(&lock);
    while (is_held && !GST_PAD_IS_FLUSHING(pad)) g_usleep(1000);
    return GST_PAD_PROBE_OK;
}

static void hold_next(void) {
    g_mutex_lock(&lock);
    is_to_hold = TRUE;
    g_mutex_unlock(&lock);
    puts("hold");
}

static void stop_held(GstElement *pipeline) {
    GstBus *bus = gst_element_get_bus(pipeline);
    GstMessage *message;
    guint errors = 0;
    g_mutex_lock(&lock);
    while (!is_held) g_cond_wait(&more, &lock);
    g_mutex_unlock(&lock);
    gst_element_set_state(pipeline, GST_STATE_READY);
    while ((message = gst_bus_pop_filtered(bus, GST_MESSAGE_ERROR))) {
        errors++;
        gst_message_unref(message);
    }
    printf("errors %u\n", errors);
    gst_object_unref(bus);
}

static void tell_latency(GstPad *pad) {
    GstQuery *query = gst_query_new_latency();
    gboolean is_live = FALSE;
    GstClockTime least = 0, most = 0;
    const gboolean answered = gst_pad_query(pad, query);
    gst_query_parse_latency(query, &is_live, &least, &most);
    printf("latency %d %d %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT "\n", answered, is_live, least,
           most);
    gst_query_unref(query);
}

/* A sink plays when the first frame has come, which nobody waits for here. */
static void go_to(GstElement *pipeline, GstState state) {
    gst_element_set_state(pipeline, state);
    gst_element_get_state(pipeline, NULL, NULL,
                          state == GST_STATE_PLAYING ? 0 : GST_CLOCK_TIME_NONE);
    printf("%s\n", gst_element_state_get_name(state));
}

/* It has to play first. GStreamer may leave a pipeline paused, with any sink, that is paused and played
 * before its first frame. */
static void flicker(GstElement *pipeline) {
    guint k;
    gst_element_get_state(pipeline, NULL, NULL, GST_CLOCK_TIME_NONE);
    for (k = 0; k < 10000; k++) {
        gst_element_set_state(pipeline, GST_STATE_PAUSED);
        gst_element_set_state(pipeline, GST_STATE_PLAYING);
    }
    puts("flicker");
}

static gpointer feed(gpointer pad) {
    GstSegment segment;
    gst_segment_init(&segment, GST_FORMAT_TIME);
    for (;;) {
        gst_pad_send_event(pad, gst_event_new_segment(&segment)); /* a flush forgets it */
        if (gst_pad_chain(pad, gst_buffer_new_allocate(NULL, 32, NULL)) != GST_FLOW_OK) g_usleep(20);
    }
    return NULL;
}

static gpointer flush(gpointer pad) {
    for (;;) {
        gst_pad_send_event(pad, gst_event_new_flush_start());
        gst_pad_send_event(pad, gst_event_new_flush_stop(FALSE));
        g_mutex_lock(&lock);
        flushes++;
        g_cond_signal(&more);
        g_mutex_unlock(&lock);
        g_usleep(g_random_int_range(0, 200));
    }
    return NULL;
}

static void flicker_and_flush(GstElement *pipeline, GstPad *pad) {
    guint64 k, before;
    gst_pad_send_event(pad, gst_event_new_stream_start("fed"));
    gst_pad_send_event(pad, gst_event_new_caps(gst_caps_from_string(
                                "video/x-raw,format=GRAY8,width=8,height=4,framerate=25/1")));
    g_thread_unref(g_thread_new(NULL, feed, pad));
    g_thread_unref(g_thread_new(NULL, flush, pad));
    for (k = 0; k < 2000; k++) {
        g_usleep(g_random_int_range(0, 100));
        gst_element_set_state(pipeline, GST_STATE_PAUSED);
        gst_element_set_state(pipeline, GST_STATE_PLAYING);
        g_mutex_lock(&lock);
        for (before = flushes; flushes == before;) g_cond_wait(&more, &lock);
        g_mutex_unlock(&lock);
    }
    puts("flush");
}

static void step(GstElement *it) {
    gst_element_send_event(it, gst_event_new_step(GST_FORMAT_BUFFERS, 1, 1, TRUE, FALSE));
    puts("step");
}

/* What it is then. */
static void set_ring(GstElement *it, const char *name) {
    gchar *is;
    g_object_set(it, "ring", name, NULL);
    g_object_get(it, "ring", &is, NULL);
    printf("ring %s\n", is);
    g_free(is);
}

int main(int argc, char **argv) {
    char line[64], name[64];
    guint64 wanted, found;
    alarm(60); /* nothing here may take so long */
    gst_init(&argc, &argv);
    GstElement *pipeline = gst_parse_launch(argv[1], NULL);
    GstElement *it = gst_bin_get_by_name(GST_BIN(pipeline), "it");
    GstPad *pad = it->pads->data;
    gst_pad_add_probe(pad, GST_PAD_PROBE_TYPE_BUFFER, count, NULL, NULL);
    gst_pad_add_probe(pad, GST_PAD_PROBE_TYPE_QUERY_DOWNSTREAM | GST_PAD_PROBE_TYPE_PUSH, hold, NULL,
                      NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    gst_element_set_state(pipeline, GST_STATE_PLAYING);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "frames %" G_GUINT64_FORMAT, &wanted) == 1) await(wanted);
        else if (strcmp(line, "latency\n") == 0) tell_latency(pad);
        else if (strcmp(line, "keep\n") == 0) keep_next();
        else if (strcmp(line, "free\n") == 0) free_kept();
        else if (strcmp(line, "hold\n") == 0) hold_next();
        else if (strcmp(line, "ready\n") == 0) stop_held(pipeline);
        else if (strcmp(line, "flicker\n") == 0) flicker(pipeline);
        else if (strcmp(line, "flush\n") == 0) flicker_and_flush(pipeline, pad);
        else if (strcmp(line, "step\n") == 0) step(it);
        else if (strcmp(line, "pause\n") == 0) go_to(pipeline, GST_STATE_PAUSED);
        else if (strcmp(line, "play\n") == 0) go_to(pipeline, GST_STATE_PLAYING);
        else if (strcmp(line, "rest\n") == 0) go_to(pipeline, GST_STATE_READY);
        else if (sscanf(line, "ring %63s", name) == 1) set_ring(it, name);
        else if (strcmp(line, "stop\n") == 0) go_to(pipeline, GST_STATE_NULL);
        else {
            g_object_get(it, g_strchomp(line), &found, NULL);
            printf("%s %" G_GUINT64_FORMAT "\n", line, found);
        }
    }
    gst_element_set_state(pipeline, GST_STATE_NULL);
    gst_object_unref(it);
    gst_object_unref(pipeline);
    return 0;
}

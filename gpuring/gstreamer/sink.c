/* gpuringsink: buffers become frames of a ring, each by one copy. */
#include "sink.h"

#include <gst/base/gstbasesink.h>
#include <string.h>

#include "waiting.h"
#include "writer.h"

typedef struct GpuringSink {
    GstBaseSink base;
    Writer writer; /* with the properties */
    guint64 dropped; /* under the object's lock */
} GpuringSink;

typedef struct GpuringSinkClass {
    GstBaseSinkClass base;
} GpuringSinkClass;

G_DEFINE_TYPE(GpuringSink, gpuring_sink, GST_TYPE_BASE_SINK)
#define SELF(object) ((GpuringSink *)(object))

static GstStaticPadTemplate template =
    GST_STATIC_PAD_TEMPLATE("sink", GST_PAD_SINK, GST_PAD_ALWAYS, GST_STATIC_CAPS(ALL_CAPS));

/* ---- frames ---------------------------------------------------------------------------------- */

static gboolean set_caps(GstBaseSink *base, GstCaps *caps) {
    GpuringSink *self = SELF(base);
    if (!layout_of_caps(&self->writer.layout, caps)) return FALSE;
    g_free(self->writer.text);
    self->writer.text = gst_caps_to_string(caps);
    self->writer.is_placed = FALSE;
    return TRUE;
}

static gpuring_status publish(GpuringSink *self, gpuring_slot *slot, GstClockTime pts,
                              GstClockTime duration, gpuring_error *error) {
    if (slot->meta) {
        metadata_set_time(&self->writer.metadata.pts, slot, pts);
        metadata_set_time(&self->writer.metadata.duration, slot, duration);
        metadata_set_caps(&self->writer.metadata, slot, self->writer.text);
    }
    return gpuring_publish(self->writer.producer, slot, error);
}

/* Says so if the frame is smaller than the slot. */
static gpuring_status set_shape(GpuringSink *self, gpuring_slot *slot, const guint64 *shape,
                                gpuring_error *error) {
    gpuring_field field = GPURING_FIELD;
    const guint dimensions = self->writer.layout.dimensions[0];
    gpuring_field_at(self->writer.ring, 0, &field);
    if (self->writer.layout.planes > 1 ||
        (field.dimensions == dimensions &&
         memcmp(field.shape, shape, dimensions * sizeof *shape) == 0))
        return GPURING_OK;
    return gpuring_set_shape(self->writer.producer, slot, dimensions, shape, error);
}

static gpuring_status write_picture(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    const Layout *layout = &self->writer.layout;
    gpuring_slot slot = GPURING_SLOT;
    GstVideoFrame frame;
    guint p;
    gpuring_status status = writer_claim(&self->writer, &slot, error);
    if (status != GPURING_OK) return status;
    if (!gst_video_frame_map(&frame, &layout->video, buffer, GST_MAP_READ)) {
        gpuring_abandon(self->writer.producer, &slot, NULL);
        tell(error, GPURING_INVALID, "ring '%s': a buffer cannot be read as a picture of its caps",
             self->writer.name);
        return error->status;
    }
    for (p = 0; p < layout->planes; p++)
        copy_rows((char *)slot.data + layout->offset[p], layout->row_nbytes[p],
                  GST_VIDEO_FRAME_PLANE_DATA(&frame, p),
                  (gsize)GST_VIDEO_FRAME_PLANE_STRIDE(&frame, p), layout->row_nbytes[p],
                  layout->shape[p][0]);
    gst_video_frame_unmap(&frame);
    status = set_shape(self, &slot, layout->shape[0], error);
    if (status == GPURING_OK)
        return publish(self, &slot, GST_BUFFER_PTS(buffer), GST_BUFFER_DURATION(buffer), error);
    gpuring_abandon(self->writer.producer, &slot, NULL);
    return status;
}

/* More samples than a slot has room for go into several. */
static gpuring_status write_samples(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    const guint64 row = self->writer.layout.row_nbytes[0];
    const guint64 rate = (guint64)GST_AUDIO_INFO_RATE(&self->writer.layout.audio);
    gpuring_field field = GPURING_FIELD;
    gpuring_status status = writer_prepare(&self->writer, error);
    if (status != GPURING_OK) return status;
    gpuring_field_at(self->writer.ring, 0, &field);
    const guint64 samples = gst_buffer_get_size(buffer) / row, room = field.nbytes / row;
    guint64 done = 0;
    while (status == GPURING_OK && done < samples) {
        gpuring_slot slot = GPURING_SLOT;
        const guint64 shape[] = {MIN(samples - done, room), self->writer.layout.shape[0][1]};
        const GstClockTime from = gst_util_uint64_scale(done, GST_SECOND, rate);
        const GstClockTime to = gst_util_uint64_scale(done + shape[0], GST_SECOND, rate);
        status = writer_claim(&self->writer, &slot, error);
        if (status != GPURING_OK) return status;
        gst_buffer_extract(buffer, done * row, slot.data, shape[0] * row);
        status = set_shape(self, &slot, shape, error);
        if (status == GPURING_OK)
            status = publish(self, &slot,
                             GST_BUFFER_PTS_IS_VALID(buffer) ? GST_BUFFER_PTS(buffer) + from
                                                             : GST_CLOCK_TIME_NONE,
                             to - from, error);
        else gpuring_abandon(self->writer.producer, &slot, NULL);
        done += shape[0];
    }
    return status;
}

static GstFlowReturn render(GstBaseSink *base, GstBuffer *buffer) {
    GpuringSink *self = SELF(base);
    gpuring_error error;
    const gpuring_status status = self->writer.layout.is_video ? write_picture(self, buffer, &error)
                                                        : write_samples(self, buffer, &error);
    if (status != GPURING_FULL) return flow_of(GST_ELEMENT(self), status, &error);
    GST_OBJECT_LOCK(self);
    self->dropped++;
    GST_OBJECT_UNLOCK(self);
    return GST_FLOW_OK;
}

/* ---- the element ----------------------------------------------------------------------------- */

static gboolean event(GstBaseSink *base, GstEvent *event) {
    if (GST_EVENT_TYPE(event) == GST_EVENT_EOS) writer_leave(&SELF(base)->writer); /* readers get the end */
    return GST_BASE_SINK_CLASS(gpuring_sink_parent_class)->event(base, event);
}

static gboolean propose_allocation(GstBaseSink *base, GstQuery *query) {
    (void)base;
    gst_query_add_allocation_meta(query, GST_VIDEO_META_API_TYPE, NULL);
    return TRUE;
}

static gboolean start(GstBaseSink *base) {
    GpuringSink *self = SELF(base);
    self->dropped = 0;
    return has_name(GST_ELEMENT(self), self->writer.name);
}

static gboolean stop(GstBaseSink *base) {
    writer_give_up(&SELF(base)->writer);
    return TRUE;
}

static gboolean unlock(GstBaseSink *base) {
    gst_poll_set_flushing(SELF(base)->writer.cancel, TRUE);
    return TRUE;
}

static gboolean unlock_stop(GstBaseSink *base) {
    gst_poll_set_flushing(SELF(base)->writer.cancel, FALSE);
    return TRUE;
}

enum {
    PROP_RING = 1, PROP_SLOTS, PROP_CREATE, PROP_TIMEOUT, PROP_READERS, PROP_DROP, PROP_DROPPED
};

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    GpuringSink *self = SELF(object);
    switch (id) {
    case PROP_RING:
        g_free(self->writer.name);
        self->writer.name = g_value_dup_string(value);
        break;
    case PROP_SLOTS: self->writer.slots = g_value_get_uint(value); break;
    case PROP_CREATE: self->writer.creates = g_value_get_boolean(value); break;
    case PROP_TIMEOUT: self->writer.timeout_s = g_value_get_double(value); break;
    case PROP_READERS: self->writer.readers = g_value_get_uint(value); break;
    case PROP_DROP: self->writer.drops = g_value_get_boolean(value); break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
    }
}

static void get_property(GObject *object, guint id, GValue *value, GParamSpec *spec) {
    GpuringSink *self = SELF(object);
    switch (id) {
    case PROP_RING: g_value_set_string(value, self->writer.name); break;
    case PROP_SLOTS: g_value_set_uint(value, self->writer.slots); break;
    case PROP_CREATE: g_value_set_boolean(value, self->writer.creates); break;
    case PROP_TIMEOUT: g_value_set_double(value, self->writer.timeout_s); break;
    case PROP_READERS: g_value_set_uint(value, self->writer.readers); break;
    case PROP_DROP: g_value_set_boolean(value, self->writer.drops); break;
    case PROP_DROPPED:
        GST_OBJECT_LOCK(self);
        g_value_set_uint64(value, self->dropped);
        GST_OBJECT_UNLOCK(self);
        break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
    }
}

static void finalize(GObject *object) {
    GpuringSink *self = SELF(object);
    writer_clear(&self->writer);
    G_OBJECT_CLASS(gpuring_sink_parent_class)->finalize(object);
}

static void gpuring_sink_init(GpuringSink *self) {
    writer_init(&self->writer, GST_ELEMENT(self));
    gst_base_sink_set_sync(GST_BASE_SINK(self), FALSE); /* readers set the pace */
}

static void add_properties(GObjectClass *of) {
    const GParamFlags early = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | GST_PARAM_MUTABLE_READY;
    g_object_class_install_property(
        of, PROP_RING,
        g_param_spec_string("ring", "Ring", "The name of the ring", NULL, early));
    g_object_class_install_property(
        of, PROP_SLOTS,
        g_param_spec_uint("slots", "Slots", "How many slots a new ring has", 1, 1024,
                          8, early));
    g_object_class_install_property(
        of, PROP_CREATE,
        g_param_spec_boolean("create", "Create",
                             "Make the ring; otherwise wait for one that another program makes",
                             TRUE,
                             early));
    g_object_class_install_property(
        of, PROP_TIMEOUT,
        g_param_spec_double("timeout", "Timeout",
                            "With create=false, for how many seconds to wait for the ring (-1 = "
                            "forever)",
                            -1, G_MAXDOUBLE, -1, early));
    g_object_class_install_property(
        of, PROP_READERS,
        g_param_spec_uint("readers", "Readers",
                          "Wait for so many consumers before the first frame of a ring", 0, 250, 0,
                          early));
    g_object_class_install_property(
        of, PROP_DROP,
        g_param_spec_boolean("drop", "Drop",
                             "Drop a frame for which no slot is free, instead of waiting", FALSE,
                             early));
    g_object_class_install_property(
        of, PROP_DROPPED,
        g_param_spec_uint64("dropped", "Dropped", "How many frames were dropped", 0, G_MAXUINT64,
                            0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void gpuring_sink_class_init(GpuringSinkClass *class) {
    GObjectClass *object = G_OBJECT_CLASS(class);
    GstElementClass *element = GST_ELEMENT_CLASS(class);
    GstBaseSinkClass *base = GST_BASE_SINK_CLASS(class);
    object->set_property = set_property;
    object->get_property = get_property;
    object->finalize = finalize;
    add_properties(object);
    gst_element_class_set_static_metadata(element, "Sink to a gpuring", "Sink/Video/Audio",
                                          "Writes frames to a shared-memory ring, which other "
                                          "processes read",
                                          "the authors of gpuring");
    gst_element_class_add_static_pad_template(element, &template);
    base->start = start;
    base->stop = stop;
    base->unlock = unlock;
    base->unlock_stop = unlock_stop;
    base->set_caps = set_caps;
    base->event = event;
    base->render = render;
    base->propose_allocation = propose_allocation;
}

/* gpuringsink: buffers become frames of a ring, each by one copy. */
#include "sink.h"

#include <gst/base/gstbasesink.h>
#include <string.h>

#include "making.h"
#include "metadata.h"
#include "waiting.h"

typedef struct GpuringSink {
    GstBaseSink base;
    /* Properties. */
    gchar *name;
    guint slots, readers;
    gboolean creates, drops;
    gdouble timeout_s;
    /* Of the streaming thread. */
    GstPoll *cancel;
    GstPollFD watched; /* of the producer */
    gpuring_ring *ring;
    gpuring_producer *producer;
    Metadata metadata;
    gboolean is_ours;     /* the ring was made here */
    gboolean was_awaited; /* its readers are there */
    gchar *text;          /* of the caps */
    gboolean is_placed;   /* the slots were found to hold frames of these caps */
    Layout layout;
    guint64 dropped; /* under the object's lock */
} GpuringSink;

typedef struct GpuringSinkClass {
    GstBaseSinkClass base;
} GpuringSinkClass;

G_DEFINE_TYPE(GpuringSink, gpuring_sink, GST_TYPE_BASE_SINK)
#define SELF(object) ((GpuringSink *)(object))

static GstStaticPadTemplate template =
    GST_STATIC_PAD_TEMPLATE("sink", GST_PAD_SINK, GST_PAD_ALWAYS, GST_STATIC_CAPS(ALL_CAPS));

/* ---- the ring -------------------------------------------------------------------------------- */

static void leave(GpuringSink *self) {
    if (self->producer) gst_poll_remove_fd(self->cancel, &self->watched);
    gpuring_close_producer(self->producer, NULL);
    self->producer = NULL;
}

static void give_up(GpuringSink *self) {
    leave(self);
    gpuring_detach(self->ring, NULL);
    self->ring = NULL;
    self->is_ours = self->was_awaited = FALSE;
}

static gpuring_status join(GpuringSink *self, gpuring_error *error) {
    gpuring_producer_options options = GPURING_PRODUCER_OPTIONS;
    options.label = GST_OBJECT_NAME(self);
    gpuring_status status = gpuring_join_producer(self->ring, &options, &self->producer, error);
    if (status != GPURING_OK) return status;
    gst_poll_fd_init(&self->watched);
    status = gpuring_producer_fd(self->producer, &self->watched.fd, error);
    if (status != GPURING_OK) {
        gpuring_close_producer(self->producer, NULL);
        self->producer = NULL;
        return status;
    }
    gst_poll_add_fd(self->cancel, &self->watched);
    gst_poll_fd_ctl_read(self->cancel, &self->watched, TRUE);
    return GPURING_OK;
}

/* Frames of another program that runs are not mixed with ours, unless that was asked for. */
static gpuring_status take_over(GpuringSink *self, gpuring_error *error) {
    gpuring_info info = GPURING_INFO;
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    options.device = GPURING_DEVICE_HOST;
    const gpuring_status status = gpuring_attach(self->name, &options, &self->ring, error);
    if (status != GPURING_OK) return status;
    gpuring_get_info(self->ring, &info);
    if (!info.creator_alive && info.live_producers == 0) return GPURING_OK;
    give_up(self);
    if (info.creator_alive)
        tell(error, GPURING_EXISTS,
             "ring '%s' is in use: its creator, pid %" G_GUINT64_FORMAT ", is alive. Choose another "
             "name, or write into this ring with create=false",
             self->name, info.creator_pid);
    else
        tell(error, GPURING_EXISTS,
             "ring '%s' is in use: it has a producer. Choose another name, or write into this ring, "
             "too, with create=false",
             self->name);
    return error->status;
}

/* Only the ring of a program that has died is used, and not replaced. */
static gpuring_status open_ring(GpuringSink *self, gpuring_error *error) {
    gpuring_status status;
    if (!self->creates) {
        do status = wait_for_ring(self->cancel, self->name, self->timeout_s, &self->ring, error);
        while (status == CANCELLED &&
               gst_base_sink_wait_preroll(GST_BASE_SINK(self)) == GST_FLOW_OK);
        return status;
    }
    status = make_ring(self->name, self->slots, &self->layout, &self->ring, error);
    self->is_ours = status == GPURING_OK;
    return status == GPURING_EXISTS ? take_over(self, error) : status;
}

/* After an unlock() a pause is waited out. FALSE: it is to stop. */
static gboolean may_go_on(GpuringSink *self, GstClockTime timeout) {
    return wait_for_fd(self->cancel, timeout) ||
           gst_base_sink_wait_preroll(GST_BASE_SINK(self)) == GST_FLOW_OK;
}

static gpuring_status await_readers(GpuringSink *self) {
    gpuring_info info = GPURING_INFO;
    while (!self->was_awaited) {
        gpuring_get_info(self->ring, &info);
        self->was_awaited = info.live_consumers >= self->readers;
        if (!self->was_awaited && !may_go_on(self, 20 * GST_MSECOND)) return CANCELLED;
    }
    return GPURING_OK;
}

static gpuring_status does_not_fit(const GpuringSink *self, gpuring_error *error) {
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(self->ring, &info);
    if (!info.creator_alive)
        g_snprintf(error->text + strlen(error->text), sizeof error->text - strlen(error->text),
                   ". Its creator is dead: `gpuring clean %s` removes it", self->name);
    return GPURING_INVALID;
}

/* What the slots of our own ring cannot hold gets a new ring. */
static gpuring_status place(GpuringSink *self, gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    if (self->ring && layout_place(&self->layout, self->ring, error)) return GPURING_OK;
    if (self->ring && !self->is_ours) return does_not_fit(self, error);
    give_up(self);
    status = open_ring(self, error);
    if (status != GPURING_OK) return status;
    metadata_of(&self->metadata, self->ring);
    return layout_place(&self->layout, self->ring, error) ? GPURING_OK : does_not_fit(self, error);
}

static gpuring_status prepare(GpuringSink *self, gpuring_error *error) {
    gpuring_status status = self->is_placed ? GPURING_OK : place(self, error);
    const gsize room = self->metadata.caps.nbytes;
    if (status == GPURING_OK && room && strlen(self->text) > room) {
        tell(error, GPURING_INVALID,
             "ring '%s': the metadata `caps` has room for %d bytes, and not for these caps: %s",
             self->name, (gint)room, self->text);
        return GPURING_INVALID;
    }
    self->is_placed = status == GPURING_OK;
    if (status == GPURING_OK) status = await_readers(self);
    if (status == GPURING_OK && !self->producer) status = join(self, error);
    return status;
}

static gboolean set_caps(GstBaseSink *base, GstCaps *caps) {
    GpuringSink *self = SELF(base);
    if (!layout_of_caps(&self->layout, caps)) return FALSE;
    g_free(self->text);
    self->text = gst_caps_to_string(caps);
    self->is_placed = FALSE;
    return TRUE;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* FULL: the frame is dropped. */
static gpuring_status claim(GpuringSink *self, gpuring_slot *slot, gpuring_error *error) {
    gpuring_status status = prepare(self, error);
    if (status != GPURING_OK) return status;
    if (self->drops) return gpuring_try_claim(self->producer, slot, error);
    for (;;) {
        status = gpuring_claim(self->producer, 0, slot, error);
        if (status != GPURING_FULL) return status;
        if (!may_go_on(self, GST_CLOCK_TIME_NONE)) return CANCELLED;
    }
}

static gpuring_status publish(GpuringSink *self, gpuring_slot *slot, GstClockTime pts,
                              GstClockTime duration, gpuring_error *error) {
    if (slot->meta) {
        metadata_set_time(&self->metadata.pts, slot, pts);
        metadata_set_time(&self->metadata.duration, slot, duration);
        metadata_set_caps(&self->metadata, slot, self->text);
    }
    return gpuring_publish(self->producer, slot, error);
}

/* Says so if the frame is smaller than the slot. */
static gpuring_status set_shape(GpuringSink *self, gpuring_slot *slot, const guint64 *shape,
                                gpuring_error *error) {
    gpuring_field field = GPURING_FIELD;
    const guint dimensions = self->layout.dimensions[0];
    gpuring_field_at(self->ring, 0, &field);
    if (self->layout.planes > 1 ||
        (field.dimensions == dimensions &&
         memcmp(field.shape, shape, dimensions * sizeof *shape) == 0))
        return GPURING_OK;
    return gpuring_set_shape(self->producer, slot, dimensions, shape, error);
}

static gpuring_status write_picture(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    const Layout *layout = &self->layout;
    gpuring_slot slot = GPURING_SLOT;
    GstVideoFrame frame;
    guint p;
    gpuring_status status = claim(self, &slot, error);
    if (status != GPURING_OK) return status;
    if (!gst_video_frame_map(&frame, &layout->video, buffer, GST_MAP_READ)) {
        gpuring_abandon(self->producer, &slot, NULL);
        tell(error, GPURING_INVALID, "ring '%s': a buffer cannot be read as a picture of its caps",
             self->name);
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
    gpuring_abandon(self->producer, &slot, NULL);
    return status;
}

/* More samples than a slot has room for go into several. */
static gpuring_status write_samples(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    const guint64 row = self->layout.row_nbytes[0];
    const guint64 rate = (guint64)GST_AUDIO_INFO_RATE(&self->layout.audio);
    gpuring_field field = GPURING_FIELD;
    gpuring_status status = prepare(self, error);
    if (status != GPURING_OK) return status;
    gpuring_field_at(self->ring, 0, &field);
    const guint64 samples = gst_buffer_get_size(buffer) / row, room = field.nbytes / row;
    guint64 done = 0;
    while (status == GPURING_OK && done < samples) {
        gpuring_slot slot = GPURING_SLOT;
        const guint64 shape[] = {MIN(samples - done, room), self->layout.shape[0][1]};
        const GstClockTime from = gst_util_uint64_scale(done, GST_SECOND, rate);
        const GstClockTime to = gst_util_uint64_scale(done + shape[0], GST_SECOND, rate);
        status = claim(self, &slot, error);
        if (status != GPURING_OK) return status;
        gst_buffer_extract(buffer, done * row, slot.data, shape[0] * row);
        status = set_shape(self, &slot, shape, error);
        if (status == GPURING_OK)
            status = publish(self, &slot,
                             GST_BUFFER_PTS_IS_VALID(buffer) ? GST_BUFFER_PTS(buffer) + from
                                                             : GST_CLOCK_TIME_NONE,
                             to - from, error);
        else gpuring_abandon(self->producer, &slot, NULL);
        done += shape[0];
    }
    return status;
}

static GstFlowReturn render(GstBaseSink *base, GstBuffer *buffer) {
    GpuringSink *self = SELF(base);
    gpuring_error error;
    const gpuring_status status = self->layout.is_video ? write_picture(self, buffer, &error)
                                                        : write_samples(self, buffer, &error);
    if (status == GPURING_OK) return GST_FLOW_OK;
    if (status == CANCELLED) return GST_FLOW_FLUSHING;
    if (status != GPURING_FULL) {
        post_error(GST_ELEMENT(self), &error);
        return GST_FLOW_ERROR;
    }
    GST_OBJECT_LOCK(self);
    self->dropped++;
    GST_OBJECT_UNLOCK(self);
    return GST_FLOW_OK;
}

/* ---- the element ----------------------------------------------------------------------------- */

static gboolean event(GstBaseSink *base, GstEvent *event) {
    if (GST_EVENT_TYPE(event) == GST_EVENT_EOS) leave(SELF(base)); /* readers get the end */
    return GST_BASE_SINK_CLASS(gpuring_sink_parent_class)->event(base, event);
}

static gboolean propose_allocation(GstBaseSink *base, GstQuery *query) {
    (void)base;
    gst_query_add_allocation_meta(query, GST_VIDEO_META_API_TYPE, NULL);
    return TRUE;
}

static gboolean start(GstBaseSink *base) {
    GpuringSink *self = SELF(base);
    if (!self->name) {
        GST_ELEMENT_ERROR(self, RESOURCE, SETTINGS, ("gpuringsink needs the name of a ring: ring="),
                          (NULL));
        return FALSE;
    }
    self->dropped = 0;
    return TRUE;
}

static gboolean stop(GstBaseSink *base) {
    give_up(SELF(base));
    return TRUE;
}

static gboolean unlock(GstBaseSink *base) {
    gst_poll_set_flushing(SELF(base)->cancel, TRUE);
    return TRUE;
}

static gboolean unlock_stop(GstBaseSink *base) {
    gst_poll_set_flushing(SELF(base)->cancel, FALSE);
    return TRUE;
}

enum {
    PROP_RING = 1, PROP_SLOTS, PROP_CREATE, PROP_TIMEOUT, PROP_READERS, PROP_DROP, PROP_DROPPED
};

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    GpuringSink *self = SELF(object);
    switch (id) {
    case PROP_RING:
        g_free(self->name);
        self->name = g_value_dup_string(value);
        break;
    case PROP_SLOTS: self->slots = g_value_get_uint(value); break;
    case PROP_CREATE: self->creates = g_value_get_boolean(value); break;
    case PROP_TIMEOUT: self->timeout_s = g_value_get_double(value); break;
    case PROP_READERS: self->readers = g_value_get_uint(value); break;
    case PROP_DROP: self->drops = g_value_get_boolean(value); break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
    }
}

static void get_property(GObject *object, guint id, GValue *value, GParamSpec *spec) {
    GpuringSink *self = SELF(object);
    switch (id) {
    case PROP_RING: g_value_set_string(value, self->name); break;
    case PROP_SLOTS: g_value_set_uint(value, self->slots); break;
    case PROP_CREATE: g_value_set_boolean(value, self->creates); break;
    case PROP_TIMEOUT: g_value_set_double(value, self->timeout_s); break;
    case PROP_READERS: g_value_set_uint(value, self->readers); break;
    case PROP_DROP: g_value_set_boolean(value, self->drops); break;
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
    gst_poll_free(self->cancel);
    g_free(self->text);
    g_free(self->name);
    G_OBJECT_CLASS(gpuring_sink_parent_class)->finalize(object);
}

static void gpuring_sink_init(GpuringSink *self) {
    self->slots = 8;
    self->creates = TRUE;
    self->timeout_s = -1;
    self->cancel = gst_poll_new(TRUE);
    gst_poll_fd_init(&self->watched);
    gst_base_sink_set_sync(GST_BASE_SINK(self), FALSE); /* readers set the pace */
}

static void add_properties(GObjectClass *of) {
    const GParamFlags early = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | GST_PARAM_MUTABLE_READY;
    g_object_class_install_property(
        of, PROP_RING,
        g_param_spec_string("ring", "Ring", "The name of the ring", NULL, early));
    g_object_class_install_property(
        of, PROP_SLOTS,
        g_param_spec_uint("slots", "Slots", "How many slots a ring has that is made here", 1, 1024,
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

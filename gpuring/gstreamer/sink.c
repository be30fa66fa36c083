/* gpuringsink: copies each buffer into a slot, as a frame of a ring. */
#include "sink.h"

#include <gst/base/gstbasesink.h>
#include <string.h>

#include "waiting.h"
#include "writer.h"

typedef struct GpuringSink {
    GstBaseSink base;
    Writer writer; /* with the properties */
    /* Under the object's lock. */
    guint64 dropped;
    gint unlocks; /* those without an unlock_stop() yet */
} GpuringSink;

typedef struct GpuringSinkClass {
    GstBaseSinkClass base;
} GpuringSinkClass;

G_DEFINE_TYPE(GpuringSink, gpuring_sink, GST_TYPE_BASE_SINK)
#define SELF(object) ((GpuringSink *)(object))

/* CUDA_CAPS come first, so that a decoder that can do both keeps its frames on the GPU. */
static GstStaticPadTemplate host_template =
    GST_STATIC_PAD_TEMPLATE("sink", GST_PAD_SINK, GST_PAD_ALWAYS, GST_STATIC_CAPS(HOST_CAPS));
static GstStaticPadTemplate cuda_template = GST_STATIC_PAD_TEMPLATE(
    "sink", GST_PAD_SINK, GST_PAD_ALWAYS, GST_STATIC_CAPS(CUDA_CAPS "; " HOST_CAPS));

/* ---- caps ------------------------------------------------------------------------------------ */

/* The caps of the kind of memory that the property asks for. */
static GstCaps *get_caps(GstBaseSink *base, GstCaps *filter) {
    const gint memory = SELF(base)->writer.memory;
    GstCaps *caps = memory == ANY_MEMORY
                        ? gst_pad_get_pad_template_caps(GST_BASE_SINK_PAD(base))
                        : gst_caps_from_string(memory == GPURING_MEMORY_HOST ? HOST_CAPS : CUDA_CAPS);
    if (!filter) return caps;
    GstCaps *both = gst_caps_intersect_full(filter, caps, GST_CAPS_INTERSECT_FIRST);
    gst_caps_unref(caps);
    return both;
}

/* The caps as text for the metadata, without the kind of memory. That is a property of the ring. */
static gchar *text_of(const GstCaps *caps) {
    GstCaps *format = gst_caps_copy(caps);
    gst_caps_set_features_simple(format, NULL);
    gchar *text = gst_caps_to_string(format);
    gst_caps_unref(format);
    return text;
}

static gboolean set_caps(GstBaseSink *base, GstCaps *caps) {
    GpuringSink *self = SELF(base);
    if (!layout_of_caps(&self->writer.layout, caps)) return FALSE;
    g_free(self->writer.text);
    self->writer.text = text_of(caps);
    self->writer.is_placed = FALSE;
    return TRUE;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* GPURING_FULL: the frame is dropped. */
static gpuring_status claim(GpuringSink *self, gpuring_slot *slot, gpuring_error *error) {
    const gpuring_status status = writer_claim(&self->writer, slot, error);
    GST_OBJECT_LOCK(self);
    if (status == GPURING_FULL) self->dropped++;
    GST_OBJECT_UNLOCK(self);
    return status;
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

/* Sets the shape of the frame, if it is smaller than the slot. */
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

static gpuring_status not_a_picture(GpuringSink *self, gpuring_error *error) {
    tell(error, GPURING_INVALID, "ring '%s': a buffer cannot be read as a picture of its caps",
         self->writer.name);
    return GPURING_INVALID;
}

/* A copy on the GPU is only enqueued here. So the sink keeps the buffer until the copy is done. */
static gpuring_status copy_picture(GpuringSink *self, const gpuring_slot *slot, GstBuffer *buffer,
                                   gpuring_error *error) {
    const Layout *layout = &self->writer.layout;
    gpuring_status status = GPURING_OK;
    GstVideoFrame frame;
    guint p;
    if (!(layout->is_on_gpu ? cuda_map(&frame, &layout->video, buffer, GST_MAP_READ)
                            : gst_video_frame_map(&frame, &layout->video, buffer, GST_MAP_READ)))
        return not_a_picture(self, error);
    if (layout->is_on_gpu) gst_buffer_replace(&self->writer.copied, buffer);
    for (p = 0; p < layout->planes && status == GPURING_OK; p++) {
        char *to = (char *)slot->data + layout->offset[p];
        const gsize nbytes = layout->row_nbytes[p];
        const guint64 rows = layout->shape[p][0];
        const gpointer from = GST_VIDEO_FRAME_PLANE_DATA(&frame, p);
        const gsize stride = (gsize)GST_VIDEO_FRAME_PLANE_STRIDE(&frame, p);
        if (layout->is_on_gpu)
            status = gpu_copy(&self->writer.gpu, to, nbytes, from, stride, nbytes, rows, error);
        else copy_rows(to, nbytes, from, stride, nbytes, rows);
    }
    gst_video_frame_unmap(&frame);
    return status;
}

/* The ring has to be on the GPU of the frame. If the frame is on another GPU than before, the sink
 * gives up its ring, and makes one there. */
static gpuring_status prepare_gpu(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    Writer *writer = &self->writer;
    gint number;
    if (!cuda_has(buffer, &number)) return not_a_picture(self, error);
    if (number != writer->gpu.number) {
        writer_give_up(writer);
        writer->is_placed = FALSE;
    }
    const gpuring_status status = gpu_use(&writer->gpu, number, error);
    return status == GPURING_OK ? writer_await_copy(writer, error) : status;
}

static gpuring_status write_picture(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    const Layout *layout = &self->writer.layout;
    gpuring_slot slot = GPURING_SLOT;
    gpuring_status status = GPURING_OK;
    if (layout->is_on_gpu) status = prepare_gpu(self, buffer, error);
    if (status == GPURING_OK) status = claim(self, &slot, error);
    if (status != GPURING_OK) return status;
    status = copy_picture(self, &slot, buffer, error);
    if (status == GPURING_OK) status = set_shape(self, &slot, layout->shape[0], error);
    if (status == GPURING_OK)
        return publish(self, &slot, GST_BUFFER_PTS(buffer), GST_BUFFER_DURATION(buffer), error);
    gpuring_abandon(self->writer.producer, &slot, NULL);
    return status;
}

/* Samples that do not fit into one slot go into several, each a frame that may be dropped. */
static gpuring_status write_samples(GpuringSink *self, GstBuffer *buffer, gpuring_error *error) {
    const guint64 row = self->writer.layout.row_nbytes[0];
    const guint64 rate = (guint64)GST_AUDIO_INFO_RATE(&self->writer.layout.audio);
    gpuring_field field = GPURING_FIELD;
    gpuring_status status = writer_prepare(&self->writer, error);
    if (status != GPURING_OK) return status;
    const guint64 samples = gst_buffer_get_size(buffer) / row;
    guint64 done, room;
    for (done = 0; done < samples; done += room) {
        gpuring_slot slot = GPURING_SLOT;
        status = claim(self, &slot, error);
        if (status != GPURING_OK && status != GPURING_FULL) return status;
        gpuring_field_at(self->writer.ring, 0, &field); /* the claim may have led to another ring */
        room = field.nbytes / row;
        if (status == GPURING_FULL) continue;
        const guint64 shape[] = {MIN(samples - done, room), self->writer.layout.shape[0][1]};
        const GstClockTime from = gst_util_uint64_scale(done, GST_SECOND, rate);
        const GstClockTime to = gst_util_uint64_scale(done + shape[0], GST_SECOND, rate);
        gst_buffer_extract(buffer, done * row, slot.data, shape[0] * row);
        status = set_shape(self, &slot, shape, error);
        if (status == GPURING_OK)
            status = publish(self, &slot,
                             GST_BUFFER_PTS_IS_VALID(buffer) ? GST_BUFFER_PTS(buffer) + from
                                                             : GST_CLOCK_TIME_NONE,
                             to - from, error);
        else gpuring_abandon(self->writer.producer, &slot, NULL);
        if (status != GPURING_OK) return status;
    }
    return GPURING_OK;
}

static GstFlowReturn render(GstBaseSink *base, GstBuffer *buffer) {
    GpuringSink *self = SELF(base);
    gpuring_error error;
    const gpuring_status status = self->writer.layout.is_video ? write_picture(self, buffer, &error)
                                                        : write_samples(self, buffer, &error);
    return status == GPURING_FULL ? GST_FLOW_OK : flow_of(GST_ELEMENT(self), status, &error);
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

static gboolean query(GstBaseSink *base, GstQuery *query) {
    GpuringSink *self = SELF(base);
    return (self->writer.memory != GPURING_MEMORY_HOST && gpu_answer(&self->writer.gpu, -1, query)) ||
           GST_BASE_SINK_CLASS(gpuring_sink_parent_class)->query(base, query);
}

static void set_context(GstElement *element, GstContext *context) {
    gpu_take_context(&SELF(element)->writer.gpu, context);
    GST_ELEMENT_CLASS(gpuring_sink_parent_class)->set_context(element, context);
}

static gboolean start(GpuringSink *self) {
    self->dropped = 0;
    return may_start(GST_ELEMENT(self), self->writer.name, self->writer.timeout_s);
}

static void stop(GpuringSink *self) {
    writer_give_up(&self->writer);
    gpu_leave(&self->writer.gpu);
}

/* A flush and a change of state may overlap. The end of one does not end what the other asked for. */
static gboolean add_unlocks(GstBaseSink *base, gint n) {
    GpuringSink *self = SELF(base);
    GST_OBJECT_LOCK(self);
    self->unlocks += n;
    gst_poll_set_flushing(self->writer.cancel, self->unlocks > 0);
    GST_OBJECT_UNLOCK(self);
    return TRUE;
}

static gboolean unlock(GstBaseSink *base) { return add_unlocks(base, 1); }
static gboolean unlock_stop(GstBaseSink *base) { return add_unlocks(base, -1); }

/* The base class would start and stop the element between NULL and READY. But its properties can be
 * set in READY, so it has no ring there.
 *
 * The base class takes its lock to play. render() holds that lock, but where it waits for the end of a
 * pause. It may not be there: the pause before may have ended before it ran, or it went on by itself
 * when the first frame came. So it is called there until the base class has played. */
static GstStateChangeReturn change_state(GstElement *element, GstStateChange change) {
    GstBaseSink *base = GST_BASE_SINK(element);
    const gboolean plays = change == GST_STATE_CHANGE_PAUSED_TO_PLAYING;
    if (change == GST_STATE_CHANGE_READY_TO_PAUSED && !start(SELF(base)))
        return GST_STATE_CHANGE_FAILURE;
    if (plays) unlock(base);
    const GstStateChangeReturn done =
        GST_ELEMENT_CLASS(gpuring_sink_parent_class)->change_state(element, change);
    if (plays) {
        GST_BASE_SINK_PREROLL_LOCK(base);
        unlock_stop(base);
        GST_BASE_SINK_PREROLL_SIGNAL(base);
        GST_BASE_SINK_PREROLL_UNLOCK(base);
    }
    if (change == GST_STATE_CHANGE_PAUSED_TO_READY) stop(SELF(base));
    return done;
}

enum {
    PROP_RING = 1, PROP_SLOTS, PROP_CREATE, PROP_TIMEOUT, PROP_READERS, PROP_DROP, PROP_DROPPED,
    PROP_MEMORY, PROP_OWNER, PROP_FOLLOW
};

static GType memory_type(void) {
    static const GEnumValue values[] = {
        {ANY_MEMORY, "Where the frames are, on a GPU as auto", "any"},
        {GPURING_MEMORY_HOST, "Host memory", "host"},
        {GPURING_MEMORY_AUTO, "On a GPU, what suits it", "auto"},
        {GPURING_MEMORY_IPC, "On a GPU, by legacy CUDA IPC", "ipc"},
        {GPURING_MEMORY_VMM, "On a GPU, as a descriptor; consumers can only read", "vmm"},
        {GPURING_MEMORY_POOL, "On a GPU, in a pool of cudaMallocAsync", "pool"},
        {0, NULL, NULL},
    };
    static gsize type;
    if (g_once_init_enter(&type))
        g_once_init_leave(&type, g_enum_register_static("GpuringSinkMemory", values));
    return type;
}

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    GpuringSink *self = SELF(object);
    if (!may_set(GST_ELEMENT(self), spec)) return;
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
    case PROP_MEMORY: self->writer.memory = g_value_get_enum(value); break;
    case PROP_OWNER: self->writer.owner = g_value_get_int64(value); break;
    case PROP_FOLLOW: self->writer.follows = g_value_get_boolean(value); break;
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
    case PROP_MEMORY: g_value_set_enum(value, self->writer.memory); break;
    case PROP_OWNER: g_value_set_int64(value, self->writer.owner); break;
    case PROP_FOLLOW: g_value_set_boolean(value, self->writer.follows); break;
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
    GParamSpec *properties[] = {
        [PROP_RING] = g_param_spec_string("ring", "Ring", "The name of the ring", NULL, early),
        [PROP_SLOTS] = g_param_spec_uint("slots", "Slots", "How many slots a new ring has",
            1, 1024, 8, early),
        [PROP_CREATE] = g_param_spec_boolean("create", "Create",
            "Make the ring; otherwise wait for one that another program makes", TRUE, early),
        [PROP_TIMEOUT] = g_param_spec_double("timeout", "Timeout",
            "With create=false, for how many seconds to wait for the ring (-1 = forever)",
            -1, G_MAXDOUBLE, -1, early),
        [PROP_FOLLOW] = g_param_spec_boolean("reattach", "Reattach",
            "With create=false, wait for the next ring of the name when the ring is closed, instead of "
            "failing", FALSE, early),
        [PROP_READERS] = g_param_spec_uint("readers", "Readers",
            "Wait for so many consumers before the first frame of a ring", 0, 250, 0, early),
        [PROP_DROP] = g_param_spec_boolean("drop", "Drop",
            "Drop a frame for which no slot is free, instead of waiting", FALSE, early),
        [PROP_MEMORY] = g_param_spec_enum("memory", "Memory",
            "Where a new ring is, and so which frames are taken", memory_type(), ANY_MEMORY, early),
        [PROP_OWNER] = g_param_spec_int64("owner", "Owner",
            "With create=false, the id of the user whose ring it must be (-1 = the user of this "
            "process, or root)", -1, G_MAXUINT32, -1, early),
        [PROP_DROPPED] = g_param_spec_uint64("dropped", "Dropped",
            "How many frames were dropped, of which long audio buffers are several",
            0, G_MAXUINT64, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS),
    };
    g_object_class_install_properties(of, G_N_ELEMENTS(properties), properties);
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
    gst_element_class_add_static_pad_template(element,
                                              cuda_is_here() ? &cuda_template : &host_template);
    gst_type_mark_as_plugin_api(memory_type(), 0);
    element->set_context = set_context;
    element->change_state = change_state;
    base->unlock = unlock;
    base->unlock_stop = unlock_stop;
    base->get_caps = get_caps;
    base->set_caps = set_caps;
    base->query = query;
    base->event = event;
    base->render = render;
    base->propose_allocation = propose_allocation;
}

/* gpuringsrc: makes a buffer of each frame of a ring. Buffers point into the slots where
 * possible. */
#include "src.h"

#include <gst/base/gstpushsrc.h>

#include "buffers.h"
#include "content.h"
#include "stream.h"
#include "timing.h"
#include "waiting.h"

typedef struct GpuringSrc {
    GstPushSrc base;
    Stream stream; /* with some of the properties; these are the others */
    gboolean must_copy;
    Content content;
    /* Of the streaming thread. */
    gboolean takes_meta; /* downstream finds planes by GstVideoMeta */
    GstBufferPool *pool; /* of frames on a GPU */
    GstBuffer *copied;   /* a frame on a GPU, whose copy is not done, and the slot of it */
    gpuring_slot slot;
    Timing timing;
    /* Under the object's lock. */
    guint64 lost;
    GstClockTime frame_ns;
    guint slots;
} GpuringSrc;

typedef struct GpuringSrcClass {
    GstPushSrcClass base;
} GpuringSrcClass;

G_DEFINE_TYPE(GpuringSrc, gpuring_src, GST_TYPE_PUSH_SRC)
#define SELF(object) ((GpuringSrc *)(object))

static GstStaticPadTemplate host_template =
    GST_STATIC_PAD_TEMPLATE("src", GST_PAD_SRC, GST_PAD_ALWAYS, GST_STATIC_CAPS(HOST_CAPS));
static GstStaticPadTemplate cuda_template = GST_STATIC_PAD_TEMPLATE(
    "src", GST_PAD_SRC, GST_PAD_ALWAYS, GST_STATIC_CAPS(CUDA_CAPS "; " HOST_CAPS));

/* ---- caps ------------------------------------------------------------------------------------ */

static void drop_pool(GpuringSrc *self) {
    if (self->pool) gst_buffer_pool_set_active(self->pool, FALSE);
    gst_clear_object(&self->pool);
}

/* Whether elements downstream accept the caps. Without this question some would fail only at the
 * first buffer, and with an error that does not mention the caps. */
static gboolean is_taken(const GpuringSrc *self) {
    GstCaps *caps = gst_pad_peer_query_caps(GST_BASE_SRC_PAD(self), self->content.caps);
    const gboolean some = !gst_caps_is_empty(caps);
    gst_caps_unref(caps);
    return some;
}

/* Takes the caps of this frame, which hold until a frame has others. */
static gboolean take_caps(GpuringSrc *self, const gpuring_slot *slot, gpuring_error *error) {
    gboolean is_new;
    if (!content_take(&self->content, self->stream.reader, self->stream.name, slot, &is_new, error))
        return FALSE;
    GST_OBJECT_LOCK(self);
    self->frame_ns = content_frame_ns(&self->content);
    GST_OBJECT_UNLOCK(self);
    if (is_new) drop_pool(self);
    if (!is_new || (is_taken(self) && gst_base_src_negotiate(GST_BASE_SRC(self)))) return TRUE;
    content_not_taken(&self->content, self->stream.name, error);
    return FALSE;
}

static gboolean negotiate(GstBaseSrc *base) {
    GpuringSrc *self = SELF(base);
    return !self->content.caps || gst_base_src_set_caps(base, self->content.caps);
}

static gboolean decide_allocation(GstBaseSrc *base, GstQuery *query) {
    SELF(base)->takes_meta = gst_query_find_allocation_meta(query, GST_VIDEO_META_API_TYPE, NULL);
    while (gst_query_get_n_allocation_pools(query)) /* buffers lie in slots */
        gst_query_remove_nth_allocation_pool(query, 0);
    return TRUE;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void set_times(GpuringSrc *self, const gpuring_slot *slot, GstBuffer *buffer) {
    const GstClockTime pts = content_pts(&self->content, self->stream.reader, slot);
    const Metadata *metadata = &self->stream.reader->metadata;
    GstClockTime duration = metadata_time(&metadata->duration, slot);
    if (!metadata->caps.nbytes || !GST_CLOCK_TIME_IS_VALID(duration))
        duration = self->frame_ns ? self->frame_ns : GST_CLOCK_TIME_NONE;
    GST_BUFFER_OFFSET(buffer) = slot->seq;
    if (slot->lost) GST_BUFFER_FLAG_SET(buffer, GST_BUFFER_FLAG_DISCONT);
    timing_set(&self->timing, GST_BASE_SRC(self), buffer, slot->published_ns, pts, duration);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static gboolean may_lend(const GpuringSrc *self) {
    const Layout *layout = &self->content.layout;
    return !self->must_copy && reader_may_lend(self->stream.reader) &&
           (layout_is_usual(layout) || (layout->is_video && self->takes_meta));
}

static GstBuffer *on_gpu(GpuringSrc *self, const gpuring_slot *slot, gpuring_error *error) {
    if (!self->pool)
        self->pool = gpu_new_pool(&self->stream.gpu, GST_BASE_SRC_PAD(self), self->content.caps,
                                  &self->content.layout.video);
    GstBuffer *buffer =
        buffer_on_gpu(&self->content.layout, &self->stream.gpu, self->pool, slot, error);
    if (buffer) set_times(self, slot, buffer);
    return buffer;
}

static GstFlowReturn create(GstPushSrc *base, GstBuffer **buffer);

/* Passes over a torn frame, and goes on with the next one. */
static GstFlowReturn pass_over(GpuringSrc *self, const gpuring_error *error, GstBuffer **buffer) {
    gst_clear_buffer(&self->copied);
    post_info(GST_ELEMENT(self), error);
    self->stream.missed++;
    return create(GST_PUSH_SRC(self), buffer);
}

/* Waits until the copy is done. Elements downstream cannot wait for our stream, and must not get a
 * torn frame. */
static GstFlowReturn finish_copy(GpuringSrc *self, GstBuffer **buffer) {
    gpuring_error error;
    gpuring_status status = wait_for_copies(&self->stream.gpu, self->stream.cancel,
                                            &self->stream.watched, &error);
    if (status == GPURING_OK) status = reader_release(self->stream.reader, &self->slot, &error);
    if (status == GPURING_FRAME_TORN && self->stream.follows)
        return pass_over(self, &error, buffer);
    if (status != GPURING_OK) return flow_of(GST_ELEMENT(self), status, &error);
    *buffer = g_steal_pointer(&self->copied);
    return GST_FLOW_OK;
}

/* ---- the element ----------------------------------------------------------------------------- */

static void look_anew(GpuringSrc *self) {
    g_clear_pointer(&self->content.text, g_free);
    drop_pool(self); /* it may be on another GPU */
    GST_OBJECT_LOCK(self);
    self->slots = self->stream.reader->slots;
    GST_OBJECT_UNLOCK(self);
    self->stream.is_new = FALSE;
}

static GstFlowReturn put_out_on_gpu(GpuringSrc *self, gpuring_slot *slot, GstBuffer **buffer) {
    gpuring_error error;
    self->copied = on_gpu(self, slot, &error);
    self->slot = *slot;
    if (self->copied) return finish_copy(self, buffer);
    post_error(GST_ELEMENT(self), &error);
    reader_release(self->stream.reader, slot, NULL);
    return GST_FLOW_ERROR;
}

static GstFlowReturn create(GstPushSrc *base, GstBuffer **buffer) {
    GpuringSrc *self = SELF(base);
    gpuring_slot slot = GPURING_SLOT;
    gpuring_error error;
    gsize nbytes;
    if (self->copied) return finish_copy(self, buffer); /* a pause came first */
    const gpuring_status status = stream_acquire(&self->stream, &slot, &error);
    if (status != GPURING_OK) {
        if (stream_is_end(status)) return GST_FLOW_EOS;
        return flow_of(GST_ELEMENT(self), status, &error);
    }
    if (self->stream.is_new) look_anew(self);
    if ((!content_is_same(&self->content, self->stream.reader, &slot) && !take_caps(self, &slot, &error)) ||
        !layout_frame_nbytes(&self->content.layout,
                             &(Slots){self->stream.reader->ring, self->content.field}, &slot,
                             &nbytes, &error)) {
        reader_release(self->stream.reader, &slot, NULL);
        if (GST_PAD_IS_FLUSHING(GST_BASE_SRC_PAD(base))) return GST_FLOW_FLUSHING; /* it takes no caps */
        post_error(GST_ELEMENT(self), &error);
        return GST_FLOW_NOT_NEGOTIATED;
    }
    GST_OBJECT_LOCK(self);
    self->lost += slot.lost;
    GST_OBJECT_UNLOCK(self);
    if (self->content.layout.is_on_gpu) return put_out_on_gpu(self, &slot, buffer);
    const gboolean can_lend = may_lend(self);
    *buffer = (can_lend ? buffer_over : buffer_of_copy)(&self->content.layout, self->stream.reader,
                                                        &slot, nbytes);
    set_times(self, &slot, *buffer);
    if (!can_lend) reader_release(self->stream.reader, &slot, NULL);
    return GST_FLOW_OK;
}

static gboolean start(GstBaseSrc *base) {
    GpuringSrc *self = SELF(base);
    self->lost = self->stream.missed = 0;
    return may_start(GST_ELEMENT(self), self->stream.name, self->stream.timeout_s);
}

static gboolean stop(GstBaseSrc *base) {
    GpuringSrc *self = SELF(base);
    stream_leave(&self->stream);
    gpu_leave(&self->stream.gpu);
    gst_clear_buffer(&self->copied);
    drop_pool(self);
    g_clear_pointer(&self->content.text, g_free);
    gst_clear_caps(&self->content.caps);
    timing_init(&self->timing);
    return TRUE;
}

static gboolean unlock(GstBaseSrc *base) {
    gst_poll_set_flushing(SELF(base)->stream.cancel, TRUE);
    return TRUE;
}

static gboolean unlock_stop(GstBaseSrc *base) {
    gst_poll_set_flushing(SELF(base)->stream.cancel, FALSE);
    return TRUE;
}

/* The least latency is the duration of a frame, because a frame is published when it is complete.
 * The greatest is that of all slots, because a frame may wait in the ring until the ring is
 * full. */
static gboolean query(GstBaseSrc *base, GstQuery *query) {
    GpuringSrc *self = SELF(base);
    if (gpu_answer(&self->stream.gpu, self->stream.device, query)) return TRUE;
    if (GST_QUERY_TYPE(query) != GST_QUERY_LATENCY)
        return GST_BASE_SRC_CLASS(gpuring_src_parent_class)->query(base, query);
    GST_OBJECT_LOCK(self);
    const GstClockTime least = self->frame_ns;
    const GstClockTime most = least ? MAX(self->slots, 1) * least : GST_CLOCK_TIME_NONE;
    GST_OBJECT_UNLOCK(self);
    gst_query_set_latency(query, gst_base_src_is_live(base), least, most);
    return TRUE;
}

static void set_context(GstElement *element, GstContext *context) {
    gpu_take_context(&SELF(element)->stream.gpu, context);
    GST_ELEMENT_CLASS(gpuring_src_parent_class)->set_context(element, context);
}

static GstStateChangeReturn change_state(GstElement *element, GstStateChange change) {
    GpuringSrc *self = SELF(element);
    if (change == GST_STATE_CHANGE_PAUSED_TO_PLAYING)
        timing_resume(&self->timing, self->stream.is_lossless);
    return GST_ELEMENT_CLASS(gpuring_src_parent_class)->change_state(element, change);
}

enum {
    PROP_RING = 1, PROP_TIMEOUT, PROP_LOSSLESS, PROP_SUBSCRIPTION, PROP_FOLLOW, PROP_CAPS,
    PROP_TIMEBASE, PROP_COPY, PROP_IS_LIVE, PROP_LOST, PROP_DEVICE,
    PROP_FIELD, PROP_OWNER
};

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    GpuringSrc *self = SELF(object);
    if (!may_set(GST_ELEMENT(self), spec)) return;
    switch (id) {
    case PROP_RING:
        g_free(self->stream.name);
        self->stream.name = g_value_dup_string(value);
        break;
    case PROP_TIMEOUT: self->stream.timeout_s = g_value_get_double(value); break;
    case PROP_LOSSLESS: self->stream.is_lossless = g_value_get_boolean(value); break;
    case PROP_SUBSCRIPTION:
        g_free(self->stream.subscription);
        self->stream.subscription = g_value_dup_string(value);
        break;
    case PROP_FOLLOW: self->stream.follows = g_value_get_boolean(value); break;
    case PROP_CAPS: gst_caps_replace(&self->content.given, (GstCaps *)(gpointer)gst_value_get_caps(value)); break;
    case PROP_TIMEBASE:
        self->content.timebase[0] = gst_value_get_fraction_numerator(value);
        self->content.timebase[1] = gst_value_get_fraction_denominator(value);
        break;
    case PROP_COPY: self->must_copy = g_value_get_boolean(value); break;
    case PROP_DEVICE: self->stream.device = g_value_get_int(value); break;
    case PROP_OWNER: self->stream.owner = g_value_get_int64(value); break;
    case PROP_FIELD:
        g_free(self->content.field);
        self->content.field = g_value_dup_string(value);
        break;
    case PROP_IS_LIVE:
        gst_base_src_set_live(GST_BASE_SRC(self), g_value_get_boolean(value));
        break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
    }
}

static void get_property(GObject *object, guint id, GValue *value, GParamSpec *spec) {
    GpuringSrc *self = SELF(object);
    switch (id) {
    case PROP_RING: g_value_set_string(value, self->stream.name); break;
    case PROP_TIMEOUT: g_value_set_double(value, self->stream.timeout_s); break;
    case PROP_LOSSLESS: g_value_set_boolean(value, self->stream.is_lossless); break;
    case PROP_SUBSCRIPTION: g_value_set_string(value, self->stream.subscription); break;
    case PROP_FOLLOW: g_value_set_boolean(value, self->stream.follows); break;
    case PROP_CAPS: gst_value_set_caps(value, self->content.given); break;
    case PROP_TIMEBASE:
        gst_value_set_fraction(value, self->content.timebase[0], self->content.timebase[1]);
        break;
    case PROP_COPY: g_value_set_boolean(value, self->must_copy); break;
    case PROP_DEVICE: g_value_set_int(value, self->stream.device); break;
    case PROP_OWNER: g_value_set_int64(value, self->stream.owner); break;
    case PROP_FIELD: g_value_set_string(value, self->content.field); break;
    case PROP_IS_LIVE:
        g_value_set_boolean(value, gst_base_src_is_live(GST_BASE_SRC(self)));
        break;
    case PROP_LOST:
        GST_OBJECT_LOCK(self);
        g_value_set_uint64(value, self->lost);
        GST_OBJECT_UNLOCK(self);
        break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
    }
}

static void finalize(GObject *object) {
    GpuringSrc *self = SELF(object);
    stream_clear(&self->stream);
    gst_clear_caps(&self->content.given);
    g_free(self->content.field);
    G_OBJECT_CLASS(gpuring_src_parent_class)->finalize(object);
}

static void gpuring_src_init(GpuringSrc *self) {
    stream_init(&self->stream, GST_ELEMENT(self), &self->content);
    self->content.timebase[1] = 1;
    timing_init(&self->timing);
    gst_base_src_set_format(GST_BASE_SRC(self), GST_FORMAT_TIME);
    gst_base_src_set_live(GST_BASE_SRC(self), TRUE);
}

static void add_properties(GObjectClass *of) {
    const GParamFlags early = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | GST_PARAM_MUTABLE_READY;
    GParamSpec *properties[] = {
        [PROP_RING] = g_param_spec_string("ring", "Ring", "The name of the ring", NULL, early),
        [PROP_TIMEOUT] = g_param_spec_double("timeout", "Timeout",
            "For how many seconds to wait for a ring of this name (-1 = forever)",
            -1, G_MAXDOUBLE, -1, early),
        [PROP_LOSSLESS] = g_param_spec_boolean("lossless", "Lossless",
            "Producers wait until a frame was read here; otherwise frames may be lost, and the "
            "next buffer is a discontinuity", TRUE, early),
        [PROP_SUBSCRIPTION] = g_param_spec_string("subscription", "Subscription",
            "Consumers that name the same one share its frames (none = one of its own)",
            NULL, early),
        [PROP_FOLLOW] = g_param_spec_boolean("reattach", "Reattach",
            "At the end of the stream, or when a producer has died, wait for the next producer or "
            "the next ring of the name instead of ending", FALSE, early),
        [PROP_CAPS] = g_param_spec_boxed("caps", "Caps",
            "What the slots hold, for rings that gpuringsink did not make; shape and dtype give "
            "what is left out here", GST_TYPE_CAPS, early),
        [PROP_TIMEBASE] = gst_param_spec_fraction("timebase", "Timebase",
            "Seconds in a unit of the metadata `pts`, for rings that gpuringsink did not make (0 = "
            "frames are stamped when they come)", 0, 1, G_MAXINT, 1, 0, 1, early),
        [PROP_COPY] = g_param_spec_boolean("copy", "Copy",
            "Copy every frame, instead of only those that are kept for long", FALSE, early),
        [PROP_IS_LIVE] = g_param_spec_boolean("is-live", "Is live",
            "Frames come only while the pipeline plays, at their own pace", TRUE, early),
        [PROP_FIELD] = g_param_spec_string("field", "Field",
            "The field of the slots that is read (none = all, as the planes of one picture)",
            NULL, early),
        [PROP_DEVICE] = g_param_spec_int("cuda-device-id", "CUDA device",
            "The GPU on which frames of a ring on a GPU are put out (-1 = the first one)",
            -1, G_MAXINT, -1, early),
        [PROP_OWNER] = g_param_spec_int64("owner", "Owner",
            "The id of the user whose ring it must be (-1 = the user of this process, or root)",
            -1, G_MAXUINT32, -1, early),
        [PROP_LOST] = g_param_spec_uint64("lost", "Lost", "How many sequences were missed",
            0, G_MAXUINT64, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS),
    };
    g_object_class_install_properties(of, G_N_ELEMENTS(properties), properties);
}

static void gpuring_src_class_init(GpuringSrcClass *class) {
    GObjectClass *object = G_OBJECT_CLASS(class);
    GstElementClass *element = GST_ELEMENT_CLASS(class);
    GstBaseSrcClass *base = GST_BASE_SRC_CLASS(class);
    object->set_property = set_property;
    object->get_property = get_property;
    object->finalize = finalize;
    add_properties(object);
    gst_element_class_set_static_metadata(
        element, "Source of a gpuring", "Source/Video/Audio",
        "Reads frames of a shared-memory ring, where possible without a copy",
        "the authors of gpuring");
    gst_element_class_add_static_pad_template(element,
                                              cuda_is_here() ? &cuda_template : &host_template);
    element->set_context = set_context;
    element->change_state = change_state;
    base->start = start;
    base->stop = stop;
    base->unlock = unlock;
    base->unlock_stop = unlock_stop;
    base->negotiate = negotiate;
    base->decide_allocation = decide_allocation;
    base->query = query;
    GST_PUSH_SRC_CLASS(class)->create = create;
}

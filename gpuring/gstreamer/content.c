#include "content.h"

#include <string.h>

gboolean content_is_same(const Content *content, const Reader *reader, const gpuring_slot *slot) {
    if (!content->text || !metadata_has_caps(&reader->metadata, slot, content->text)) return FALSE;
    return *content->text ||
           (slot->dimensions == content->dimensions &&
            memcmp(slot->shape, content->shape, slot->dimensions * sizeof *slot->shape) == 0);
}

GstClockTime content_frame_ns(const Content *content) {
    const GstVideoInfo *info = &content->layout.video;
    if (!content->layout.is_video || GST_VIDEO_INFO_FPS_N(info) <= 0) return 0;
    return gst_util_uint64_scale(GST_SECOND, (guint64)GST_VIDEO_INFO_FPS_D(info),
                                 (guint64)GST_VIDEO_INFO_FPS_N(info));
}

GstClockTime content_pts(const Content *content, const Reader *reader, const gpuring_slot *slot) {
    const Metadata *metadata = &reader->metadata;
    const GstClockTime pts = metadata_time(&metadata->pts, slot);
    if (metadata->caps.nbytes || !GST_CLOCK_TIME_IS_VALID(pts)) return pts;
    if (content->timebase[0] == 0) return GST_CLOCK_TIME_NONE; /* its unit is not known */
    return gst_util_uint64_scale(pts, (guint64)content->timebase[0] * GST_SECOND,
                                 (guint64)content->timebase[1]);
}

/* Says that the frames are no raw video or audio, but what `told` says. */
static void not_raw(const gchar *name, gchar *told, const gchar *hint, gpuring_error *error) {
    tell(error, GPURING_INVALID, "ring '%s': these are not caps of raw video or audio: %s%s", name, told,
         hint);
    g_free(told);
}

/* The caps of a frame, and where its planes lie. text: the caps that it names; if it is empty, they are
 * guessed. NULL: they do not suit the slots, and `error` says why. */
static GstCaps *caps_of(const Content *content, const Slots *slots, const gchar *name,
                        const gchar *text, const gpuring_slot *slot, Layout *layout,
                        gpuring_error *error) {
    GstCaps *caps = *text ? gst_caps_from_string(text) : layout_guess(slots, slot, content->given);
    const gboolean on_gpu = is_on_gpu(slots->ring);
    if (caps && gst_caps_get_size(caps) > 0)
        gst_caps_set_features_simple(
            caps, on_gpu ? gst_caps_features_new_single(CUDA_MEMORY) : NULL);
    if (!caps || !gst_caps_is_fixed(caps) || !layout_of_caps(layout, caps)) {
        const GstCaps *meant = !*text && content->given ? content->given : caps;
        not_raw(name, meant ? gst_caps_to_string(meant) : g_strescape(text, NULL),
                meant == caps && !*text ? ". Say with caps= what the slots hold" : "", error);
        gst_clear_caps(&caps);
        return NULL;
    }
    const gboolean suits = !on_gpu || layout->is_video;
    if (!suits)
        tell(error, GPURING_INVALID, "ring '%s' is on a GPU, and only video is read from there", name);
    if (!suits || !layout_place(layout, slots, error) ||
        (!*text && !layout_guess_fills(layout, slots, slot, content->given, error)))
        gst_clear_caps(&caps);
    return caps;
}

/* Whether the caps that the user gave name another memory than that of the ring. */
static gboolean is_elsewhere(const GstCaps *given, gboolean on_gpu) {
    const GstCapsFeatures *memory = gst_caps_get_features(given, 0);
    return !gst_caps_features_is_any(memory) &&
           !gst_caps_features_is_equal(memory, GST_CAPS_FEATURES_MEMORY_SYSTEM_MEMORY) &&
           !(on_gpu && gst_caps_features_contains(memory, CUDA_MEMORY));
}

static gboolean given_suits(const GstCaps *given, const gpuring_ring *ring, const gchar *name,
                            gpuring_error *error) {
    if (!given || gst_caps_get_size(given) == 0) return TRUE;
    const GstStructure *s = gst_caps_get_structure(given, 0);
    const gboolean on_gpu = is_on_gpu(ring);
    if (!gst_structure_has_name(s, "video/x-raw") && !gst_structure_has_name(s, "audio/x-raw")) {
        not_raw(name, gst_caps_to_string(given), "", error);
        return FALSE;
    }
    if (!is_elsewhere(given, on_gpu)) return TRUE;
    gchar *memory = gst_caps_features_to_string(gst_caps_get_features(given, 0));
    tell(error, GPURING_INVALID,
         "ring '%s' is %s, and caps= says %s. Leave that out: the ring says where its frames are", name,
         on_gpu ? "on a GPU" : "in host memory", memory);
    g_free(memory);
    return FALSE;
}

gboolean content_suits(const Content *content, const gpuring_ring *ring, const gchar *name,
                       gpuring_error *error) {
    const Slots slots = {ring, content->field};
    const gpuring_slot full = GPURING_SLOT;
    Metadata metadata;
    Layout layout;
    metadata_of(&metadata, ring);
    if (!slots_have_field(&slots, error) || !given_suits(content->given, ring, name, error))
        return FALSE;
    if (content->timebase[0] && !metadata.pts.nbytes) {
        tell(error, GPURING_INVALID,
             "ring '%s': timebase= gives the unit of `pts`, and its metadata has no `pts` of dtype <i8",
             name);
        return FALSE;
    }
    if (metadata.caps.nbytes || !layout_guess_is_sure(&slots, content->given)) return TRUE;
    GstCaps *caps = caps_of(content, &slots, name, "", &full, &layout, error);
    const gboolean suits = caps != NULL;
    gst_clear_caps(&caps);
    return suits;
}

gboolean content_take(Content *content, const Reader *reader, const gchar *name,
                      const gpuring_slot *slot, gboolean *is_new, gpuring_error *error) {
    Layout layout;
    const Slots slots = {reader->ring, content->field};
    g_free(content->text);
    content->text = metadata_caps(&reader->metadata, slot);
    content->dimensions = slot->dimensions;
    memcpy(content->shape, slot->shape, sizeof content->shape);
    GstCaps *caps = caps_of(content, &slots, name, content->text, slot, &layout, error);
    if (!caps) return FALSE;
    content->layout = layout;
    *is_new = !content->caps || !gst_caps_is_equal(content->caps, caps);
    gst_caps_replace(&content->caps, caps);
    gst_caps_unref(caps);
    return TRUE;
}

void content_not_taken(const Content *content, const gchar *name, gpuring_error *error) {
    gchar *caps = gst_caps_to_string(content->caps);
    tell(error, GPURING_INVALID,
         "ring '%s': the elements downstream do not accept %s. Put %s", name, caps,
         content->layout.is_on_gpu
             ? "cudadownload behind gpuringsrc, if they are for host memory"
         : content->layout.is_video
             ? "videoconvert and videoscale behind gpuringsrc, if they take another format or size"
             : "audioconvert and audioresample behind gpuringsrc, if they take another format or rate");
    g_free(caps);
}

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

gboolean content_take(Content *content, const Reader *reader, const gchar *name,
                      const gpuring_slot *slot, gboolean *is_new, gpuring_error *error) {
    Layout layout;
    const Slots slots = {reader->ring, content->field};
    if (!slots_have_field(&slots, error)) return FALSE;
    if (content->timebase[0] && !reader->metadata.pts.nbytes) {
        tell(error, GPURING_INVALID,
             "ring '%s': timebase= gives the unit of `pts`, and its metadata has no `pts` of dtype <i8",
             name);
        return FALSE;
    }
    gchar *text = metadata_caps(&reader->metadata, slot);
    GstCaps *caps = *text ? gst_caps_from_string(text)
                          : layout_guess(&slots, slot, content->given);
    const gboolean on_gpu = is_on_gpu(reader->ring);
    if (caps && gst_caps_get_size(caps) > 0)
        gst_caps_set_features_simple(
            caps, on_gpu ? gst_caps_features_new_single(CUDA_MEMORY) : NULL);
    g_free(content->text);
    content->text = text;
    content->dimensions = slot->dimensions;
    memcpy(content->shape, slot->shape, sizeof content->shape);
    if (!caps || !gst_caps_is_fixed(caps) || !layout_of_caps(&layout, caps)) {
        const GstCaps *meant = !*text && content->given ? content->given : caps;
        gchar *told = meant ? gst_caps_to_string(meant) : g_strescape(text, NULL);
        tell(error, GPURING_INVALID, "ring '%s': these are not caps of raw video or audio: %s%s", name,
             told, meant == caps && !*text ? ". Say with caps= what the slots hold" : "");
        g_free(told);
        gst_clear_caps(&caps);
        return FALSE;
    }
    if (on_gpu && !layout.is_video) {
        tell(error, GPURING_INVALID, "ring '%s' is on a GPU, and only video is read from there", name);
        gst_caps_unref(caps);
        return FALSE;
    }
    if (!layout_place(&layout, &slots, error) ||
        (!*text && !layout_guess_fills(&layout, &slots, slot, content->given, error))) {
        gst_caps_unref(caps);
        return FALSE;
    }
    content->layout = layout;
    *is_new = !content->caps || !gst_caps_is_equal(content->caps, caps);
    gst_caps_replace(&content->caps, caps);
    gst_caps_unref(caps);
    return TRUE;
}

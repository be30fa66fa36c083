#include "layout.h"

#include <string.h>

#include "words.h"

/* ---- caps ------------------------------------------------------------------------------------ */

static gint first_component(const GstVideoInfo *info, guint plane) {
    gint c, found = 0;
    for (c = (gint)GST_VIDEO_INFO_N_COMPONENTS(info) - 1; c >= 0; c--)
        if (GST_VIDEO_INFO_COMP_PLANE(info, c) == plane) found = c;
    return found;
}

static void describe_plane(Layout *layout, guint plane) {
    const GstVideoInfo *info = &layout->video;
    const gint c = first_component(info, plane);
    const guint64 pixel = GST_VIDEO_INFO_COMP_PSTRIDE(info, c);
    const guint64 itemsize = GST_VIDEO_INFO_COMP_DEPTH(info, c) > 8 ? 2 : 1;
    guint64 *shape = layout->shape[plane];
    shape[0] = GST_VIDEO_INFO_COMP_HEIGHT(info, c);
    shape[1] = GST_VIDEO_INFO_COMP_WIDTH(info, c);
    shape[2] = pixel / itemsize;
    layout->dimensions[plane] = shape[2] > 1 ? 3 : 2;
    layout->row_nbytes[plane] = shape[1] * pixel;
}

gboolean layout_of_caps(Layout *layout, const GstCaps *caps) {
    const GstStructure *s = gst_caps_get_structure(caps, 0);
    guint p;
    memset(layout, 0, sizeof *layout);
    layout->is_video = gst_structure_has_name(s, "video/x-raw");
    layout->is_on_gpu = gst_caps_features_contains(gst_caps_get_features(caps, 0), CUDA_MEMORY);
    if (layout->is_video) {
        if (!gst_video_info_from_caps(&layout->video, caps)) return FALSE;
        layout->planes = GST_VIDEO_INFO_N_PLANES(&layout->video);
        for (p = 0; p < layout->planes; p++) describe_plane(layout, p);
        return TRUE;
    }
    if (!gst_audio_info_from_caps(&layout->audio, caps)) return FALSE;
    layout->planes = 1;
    layout->dimensions[0] = 2;
    layout->shape[0][1] = GST_AUDIO_INFO_CHANNELS(&layout->audio);
    layout->row_nbytes[0] = GST_AUDIO_INFO_BPF(&layout->audio);
    return TRUE;
}

const char *layout_dtype(const Layout *layout) {
    const gboolean is_wide =
        layout->is_video && GST_VIDEO_INFO_COMP_DEPTH(&layout->video, 0) > 8;
    if (layout->is_video) return is_wide ? "<u2" : "|u1";
    switch (GST_AUDIO_INFO_FORMAT(&layout->audio)) {
    case GST_AUDIO_FORMAT_F64LE: return "<f8";
    case GST_AUDIO_FORMAT_F32LE: return "<f4";
    case GST_AUDIO_FORMAT_S32LE: return "<i4";
    case GST_AUDIO_FORMAT_S16LE: return "<i2";
    case GST_AUDIO_FORMAT_S8: return "|i1";
    default: return "|u1";
    }
}

const char *layout_field_name(const Layout *layout, guint plane) {
    static const char *const yuv[] = {"y", "u", "v"}, *const yvu[] = {"y", "v", "u"};
    if (layout->planes == 1) return "array";
    if (layout->planes == 2) return plane ? "uv" : "y";
    return (GST_VIDEO_INFO_FORMAT(&layout->video) == GST_VIDEO_FORMAT_YV12 ? yvu : yuv)[plane];
}

gboolean layout_is_usual(const Layout *layout) {
    guint p;
    if (!layout->is_video) return layout->offset[0] == 0;
    if (layout->nbytes < GST_VIDEO_INFO_SIZE(&layout->video)) return FALSE;
    for (p = 0; p < layout->planes; p++)
        if (layout->offset[p] != GST_VIDEO_INFO_PLANE_OFFSET(&layout->video, p) ||
            layout->row_nbytes[p] != (gsize)GST_VIDEO_INFO_PLANE_STRIDE(&layout->video, p))
            return FALSE;
    return TRUE;
}

/* ---- slots ----------------------------------------------------------------------------------- */

gboolean is_on_gpu(const gpuring_ring *ring) {
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(ring, &info);
    return info.device >= 0 && info.mapped;
}

static gpuring_field field_at(const Slots *slots, guint number) {
    gpuring_field field = GPURING_FIELD;
    if (slots->field) gpuring_field_named(slots->ring, slots->field, &field);
    else gpuring_field_at(slots->ring, number, &field);
    return field;
}

static guint number_of_fields(const Slots *slots) {
    gpuring_info info = GPURING_INFO;
    if (slots->field) return 1;
    gpuring_get_info(slots->ring, &info);
    return info.fields;
}

static void add_shape(GString *text, const gpuring_field *field) {
    guint k;
    g_string_append_printf(text, "%s (", field->name);
    for (k = 0; k < field->dimensions; k++)
        g_string_append_printf(text, k ? ", %" G_GUINT64_FORMAT : "%" G_GUINT64_FORMAT,
                               field->shape[k]);
    g_string_append_printf(text, ") %s", field->dtype);
}

/* Of all fields that count. */
static GString *shapes_of(const Slots *slots) {
    GString *held = g_string_new(NULL);
    guint k;
    for (k = 0; k < number_of_fields(slots); k++) {
        const gpuring_field field = field_at(slots, k);
        if (k) g_string_append(held, ", ");
        add_shape(held, &field);
    }
    return held;
}

gboolean slots_have_field(const Slots *slots, gpuring_error *error) {
    const Slots all = {slots->ring, NULL};
    gpuring_info info = GPURING_INFO;
    gpuring_field field = GPURING_FIELD;
    if (!slots->field ||
        gpuring_field_named(slots->ring, slots->field, &field) == GPURING_OK)
        return TRUE;
    GString *held = shapes_of(&all);
    gpuring_get_info(slots->ring, &info);
    tell(error, GPURING_INVALID, "ring '%s' has no field '%s': its slots hold %s", info.name,
         slots->field, held->str);
    g_string_free(held, TRUE);
    return FALSE;
}

static const gchar *plural(const Layout *audio) {
    return GST_AUDIO_INFO_CHANNELS(&audio->audio) == 1 ? "" : "s";
}

static gboolean does_not_fit(const Layout *layout, const Slots *slots,
                             gpuring_error *error) {
    gpuring_info info = GPURING_INFO;
    GString *held = shapes_of(slots);
    gpuring_get_info(slots->ring, &info);
    if (layout->is_video)
        tell(error, GPURING_INVALID, "ring '%s': its slots hold %s, not %s pictures of %d x %d%s",
             info.name, held->str,
             gst_video_format_to_string(GST_VIDEO_INFO_FORMAT(&layout->video)),
             GST_VIDEO_INFO_WIDTH(&layout->video), GST_VIDEO_INFO_HEIGHT(&layout->video),
             number_of_fields(slots) > 1
                 ? ". Several fields are taken for the planes of one picture, unless field= of "
                   "gpuringsrc names one"
                 : "");
    else
        tell(error, GPURING_INVALID, "ring '%s': its slots hold %s, not %s audio of %d channel%s",
             info.name, held->str,
             gst_audio_format_to_string(GST_AUDIO_INFO_FORMAT(&layout->audio)),
             GST_AUDIO_INFO_CHANNELS(&layout->audio), plural(layout));
    g_string_free(held, TRUE);
    return FALSE;
}

static gboolean has_shape(const gpuring_field *field, const guint64 *shape, guint dimensions) {
    return field->dimensions == dimensions &&
           memcmp(field->shape, shape, dimensions * sizeof *shape) == 0;
}

static gboolean names_planes(const Slots *slots) {
    static const char *const names[] = {"y", "u", "v", "uv"};
    gpuring_field field = GPURING_FIELD;
    guint k;
    for (k = 0; k < G_N_ELEMENTS(names); k++)
        if (gpuring_field_named(slots->ring, names[k], &field) == GPURING_OK) return TRUE;
    return FALSE;
}

/* Finds the planes by their names. If the fields have other names, they are the planes in the order
 * of the format. */
static gboolean place_planes(Layout *layout, const Slots *slots) {
    const gboolean by_name = names_planes(slots);
    guint p;
    layout->nbytes = 0;
    for (p = 0; p < layout->planes; p++) {
        gpuring_field field = field_at(slots, p);
        if (by_name &&
            gpuring_field_named(slots->ring, layout_field_name(layout, p), &field) != GPURING_OK)
            return FALSE;
        if (strcmp(field.dtype, layout_dtype(layout)) != 0 ||
            !has_shape(&field, layout->shape[p], layout->dimensions[p]))
            return FALSE;
        layout->offset[p] = field.offset;
        layout->nbytes = MAX(layout->nbytes, field.offset + field.nbytes);
    }
    return TRUE;
}

/* Audio: whether a row of the array is a sample of all channels. */
static gboolean has_rows(const Layout *layout, const gpuring_field *field) {
    guint64 nbytes = field->itemsize;
    guint k;
    for (k = 1; k < field->dimensions; k++)
        if (!g_uint64_checked_mul(&nbytes, nbytes, field->shape[k])) return FALSE;
    return field->dimensions > 0 && nbytes == layout->row_nbytes[0];
}

/* All planes lie in one field. A picture of one plane may be smaller than the slot. One of several
 * planes has to fill it, because the shape of a frame cannot say how large each plane is. */
static gboolean place_in_one(Layout *layout, const Slots *slots) {
    const gpuring_field field = field_at(slots, 0);
    guint64 nbytes = 0;
    guint p;
    if (strcmp(field.dtype, layout_dtype(layout)) != 0) return FALSE;
    if (!layout->is_video && !has_rows(layout, &field)) return FALSE;
    for (p = 0; p < layout->planes; p++) {
        layout->offset[p] = field.offset + nbytes;
        nbytes += MAX(layout->shape[p][0], 1) * layout->row_nbytes[p];
    }
    layout->nbytes = field.offset + nbytes;
    return layout->planes == 1 ? nbytes <= field.nbytes : nbytes == field.nbytes;
}

gboolean layout_place(Layout *layout, const Slots *slots, gpuring_error *error) {
    const guint fields = number_of_fields(slots);
    const gboolean fits = fields == 1                ? place_in_one(layout, slots)
                          : fields == layout->planes ? place_planes(layout, slots)
                                                     : FALSE;
    return fits || does_not_fit(layout, slots, error);
}

/* With the shape of this frame. */
static gpuring_field field_of_frame(const Slots *slots, const gpuring_slot *slot) {
    gpuring_field field = field_at(slots, 0);
    if (!slot->dimensions) return field;
    field.dimensions = slot->dimensions;
    memcpy(field.shape, slot->shape, sizeof field.shape);
    return field;
}

gboolean layout_frame_nbytes(const Layout *layout, const Slots *slots,
                             const gpuring_slot *slot, gsize *nbytes, gpuring_error *error) {
    const gpuring_field field = field_of_frame(slots, slot);
    *nbytes = layout->nbytes;
    if (layout->is_video) return TRUE;
    if (!has_rows(layout, &field) ||
        field.shape[0] > field.nbytes / layout->row_nbytes[0]) {
        gpuring_info info = GPURING_INFO;
        gpuring_get_info(slots->ring, &info);
        tell(error, GPURING_INVALID,
             "ring '%s': the shape of frame %" G_GUINT64_FORMAT " is not that of audio of %d "
             "channel%s",
             info.name, slot->seq, GST_AUDIO_INFO_CHANNELS(&layout->audio), plural(layout));
        return FALSE;
    }
    *nbytes = field.shape[0] * layout->row_nbytes[0];
    return TRUE;
}

/* ---- a ring that says nothing of caps -------------------------------------------------------- */

static const char *guessed_format(const Slots *slots, const gpuring_field *field) {
    const guint fields = number_of_fields(slots);
    const guint64 last = field->dimensions == 3 ? field->shape[2] : 1;
    if (strcmp(field->dtype, "<u2") == 0) return "GRAY16_LE";
    if (fields == 2) return "NV12";
    if (fields == 3) return "I420";
    return last == 3 ? "RGB" : last == 4 ? "RGBA" : "GRAY8";
}

/* How many rows the picture has, if its planes lie one after the other in an array of `rows`. */
static guint64 height_of(const char *format, guint64 rows, guint64 width) {
    GstVideoInfo info;
    guint p;
    guint64 all = 0;
    gst_video_info_set_format(&info, gst_video_format_from_string(format), (guint)width,
                              (guint)rows);
    if (GST_VIDEO_INFO_N_PLANES(&info) < 2) return rows;
    for (p = 0; p < GST_VIDEO_INFO_N_PLANES(&info); p++) {
        const gint c = first_component(&info, p);
        all += (guint64)GST_VIDEO_INFO_COMP_HEIGHT(&info, c) *
               (guint64)GST_VIDEO_INFO_COMP_WIDTH(&info, c) *
               (guint64)GST_VIDEO_INFO_COMP_PSTRIDE(&info, c);
    }
    return all ? rows * rows * width / all : rows;
}

static void guess_video(const Slots *slots, const gpuring_field *field, GstStructure *s) {
    guint64 rows = field->shape[0];
    const guint64 width = field->dimensions > 1 ? field->shape[1] : 1;
    if (!gst_structure_has_field(s, "format"))
        gst_structure_set(s, "format", G_TYPE_STRING, guessed_format(slots, field), NULL);
    if (number_of_fields(slots) == 1 && field->dimensions == 2 && field->itemsize == 1)
        rows = height_of(gst_structure_get_string(s, "format"), rows, width);
    if (!gst_structure_has_field(s, "width"))
        gst_structure_set(s, "width", G_TYPE_INT, (gint)width, NULL);
    if (!gst_structure_has_field(s, "height"))
        gst_structure_set(s, "height", G_TYPE_INT, (gint)rows, NULL);
    if (!gst_structure_has_field(s, "framerate"))
        gst_structure_set(s, "framerate", GST_TYPE_FRACTION, 0, 1, NULL);
}

static void guess_audio(const gpuring_field *field, GstStructure *s) {
    static const char *const formats[][2] = {{"<f4", "F32LE"}, {"<f8", "F64LE"}, {"<i2", "S16LE"},
                                             {"<i4", "S32LE"}, {"|i1", "S8"},    {"|u1", "U8"}};
    const gint channels = field->dimensions > 1 ? (gint)field->shape[1] : 1;
    guint k;
    for (k = 0; k < G_N_ELEMENTS(formats); k++)
        if (strcmp(field->dtype, formats[k][0]) == 0 && !gst_structure_has_field(s, "format"))
            gst_structure_set(s, "format", G_TYPE_STRING, formats[k][1], NULL);
    if (!gst_structure_has_field(s, "rate"))
        gst_structure_set(s, "rate", G_TYPE_INT, 48000, NULL);
    if (!gst_structure_has_field(s, "channels"))
        gst_structure_set(s, "channels", G_TYPE_INT, channels, NULL);
    if (channels > 2 && !gst_structure_has_field(s, "channel-mask"))
        gst_structure_set(s, "channel-mask", GST_TYPE_BITMASK, G_GUINT64_CONSTANT(0), NULL);
    gst_structure_set(s, "layout", G_TYPE_STRING, "interleaved", NULL);
}

static gboolean says_all(const GstCaps *given) {
    if (!given || gst_caps_get_size(given) == 0) return FALSE;
    const GstStructure *s = gst_caps_get_structure(given, 0);
    if (!gst_structure_has_field(s, "format")) return FALSE;
    return gst_structure_has_field(s, "channels") ||
           (gst_structure_has_field(s, "width") && gst_structure_has_field(s, "height"));
}

/* A frame that is smaller than its slot is of a ring with one field. */
gboolean layout_guess_is_sure(const Slots *slots, const GstCaps *given) {
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(slots->ring, &info);
    return info.fields > 1 || says_all(given);
}

/* For audio, and for pictures of several fields, layout_place has checked this already. */
gboolean layout_guess_fills(const Layout *layout, const Slots *slots,
                            const gpuring_slot *slot, const GstCaps *given,
                            gpuring_error *error) {
    const gpuring_field field = field_of_frame(slots, slot);
    gpuring_info info = GPURING_INFO;
    guint64 nbytes = field.itemsize;
    guint k;
    if (!layout->is_video || number_of_fields(slots) > 1 || says_all(given)) return TRUE;
    for (k = 0; k < field.dimensions; k++) nbytes *= field.shape[k];
    if (layout->nbytes - layout->offset[0] == nbytes) return TRUE;
    gpuring_get_info(slots->ring, &info);
    GString *shape = g_string_new(NULL);
    add_shape(shape, &field);
    tell(error, GPURING_INVALID,
         "ring '%s': the caps do not follow from shape and dtype: %s pictures of %d x %d do not "
         "fill %s. Say with caps= what the slots hold",
         info.name, gst_video_format_to_string(GST_VIDEO_INFO_FORMAT(&layout->video)),
         GST_VIDEO_INFO_WIDTH(&layout->video), GST_VIDEO_INFO_HEIGHT(&layout->video), shape->str);
    g_string_free(shape, TRUE);
    return FALSE;
}

GstCaps *layout_guess(const Slots *slots, const gpuring_slot *slot, const GstCaps *given) {
    const gpuring_field field = field_of_frame(slots, slot);
    GstStructure *s;
    if (given && gst_caps_get_size(given) > 0)
        s = gst_structure_copy(gst_caps_get_structure(given, 0));
    else
        s = gst_structure_new_empty(field.dtype[1] == 'u' ? "video/x-raw" : "audio/x-raw");
    if (gst_structure_has_name(s, "video/x-raw")) guess_video(slots, &field, s);
    else guess_audio(&field, s);
    GstCaps *caps = gst_caps_new_empty();
    gst_caps_append_structure(caps, s);
    return gst_caps_fixate(caps);
}

void copy_rows(void *to, gsize to_stride, const void *from, gsize from_stride, gsize nbytes,
               guint64 rows) {
    char *out = to;
    const char *in = from;
    if (to_stride == nbytes && from_stride == nbytes) {
        memcpy(out, in, nbytes * rows);
        return;
    }
    for (; rows; rows--, out += to_stride, in += from_stride) memcpy(out, in, nbytes);
}

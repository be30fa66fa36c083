/* What lies where: caps, and the fields of a ring's slots.
 *
 * Each plane of a picture is a field of its own, and its rows lie close together. A ring of one field
 * has the planes one after the other. Audio is one field of (samples, channels).
 */
#pragma once

#include <gpuring.h>
#include <gst/audio/audio.h>
#include <gst/video/video.h>

#include "cuda.h"

#define VIDEO_FORMATS                                                                              \
    "{ NV12, NV21, I420, YV12, Y42B, Y444, RGB, BGR, RGBA, BGRA, ARGB, ABGR, RGBx, BGRx, GRAY8, "  \
    "GRAY16_LE }"
#define AUDIO_FORMATS "{ F32LE, F64LE, S16LE, S32LE, S8, U8 }"
#define CUDA_CAPS GST_VIDEO_CAPS_MAKE_WITH_FEATURES(CUDA_MEMORY, VIDEO_FORMATS)
#define HOST_CAPS                                                                                  \
    GST_VIDEO_CAPS_MAKE(VIDEO_FORMATS)                                                             \
    "; " GST_AUDIO_CAPS_MAKE(AUDIO_FORMATS) ", layout = (string) interleaved"

/* What is read or written of a slot. */
typedef struct Slots {
    const gpuring_ring *ring;
    const gchar *field; /* the picture or the audio; NULL: all fields are */
} Slots;

typedef struct Layout {
    gboolean is_video, is_on_gpu;
    GstVideoInfo video;
    GstAudioInfo audio;
    guint planes;
    /* Of each plane: its shape as an array, and the bytes of a row. In audio a row is one sample of
     * all channels. The number of rows differs from frame to frame, so shape[0][0] is 0. */
    guint dimensions[GST_VIDEO_MAX_PLANES];
    guint64 shape[GST_VIDEO_MAX_PLANES][3];
    gsize row_nbytes[GST_VIDEO_MAX_PLANES];
    /* Where each plane begins in a slot of the ring, in bytes. */
    gsize offset[GST_VIDEO_MAX_PLANES];
    gsize nbytes; /* to the end of the last plane */
} Layout;

/* FALSE: these caps are neither HOST_CAPS nor CUDA_CAPS. */
gboolean layout_of_caps(Layout *layout, const GstCaps *caps);
/* Whether this process uses the slots of the ring on a GPU. */
gboolean is_on_gpu(const gpuring_ring *ring);
/* Whether the slots have the field that the user has named, if any. FALSE: `error` says what they
 * have. */
gboolean slots_have_field(const Slots *slots, gpuring_error *error);
/* Finds the planes in the slots of the ring. FALSE: they do not fit, and `error` says why. */
gboolean layout_place(Layout *layout, const Slots *slots, gpuring_error *error);
/* How many bytes this frame has. FALSE: its shape does not fit the caps, or is larger than the
 * slot, and `error` says so. */
gboolean layout_frame_nbytes(const Layout *layout, const Slots *slots,
                             const gpuring_slot *slot, gsize *nbytes, gpuring_error *error);
/* The caps of a frame, guessed from its shape and dtype. What these do not say comes from the caps
 * that the user gave, which may be NULL. */
GstCaps *layout_guess(const Slots *slots, const gpuring_slot *slot, const GstCaps *given);
/* Whether the guess is the same for each shape that a frame may have. */
gboolean layout_guess_is_sure(const Slots *slots, const GstCaps *given);
/* Whether a picture of the guessed caps fills the frame. FALSE: the guess is wrong, and `error`
 * asks for the caps. */
gboolean layout_guess_fills(const Layout *layout, const Slots *slots,
                            const gpuring_slot *slot, const GstCaps *given, gpuring_error *error);
/* Whether the planes lie where GStreamer expects them without a GstVideoMeta. */
gboolean layout_is_usual(const Layout *layout);
/* The name and the dtype of a plane's field in a new ring. layout_place finds it by that name. */
const char *layout_field_name(const Layout *layout, guint plane);
const char *layout_dtype(const Layout *layout);
/* Copies rows of nbytes each. The strides are the bytes from one row to the next. */
void copy_rows(void *to, gsize to_stride, const void *from, gsize from_stride, gsize nbytes,
               guint64 rows);

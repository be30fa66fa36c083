/* Frames in memory of a GPU: GstCudaMemory, and the stream on which they are copied.
 *
 * GStreamer's CUDA library and the driver are loaded when an element is made, and nothing is linked to
 * them. So the plugin can be loaded where they are not, and has no caps of a GPU there.
 *
 * Slots belong to the primary context of the GPU, and the stream of their copies, too. Frames may belong
 * to any context of the GPU: a copy finds memory by its address. Where nobody has a context for
 * GStreamer yet, it gets one over the primary context, which all elements of the pipeline then share.
 */
#pragma once

#include <gst/video/video.h>

#include "words.h"

#define CUDA_MEMORY "memory:CUDAMemory"

/* Whether GStreamer's CUDA library and the driver are here. */
gboolean cuda_is_here(void);
/* Whether the frame lies in memory of a GPU, and then of which one. */
gboolean cuda_has(GstBuffer *buffer, gint *number);
/* Of the frame, with pointers of the device. */
gboolean cuda_map(GstVideoFrame *frame, const GstVideoInfo *info, GstBuffer *buffer,
                  GstMapFlags flags);

typedef struct Gpu {
    GstElement *element;
    GMutex turn;
    GstObject *context; /* under the mutex: that of GStreamer, NULL before somebody needs it */
    /* Of the streaming thread. */
    gint number; /* -1: none is used yet */
    gpointer primary, stream;
} Gpu;

void gpu_init(Gpu *gpu, GstElement *element);
void gpu_clear(Gpu *gpu);
/* Takes the GPU of this number, and has a stream there. */
gpuring_status gpu_use(Gpu *gpu, gint number, gpuring_error *error);
/* Gives it up. What was copied there is done. */
void gpu_leave(Gpu *gpu);

/* Copies rows in stream order. */
gpuring_status gpu_copy(const Gpu *gpu, gpointer to, gsize to_pitch, gconstpointer from,
                        gsize from_pitch, gsize nbytes, guint64 rows, gpuring_error *error);
/* GPURING_TIMEOUT: something in the stream is not done yet. Does not wait. */
gpuring_status gpu_look(const Gpu *gpu, gpuring_error *error);
/* A pool of frames on the GPU that is used. NULL: there is none. */
GstBufferPool *gpu_new_pool(Gpu *gpu, GstPad *pad, GstCaps *caps, const GstVideoInfo *info);

/* What an element does with contexts that it is given, and with questions for its own. The number is that
 * of the GPU that it has to use, -1: of any. FALSE: it is a question about something else. */
void gpu_take_context(Gpu *gpu, GstContext *context);
gboolean gpu_answer(Gpu *gpu, gint number, GstQuery *query);

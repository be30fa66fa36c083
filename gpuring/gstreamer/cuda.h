/* Frames in memory of a GPU: GstCudaMemory, and the stream on which they are copied.
 *
 * GStreamer's CUDA library and the driver are loaded when an element is made, and nothing is linked
 * to them. So the plugin also loads on a machine without them. There it has no caps for frames on a
 * GPU.
 *
 * The slots and the stream of the copies belong to the primary context of the GPU. Frames may
 * belong to any context of the GPU, because a copy finds memory by its address. If GStreamer has no
 * context yet, it gets one over the primary context, and all elements of the pipeline share that
 * one.
 */
#pragma once

#include <gst/video/video.h>

#include "words.h"

#define CUDA_MEMORY "memory:CUDAMemory"

/* Whether this machine has GStreamer's CUDA library and the driver. */
gboolean cuda_is_here(void);
/* Whether the frame lies in memory of a GPU. If so, *number is that GPU. */
gboolean cuda_has(GstBuffer *buffer, gint *number);
/* Maps the frame, with pointers for the GPU. */
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
/* Uses the GPU of this number from now on, and makes a stream there. */
gpuring_status gpu_use(Gpu *gpu, gint number, gpuring_error *error);
/* Waits until all copies are done, and gives the GPU up. */
void gpu_leave(Gpu *gpu);

/* Copies rows in stream order. */
gpuring_status gpu_copy(const Gpu *gpu, gpointer to, gsize to_pitch, gconstpointer from,
                        gsize from_pitch, gsize nbytes, guint64 rows, gpuring_error *error);
/* Whether all work in the stream is done. GPURING_TIMEOUT: not yet. Does not wait. */
gpuring_status gpu_look(const Gpu *gpu, gpuring_error *error);
/* A pool of buffers on the GPU. NULL: it cannot be made. */
GstBufferPool *gpu_new_pool(Gpu *gpu, GstPad *pad, GstCaps *caps, const GstVideoInfo *info);

/* The first takes a context that the element was given. The second answers a query for the
 * element's own context. number: the GPU that the element has to use, or -1 for any. FALSE: the
 * query is about something else. */
void gpu_take_context(Gpu *gpu, GstContext *context);
gboolean gpu_answer(Gpu *gpu, gint number, GstQuery *query);

/* Makes buffers of frames: they point into the slot, or have a copy. */
#pragma once

#include "layout.h"
#include "reader.h"

/* A buffer that points into the slot. When it is freed, the slot is released. */
GstBuffer *buffer_over(const Layout *layout, Reader *reader, const gpuring_slot *slot,
                       gsize nbytes);
/* A copy, with the planes where GStreamer expects them. */
GstBuffer *buffer_of_copy(const Layout *layout, Reader *reader, const gpuring_slot *slot,
                          gsize nbytes);
/* A copy on the GPU, in stream order. NULL: `error` says why. The pool may be NULL. */
GstBuffer *buffer_on_gpu(const Layout *layout, const Gpu *gpu, GstBufferPool *pool,
                         const gpuring_slot *slot, gpuring_error *error);

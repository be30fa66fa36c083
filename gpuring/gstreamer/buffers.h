/* Frames of slots as buffers: over the slot, or of a copy. */
#pragma once

#include "layout.h"
#include "reader.h"

/* Over the slot, which is released with it. */
GstBuffer *buffer_over(const Layout *layout, Reader *reader, const gpuring_slot *slot,
                       gsize nbytes);
/* A copy, where GStreamer expects it. */
GstBuffer *buffer_of_copy(const Layout *layout, Reader *reader, const gpuring_slot *slot,
                          gsize nbytes);
/* A copy on the GPU, in stream order. NULL: it is told why. The pool may be NULL. */
GstBuffer *buffer_on_gpu(const Layout *layout, const Gpu *gpu, GstBufferPool *pool,
                         const gpuring_slot *slot, gpuring_error *error);

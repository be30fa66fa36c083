#include "buffers.h"

#include <string.h>

GstBuffer *buffer_over(const Layout *layout, Reader *reader, const gpuring_slot *slot,
                       gsize nbytes) {
    GstBuffer *buffer = gst_buffer_new();
    gint stride[GST_VIDEO_MAX_PLANES];
    gsize offset[GST_VIDEO_MAX_PLANES];
    guint p;
    gst_buffer_append_memory(buffer, reader_lend(reader, slot, nbytes));
    if (layout_is_usual(layout)) return buffer;
    for (p = 0; p < layout->planes; p++) {
        stride[p] = (gint)layout->row_nbytes[p];
        offset[p] = layout->offset[p];
    }
    gst_buffer_add_video_meta_full(
        buffer, GST_VIDEO_FRAME_FLAG_NONE, GST_VIDEO_INFO_FORMAT(&layout->video),
        (guint)GST_VIDEO_INFO_WIDTH(&layout->video), (guint)GST_VIDEO_INFO_HEIGHT(&layout->video),
        layout->planes, offset, stride);
    return buffer;
}

GstBuffer *buffer_of_copy(const Layout *layout, Reader *reader, const gpuring_slot *slot,
                          gsize nbytes) {
    const char *data = slot->data;
    if (layout->is_video) nbytes = GST_VIDEO_INFO_SIZE(&layout->video);
    char *bytes = g_malloc(nbytes);
    guint p;
    for (p = 0; p < layout->planes; p++)
        if (layout->is_video)
            copy_rows(bytes + GST_VIDEO_INFO_PLANE_OFFSET(&layout->video, p),
                      (gsize)GST_VIDEO_INFO_PLANE_STRIDE(&layout->video, p),
                      data + layout->offset[p], layout->row_nbytes[p], layout->row_nbytes[p],
                      layout->shape[p][0]);
        else memcpy(bytes, data + layout->offset[p], nbytes);
    GstBuffer *buffer = gst_buffer_new();
    gst_buffer_append_memory(buffer, reader_give(reader, slot->seq, bytes, nbytes));
    return buffer;
}

static gpuring_status fill(const Layout *layout, const Gpu *gpu, GstBuffer *buffer,
                           const gpuring_slot *slot, gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    GstVideoFrame frame;
    guint p;
    if (!cuda_map(&frame, &layout->video, buffer, GST_MAP_WRITE)) {
        tell(error, GPURING_FAILED, "GStreamer gives no access to a frame on GPU %d", gpu->number);
        return GPURING_FAILED;
    }
    for (p = 0; p < layout->planes && status == GPURING_OK; p++)
        status = gpu_copy(gpu, GST_VIDEO_FRAME_PLANE_DATA(&frame, p),
                          (gsize)GST_VIDEO_FRAME_PLANE_STRIDE(&frame, p),
                          (const char *)slot->data + layout->offset[p], layout->row_nbytes[p],
                          layout->row_nbytes[p], layout->shape[p][0], error);
    gst_video_frame_unmap(&frame);
    return status;
}

GstBuffer *buffer_on_gpu(const Layout *layout, const Gpu *gpu, GstBufferPool *pool,
                         const gpuring_slot *slot, gpuring_error *error) {
    GstBuffer *buffer = NULL;
    if (!pool || gst_buffer_pool_acquire_buffer(pool, &buffer, NULL) != GST_FLOW_OK) {
        tell(error, GPURING_NO_ROOM, "GStreamer has no memory for frames on GPU %d", gpu->number);
        return NULL;
    }
    if (fill(layout, gpu, buffer, slot, error) != GPURING_OK) gst_clear_buffer(&buffer);
    return buffer;
}

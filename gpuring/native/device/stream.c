/* What a stream is asked, and what is put into it. */
#include "stream.h"

#include <time.h>

#include "../core/reap.h"
#include "../core/wait.h"
#include "own_event.h"

/* An id of the calling thread, which is never 0 and never used again. Relaxed: it only has to be
 * unique. */
uint64_t gd_this_thread(void) {
    static gr_word threads;
    static _Thread_local uint64_t mine;
    if (mine == 0) mine = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
    return mine;
}

/* Returns CU_OK, or why nothing of ours may go into `stream` now. It would be recorded into a
 * graph that is being captured, and not be done, or it would spoil the capture.
 *
 * It is asked before each operation, because it does no harm to a capture, and costs as little as
 * a driver call can. The operations themselves would not tell: stores and waits of words, and
 * records of events, are captured without an error. */
int gd_captured(const struct gd_device *device, gd_stream stream) {
    int capturing = 0, status = device->driver->stream_is_capturing((void *)stream, &capturing);
    if (status == CU_OK) return capturing ? CU_CAPTURE : CU_OK;
    /* The operation itself will report any other error. */
    return gd_is_capture(status) ? status : CU_OK;
}

/* An id that no other stream has in the life of this process; 0 if CUDA does not say. A handle is
 * not enough: the driver uses it again as soon as its stream is destroyed, whose work may not be
 * done yet. Call it after gd_check_stream, because the question would end a capture. */
uint64_t gd_stream_id(const struct gd_device *device, gd_stream stream) {
    unsigned long long id = 0;
    if (stream == GD_PER_THREAD) return 0;
    return device->driver->stream_get_id((void *)stream, &id) == CU_OK ? id + 1 : 0;
}

enum gr_result gd_check_stream(struct gd_device *device, gd_stream stream,
                               struct gd_trouble *trouble) {
    const struct gd_driver *driver = device->driver;
    int current = device->ordinal;
    /* It was closed meanwhile. */
    if (!driver) return gd_trouble_of(trouble, GD_NO_CONTEXT, stream, CU_INVALID_CONTEXT);
    int status = driver->ctx_get_device(&current);
    if (status == CU_INVALID_CONTEXT) { /* the thread has not used CUDA yet */
        status = driver->ctx_set_current(device->context);
        current = device->ordinal;
    }
    if (status != CU_OK) return gd_trouble_of(trouble, GD_NO_CONTEXT, stream, status);
    if (stream <= GD_PER_THREAD && current != device->ordinal) {
        gd_trouble_of(trouble, GD_OTHER_DEVICE, stream, CU_OK);
        trouble->value = (uint64_t)current;
        return GR_DEVICE;
    }
    status = gd_captured(device, stream);
    return status == CU_OK ? GR_OK : gd_trouble_of(trouble, GD_CAPTURED, stream, status);
}

enum gr_result gd_follow(struct gd_device *device, gd_stream stream, const gd_stream *others,
                         uint32_t n, struct gd_trouble *trouble) {
    enum gr_result result = gd_check_stream(device, stream, trouble);
    for (uint32_t k = 0; k < n && result == GR_OK; k++)
        result = gd_check_stream(device, others[k], trouble);
    if (result != GR_OK) return result;
    struct gd_own_event *spare;
    int status = gd_take_spare(device, &spare);
    if (status != CU_OK) return gd_trouble_of(trouble, GD_ON_STREAM, stream, status);
    for (uint32_t k = 0; k < n && status == CU_OK; k++) {
        if (others[k] == stream) continue;
        status = device->driver->event_record(spare->event, (void *)others[k]);
        if (status == CU_OK)
            status = device->driver->stream_wait_event((void *)stream, spare->event, 0);
    }
    gd_give_spare(device, spare);
    if (status == CU_OK) return GR_OK;
    return gd_trouble_of(trouble, gd_is_capture(status) ? GD_CAPTURED : GD_ON_STREAM, stream,
                         status);
}

enum gr_result gd_refuse(struct gd_call *call, enum gd_where where, gd_stream stream, int status) {
    if (where == GD_ON_STREAM && gd_is_capture(status)) where = GD_CAPTURED;
    call->trouble = (struct gd_trouble){.where = where, .stream = stream, .status = status};
    return GR_DEVICE;
}

/* Puts the collected operations into the stream, in one call of the driver. If the result is
 * GR_DEVICE because of a capture, none of them was enqueued. */
enum gr_result gd_submit(struct gd_peer *peer, struct gd_call *call) {
    const struct gd_device *device = peer->device;
    const unsigned n = call->ops;
    if (n == 0) return GR_OK;
    call->ops = 0;
    void *stream = (void *)call->stream;
    int status = gd_captured(device, call->stream);
    if (status != CU_OK) return gd_refuse(call, GD_CAPTURED, call->stream, status);
    if (n > 1) status = device->driver->stream_batch(stream, n, call->op, 0);
    else status = device->driver->stream_wait_value(stream, call->op->address, call->op->value, 0);
    return status == CU_OK ? GR_OK : gd_refuse(call, GD_ON_STREAM, call->stream, status);
}

enum gr_result gd_rest(struct gd_peer *peer, const struct gd_call *call, int64_t start,
                       int64_t spin_ns) {
    const int64_t now = gr_now_ns();
    if (now - start > GR_SLICE_NS) {
        gr_reap_dead(peer->core.ring, NULL); /* what is waited for may be a dead peer's */
        return GR_SIGNAL;
    }
    if (now - call->since_ns < spin_ns) {
        gd_pause();
        return GR_OK;
    }
    return nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL) == 0 ? GR_OK : GR_SIGNAL;
}

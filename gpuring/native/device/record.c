/* After a slot was used: promise, record, and what to do when the driver does not take the record.
 *
 * If a promise might never be reached, no other peer may see it: its stream, and this peer's own,
 * would wait for it for ever. So after a failed record the peer keeps the slot until the streams
 * that used it are idle ("settled"), and then the CPU raises the fence. While a stream is being
 * captured nobody can tell whether its work is done. Then the peer keeps the slot, and nothing is
 * promised.
 */
#include "record.h"

#include <stdlib.h>
#include <string.h>

#include "../core/bell.h"
#include "../core/claim.h"
#include "stream.h"

/* ---- the streams of a slot ------------------------------------------------------------------- */

void gd_enter_thread(struct gd_use *use) {
    for (uint32_t k = 0; k < use->streams; k++)
        if (use->stream[k] == GD_PER_THREAD) use->thread = gd_this_thread();
}

/* In another thread the same handle means another stream. The legacy default stream takes its
 * place: it waits for the per-thread streams of all threads, and they wait for it. */
void gd_leave_thread(struct gd_use *use) {
    if (use->thread == 0 || use->thread == gd_this_thread()) return;
    use->thread = 0;
    for (uint32_t k = 0; k < use->streams; k++)
        if (use->stream[k] == GD_PER_THREAD) use->stream[k] = GD_LEGACY, use->of_another = true;
}

/* False: no memory. */
bool gd_add_stream(struct gd_use *use, gd_stream stream) {
    for (uint32_t k = 0; k < use->streams; k++)
        if (use->stream[k] == stream) return true;
    if (use->streams == use->room) {
        bool first = use->stream == use->few;
        gd_stream *more = realloc(first ? NULL : use->stream, 2 * use->room * sizeof *more);
        if (!more) return false;
        if (first) memcpy(more, use->few, sizeof use->few);
        use->stream = more;
        use->room *= 2;
    }
    use->stream[use->streams++] = stream;
    return true;
}

enum gr_result gd_use_on(struct gd_peer *peer, uint32_t index, gd_stream stream,
                         struct gd_trouble *trouble) {
    struct gd_use *use = &peer->use[index];
    gd_leave_thread(use);
    enum gr_result result = GR_OK;
    if (use->streams > 1 || use->stream[0] != stream) /* each time: the others may have new work */
        result = gd_follow(peer->device, stream, use->stream, use->streams, trouble);
    if (result == GR_OK && !gd_add_stream(use, stream)) {
        *trouble = (struct gd_trouble){.where = GD_NO_MEMORY};
        return GR_DEVICE;
    }
    if (result == GR_OK) gd_enter_thread(use);
    return result;
}

/* ---- promise and record ---------------------------------------------------------------------- */

/* The id of `stream` that a record notes. To save a call of the driver, this is the id that the
 * handle had when it was last asked for. If the handle belongs to another stream by now, that id
 * belongs to no stream, and equals no id that is asked for later. That costs one wait too many, and
 * nothing else. */
static uint64_t id_for(const struct gd_device *device, struct gd_use *use, gd_stream stream) {
    if (use->asked != stream || use->asked_id == 0) {
        use->asked = stream;
        use->asked_id = gd_stream_id(device, stream);
    }
    return use->asked_id;
}

/* Promises for a slot that was used on `stream`; its fence operation is still to be enqueued.
 * Returns 0 if this peer is not LIVE any more. */
static uint64_t promise(struct gd_peer *peer, uint32_t index, gd_stream stream) {
    struct gd_use *use = &peer->use[index];
    const uint64_t id = id_for(peer->device, use, stream),
                   value = gr_promise(&peer->core, index, use->seq);
    if (value == 0) return 0;
    use->recorded_on = id;
    use->unpaid = true;
    gr_store_relaxed(&peer->last_value, value);
    GR_FAULT("device: promised");
    return value;
}

/* Promises for the work on one slot, and enqueues the fence operation behind all streams that used
 * it. *value: what was promised, 0 if this peer is not LIVE any more. GR_DEVICE: the peer keeps
 * the slot (gd_use.unpaid). */
enum gr_result gd_record(struct gd_peer *peer, struct gd_call *call, uint32_t index,
                         uint64_t *value) {
    struct gd_use *use = &peer->use[index];
    const gd_stream stream = use->stream[0];
    enum gr_result result = use->streams == 1
        ? gd_check_stream(peer->device, stream, &call->trouble)
        : gd_follow(peer->device, stream, use->stream + 1, use->streams - 1, &call->trouble);
    if (result != GR_OK) return result;
    struct gd_promise one = {index, promise(peer, index, stream)};
    *value = one.value;
    if (one.value == 0) return GR_OK;
    int status = peer->sync->record(peer, stream, &one);
    if (status != CU_OK) return gd_refuse(call, GD_ON_STREAM, stream, status);
    GR_FAULT("device: recorded");
    use->unpaid = false;
    return GR_OK;
}

/* The same for all slots of the call, which were used on call->stream only, in one call of the
 * driver. */
enum gr_result gd_record_all(struct gd_peer *peer, struct gd_call *call, uint64_t *values) {
    struct gd_promise promises[GD_MAX_OPS];
    uint32_t n = 0;
    enum gr_result result = gd_check_stream(peer->device, call->stream, &call->trouble);
    if (result != GR_OK) return result;
    for (uint32_t k = 0; k < call->n; k++) {
        values[k] = promise(peer, call->indices[k], call->stream);
        if (values[k]) promises[n++] = (struct gd_promise){call->indices[k], values[k]};
    }
    int status = n ? peer->sync->record_many(peer, call->stream, promises, n) : CU_OK;
    if (status != CU_OK) return gd_refuse(call, GD_ON_STREAM, call->stream, status);
    GR_FAULT("device: recorded");
    for (uint32_t k = 0; k < call->n; k++) peer->use[call->indices[k]].unpaid = false;
    return GR_OK;
}

/* ---- when the record failed ------------------------------------------------------------------ */

/* Waits until nothing runs on the GPU any more. An error means that, too: the context is lost. */
static enum gr_result finish_all(struct gd_peer *peer, struct gd_call *call) {
    const struct gd_driver *driver = peer->device->driver;
    void *popped;
    int status = driver->ctx_push(peer->device->context);
    if (status != CU_OK) return GR_OK;
    status = driver->ctx_synchronize();
    driver->ctx_pop(&popped);
    return gd_is_capture(status) ? gd_refuse(call, GD_NOT_NOW, 0, status) : GR_OK;
}

/* Whether the stream is idle. The handle of a default stream means the default stream of the
 * current device. If the current device is not the ring's, both of these streams are asked. */
static int query(const struct gd_device *device, gd_stream stream) {
    void *popped;
    int status = device->driver->stream_query((void *)stream);
    if (status != CU_OK || stream > GD_PER_THREAD ||
        device->driver->ctx_push(device->context) != CU_OK)
        return status;
    status = device->driver->stream_query((void *)stream);
    device->driver->ctx_pop(&popped);
    return status;
}

/* For a slot whose record failed, so that nobody knows whether it was enqueued. Waits until the
 * slot's streams are idle, then raises the fence from the CPU. GR_SIGNAL: call again. GR_DEVICE: a
 * capture forbids to ask, and the peer keeps the slot. */
enum gr_result gd_settle(struct gd_peer *peer, struct gd_call *call, uint32_t index) {
    struct gd_use *use = &peer->use[index];
    const int64_t start = gr_now_ns();
    if (call->since_ns == 0) call->since_ns = start;
    for (uint32_t k = 0; k < use->streams;) {
        int status = query(peer->device, use->stream[k]);
        if (gd_is_capture(status)) return gd_refuse(call, GD_CAPTURED, use->stream[k], status);
        if (status != CU_OK && status != CU_NOT_READY) {
            /* If the stream was destroyed, its earlier work goes on, so wait for the whole device.
             * If the context is lost, this reports it, too. */
            enum gr_result result = finish_all(peer, call);
            if (result != GR_OK) return result;
            status = CU_OK;
        }
        if (status == CU_OK && use->of_another && use->stream[k] == GD_LEGACY) {
            /* Work that is put into this stream waits for that of the other thread, but a query
             * reports the stream's own work only. So wait for the whole device. */
            enum gr_result result = finish_all(peer, call);
            if (result != GR_OK) return result;
        }
        if (status == CU_OK) {
            k++;
            continue;
        }
        if (gd_rest(peer, call, start, GD_SPIN_NS) != GR_OK) return GR_SIGNAL;
    }
    call->since_ns = 0;
    gr_word *fence = fence_of(peer->core.ring, index, peer->core.self.number);
    if (use->unpaid && is_mine(&peer->core))
        gr_raise_to(fence,
                    gr_load_acquire(work_of(peer->core.ring, index, peer->core.self.number)));
    use->unpaid = false;
    use->recorded_on = 0;
    return GR_OK;
}

/* ---- before the peer leaves ------------------------------------------------------------------ */

enum gr_result gd_drain(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    struct gr_ring *ring = peer->core.ring;
    struct gd_device *device = peer->device;
    const uint32_t number = peer->core.self.number;
    const int64_t start = gr_now_ns();
    (void)how;
    /* Without `use`, gd_prepare has failed and nothing was promised. */
    if (!device || !peer->use || !is_mine(&peer->core)) return GR_OK;
    for (uint32_t i = 0; i < ring->slots; i++) { /* slots whose settling was interrupted */
        if (!peer->use[i].unpaid) continue;
        enum gr_result result = finish_all(peer, call);
        if (result != GR_OK) return result;
        gr_raise_to(fence_of(ring, i, number), gr_load_acquire(work_of(ring, i, number)));
        peer->use[i].unpaid = false;
    }
    if (call->since_ns == 0) call->since_ns = start;
    for (; call->at < ring->slots; call->at++) {
        const uint64_t promised = gr_load_acquire(work_of(ring, call->at, number));
        int status;
        while ((status = peer->sync->paid(peer, number, call->at, promised, &call->trouble)) ==
               CU_NOT_READY) {
            void *popped;
            int lost = device->driver->ctx_push(device->context);
            if (lost == CU_OK) { /* any stream reports a lost context */
                lost = device->driver->stream_query((void *)(uintptr_t)GD_PER_THREAD);
                device->driver->ctx_pop(&popped);
            }
            /* A capture in another place says nothing about the context. */
            if (lost != CU_OK && lost != CU_NOT_READY && !gd_is_capture(lost)) {
                call->trouble =
                    (struct gd_trouble){GD_WORK_FAILED, lost, 0, number, call->at, promised};
                return GR_DEVICE;
            }
            if (gd_rest(peer, call, start, GD_SPIN_NS) != GR_OK) return GR_SIGNAL;
        }
        if (status != CU_OK) return GR_DEVICE;
    }
    return GR_OK;
}

/* After a slot was used: promise, record, and what is done when the driver does not take the record.
 *
 * A promise that may never be paid must not be seen, or others' streams, and our own, would wait for it.  So after a
 * record that failed the slot stays ours until the streams that used it are idle ("settled"); then the fence is raised
 * from the CPU.  While a stream is being captured nobody can tell whether its work is done: the slot stays ours
 * altogether, and nothing was promised.
 */
#include "device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_NS = 200 * 1000, NAP_NS = 20 * 1000 };

/* ---- the streams of a slot ---------------------------------------------------------------------------------------- */

void gd_enter_thread(struct gd_use *use) {
    for (uint32_t k = 0; k < use->streams; k++)
        if (use->stream[k] == GD_PER_THREAD) use->thread = gd_this_thread();
}

/* In another thread the same handle is another stream.  The legacy default stream stands for those of all threads: it
 * waits for their work, and they for its. */
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

enum gr_result gd_use_on(struct gd_peer *me, uint32_t index, gd_stream stream, struct gd_trouble *trouble) {
    struct gd_use *use = &me->use[index];
    gd_leave_thread(use);
    enum gr_result result = GR_OK;
    if (use->streams > 1 || use->stream[0] != stream) /* each time anew: work may have been added to the others */
        result = gd_follow(me->device, stream, use->stream, use->streams, trouble);
    if (result == GR_OK && !gd_add_stream(use, stream)) {
        *trouble = (struct gd_trouble){.where = GD_NO_MEMORY};
        return GR_DEVICE;
    }
    if (result == GR_OK) gd_enter_thread(use);
    return result;
}

/* ---- promise and record ------------------------------------------------------------------------------------------- */

/* What a record on `stream` notes.  A record does not ask each time: it takes the id that was asked for last under that
 * handle.  If that is stale, it differs from what is asked for later (the stream it names is gone), and a wait too many
 * is all that comes of it. */
static uint64_t id_for(const struct gd_device *device, struct gd_use *use, gd_stream stream) {
    if (stream == GD_PER_THREAD) return 0; /* another one in each thread */
    if (use->asked != stream || use->asked_id == 0) {
        use->asked = stream;
        use->asked_id = gd_stream_id(device, stream);
    }
    return use->asked_id;
}

/* The promise for a slot that was used on `stream`, which has not got it yet; 0: we are not ourselves any more. */
static uint64_t promise(struct gd_peer *me, uint32_t index, gd_stream stream) {
    struct gd_use *use = &me->use[index];
    const uint64_t id = id_for(me->device, use, stream), value = gr_promise(&me->me, index, use->seq);
    use->recorded_on = value ? id : 0;
    if (value == 0) return 0;
    use->unpaid = true;
    gr_store_relaxed(&me->last_value, value);
    GR_FAULT("device: promised");
    return value;
}

/* Promises for the work on one slot, and has its streams pay: behind all that used it.  *value: of the promise, 0 if we
 * are not ourselves any more.  GR_DEVICE: the slot stays ours (gd_use.unpaid). */
enum gr_result gd_record(struct gd_peer *me, struct gd_call *call, uint32_t index, uint64_t *value) {
    struct gd_use *use = &me->use[index];
    if (!me->device) { /* the CPU has done the work, and pays at once */
        *value = gr_promise(&me->me, index, use->seq);
        if (*value) gr_raise_to(fence_of(me->me.ring, index, me->me.number), *value);
        return GR_OK;
    }
    const gd_stream stream = use->stream[0];
    enum gr_result result = use->streams == 1
        ? gd_check_stream(me->device, stream, &call->trouble)
        : gd_follow(me->device, stream, use->stream + 1, use->streams - 1, &call->trouble);
    if (result != GR_OK) return result;
    struct gd_promise one = {index, promise(me, index, stream)};
    *value = one.value;
    if (one.value == 0) return GR_OK;
    int status = me->device->sync->record(me, stream, &one);
    if (status != CU_OK) return gd_refuse(call, GD_ON_STREAM, stream, status);
    GR_FAULT("device: recorded");
    use->unpaid = false;
    return GR_OK;
}

/* Likewise for all slots of the call, which were used on the one stream call->stream, in one call of the driver. */
enum gr_result gd_record_all(struct gd_peer *me, struct gd_call *call, uint64_t *values) {
    struct gd_promise promises[GD_MAX_OPS];
    uint32_t n = 0;
    if (!me->device) {
        for (uint32_t k = 0; k < call->n; k++) gd_record(me, call, call->indices[k], &values[k]);
        return GR_OK;
    }
    enum gr_result result = gd_check_stream(me->device, call->stream, &call->trouble);
    if (result != GR_OK) return result;
    for (uint32_t k = 0; k < call->n; k++) {
        values[k] = promise(me, call->indices[k], call->stream);
        if (values[k]) promises[n++] = (struct gd_promise){call->indices[k], values[k]};
    }
    int status = n ? me->device->sync->record_many(me, call->stream, promises, n) : CU_OK;
    if (status != CU_OK) return gd_refuse(call, GD_ON_STREAM, call->stream, status);
    GR_FAULT("device: recorded");
    for (uint32_t k = 0; k < call->n; k++) me->use[call->indices[k]].unpaid = false;
    return GR_OK;
}

/* ---- when the record failed ----------------------------------------------------------------------------------------- */

/* Until nothing runs on the GPU any more; an error says so as well. */
static enum gr_result finish_all(struct gd_peer *me, struct gd_call *call) {
    const struct gd_driver *driver = me->device->driver;
    void *popped;
    int status = driver->ctx_push(me->device->context);
    if (status != CU_OK) return GR_OK;
    status = driver->ctx_synchronize();
    driver->ctx_pop(&popped);
    return gd_is_capture(status) ? gd_refuse(call, GD_NOT_NOW, 0, status) : GR_OK;
}

/* A default stream is that of the ring's GPU, or was refused because it is another one's: both are asked. */
static int query(const struct gd_device *device, gd_stream stream) {
    void *popped;
    int status = device->driver->stream_query((void *)stream);
    if (status != CU_OK || stream > GD_PER_THREAD || device->driver->ctx_push(device->context) != CU_OK) return status;
    status = device->driver->stream_query((void *)stream);
    device->driver->ctx_pop(&popped);
    return status;
}

/* After a record that failed, so that nobody knows whether it was enqueued: waits until the slot's streams are idle, then
 * raises the fence from the CPU.  GR_SIGNAL: call again.  GR_DEVICE: a capture forbids to tell, and the slot stays ours. */
enum gr_result gd_settle(struct gd_peer *me, struct gd_call *call, uint32_t index) {
    struct gd_use *use = &me->use[index];
    const int64_t start = gr_now_ns();
    int64_t now = start;
    if (call->since_ns == 0) call->since_ns = start;
    for (uint32_t k = 0; k < use->streams;) {
        int status = query(me->device, use->stream[k]);
        if (gd_is_capture(status)) return gd_refuse(call, GD_CAPTURED, use->stream[k], status);
        if (status != CU_OK && status != CU_NOT_READY) {
            /* If it was destroyed, what it was given before goes on.  If the context is lost, this reports it too. */
            enum gr_result result = finish_all(me, call);
            if (result != GR_OK) return result;
            status = CU_OK;
        }
        if (status == CU_OK && use->of_another && use->stream[k] == GD_LEGACY) {
            /* What is put into it waits for the other thread's stream; to be asked, it knows of its own work only. */
            enum gr_result result = finish_all(me, call);
            if (result != GR_OK) return result;
        }
        if (status == CU_OK) {
            k++;
            continue;
        }
        now = gr_now_ns();
        if (now - start > GR_SLICE_NS) {
            gr_reap_dead(me->me.ring, NULL);
            return GR_SIGNAL;
        }
        if (now - call->since_ns < SPIN_NS) gd_pause();
        else if (nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL) != 0) return GR_SIGNAL;
    }
    call->since_ns = 0;
    gr_word *fence = fence_of(me->me.ring, index, me->me.number);
    if (use->unpaid && is_mine(&me->me)) gr_raise_to(fence, gr_load_acquire(work_of(me->me.ring, index, me->me.number)));
    use->unpaid = false;
    use->recorded_on = 0;
    return GR_OK;
}

/* ---- before the peer leaves ------------------------------------------------------------------------------------------- */

enum gr_result gd_drain(struct gd_peer *me, struct gd_call *call, unsigned how) {
    struct gr_ring *ring = me->me.ring;
    struct gd_device *device = me->device;
    const uint32_t number = me->me.number;
    const int64_t start = gr_now_ns();
    (void)how;
    if (!device || !me->use || !is_mine(&me->me)) return GR_OK; /* no use: gd_prepare failed, nothing was promised */
    for (uint32_t i = 0; i < ring->slots; i++) { /* what an interrupted settling left undone */
        if (!me->use[i].unpaid) continue;
        enum gr_result result = finish_all(me, call);
        if (result != GR_OK) return result;
        gr_raise_to(fence_of(ring, i, number), gr_load_acquire(work_of(ring, i, number)));
        me->use[i].unpaid = false;
    }
    if (call->since_ns == 0) call->since_ns = start;
    for (; call->at < ring->slots; call->at++) {
        const uint64_t promised = gr_load_acquire(work_of(ring, call->at, number));
        int status;
        while ((status = device->sync->paid(me, number, call->at, promised, &call->trouble)) == CU_NOT_READY) {
            void *popped;
            int lost = device->driver->ctx_push(device->context);
            if (lost == CU_OK) { /* any stream tells of a lost context */
                lost = device->driver->stream_query((void *)(uintptr_t)GD_PER_THREAD);
                device->driver->ctx_pop(&popped);
            }
            if (lost != CU_OK && lost != CU_NOT_READY && !gd_is_capture(lost)) { /* a capture elsewhere is no news */
                call->trouble = (struct gd_trouble){GD_WORK_FAILED, lost, 0, number, call->at, promised};
                return GR_DEVICE;
            }
            const int64_t now = gr_now_ns();
            if (now - start > GR_SLICE_NS) {
                gr_reap_dead(ring, NULL); /* what is waited for may be behind one of the dead */
                return GR_SIGNAL;
            }
            if (now - call->since_ns < SPIN_NS) gd_pause();
            else if (nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL) != 0) return GR_SIGNAL;
        }
        if (status != CU_OK) return GR_DEVICE;
    }
    return GR_OK;
}

/* One process's device order of one ring: opening and closing it, its streams, its peers. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

static enum gr_result trouble_of(struct gd_trouble *trouble, enum gd_where where, gd_stream stream,
                                 int status) {
    *trouble = (struct gd_trouble){.where = where, .stream = stream, .status = status};
    return GR_DEVICE;
}

/* ---- open, close ----------------------------------------------------------------------------- */

static void *fence_table(const struct gr_ring *ring) { return (void *)ring->fence; }
static size_t fence_nbytes(const struct gr_ring *ring) {
    return ring->layout.event - ring->layout.fence;
}

/* Maps the fence table into the GPU. It takes whole pages, because CUDA maps pages. */
static int map_fences(struct gd_device *device) {
    const struct gd_driver *driver = device->driver;
    void *popped;
    int status = driver->ctx_push(device->context);
    if (status != CU_OK) return status;
    status = driver->host_register(fence_table(device->ring), fence_nbytes(device->ring),
                                   CU_HOST_PORTABLE_MAPPED);
    if (status == CU_OK) {
        status = driver->host_device_pointer(&device->base, fence_table(device->ring), 0);
        if (status != CU_OK) driver->host_unregister(fence_table(device->ring));
    }
    driver->ctx_pop(&popped);
    return status;
}

enum gr_result gd_open(struct gd_device *device, struct gd_driver *driver, struct gr_ring *ring,
                       int ordinal, struct gd_trouble *trouble) {
    memset(device, 0, sizeof *device);
    device->driver = driver;
    device->ring = ring;
    device->ordinal = ordinal;
    device->sync = ring->config.sync == GR_SYNC_EVENT ? &gd_events : &gd_timeline;
    int status = driver->init(0);
    if (status == CU_OK) status = driver->primary_retain(&device->context, ordinal);
    if (status != CU_OK) return trouble_of(trouble, GD_NO_CONTEXT, 0, status);
    if (device->sync == &gd_timeline && (status = map_fences(device)) != CU_OK) {
        driver->primary_release(ordinal);
        return trouble_of(trouble, GD_REGISTER, 0, status);
    }
    pthread_mutex_init(&device->mutex, NULL);
    return GR_OK;
}

bool gd_close(struct gd_device *device) {
    const struct gd_driver *driver = device->driver;
    void *popped;
    if (!driver) return true;
    if (gr_forked(device->ring)) { /* a child may not touch CUDA; everything open is the parent's */
        device->driver = NULL;
        return true;
    }
    gd_drop_rows(device);
    gd_drop_spares(device);
    int status = CU_OK;
    if (device->sync == &gd_timeline && driver->ctx_push(device->context) == CU_OK) {
        status = driver->ctx_synchronize(); /* a wait in some stream may still read the table */
        /* After any other error the context is lost, and the registration with it. */
        if (!gd_is_capture(status)) {
            int removed = driver->host_unregister(fence_table(device->ring));
            if (gd_is_capture(removed)) status = removed;
        }
        driver->ctx_pop(&popped);
    }
    driver->primary_release(device->ordinal);
    pthread_mutex_destroy(&device->mutex);
    device->driver = NULL;
    return !gd_is_capture(status);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* An id of the calling thread, which is never 0 and never used again. Relaxed: it only has to be
 * unique. */
uint64_t gd_this_thread(void) {
    static gr_word threads;
    static _Thread_local uint64_t mine;
    if (mine == 0) mine = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
    return mine;
}

/* Returns CU_OK, or why nothing of ours may go into `stream` now. It would be recorded into a graph
 * that is being captured, and not be done, or it would spoil the capture.
 *
 * It is asked before each operation, because it does no harm to a capture, and costs as little as a
 * driver call can. The operations themselves would not tell: stores and waits of words, and records
 * of events, are captured without an error. */
int gd_captured(const struct gd_device *device, gd_stream stream) {
    int capturing = 0, status = device->driver->stream_is_capturing((void *)stream, &capturing);
    if (status == CU_OK) return capturing ? CU_CAPTURE : CU_OK;
    /* The operation itself will report any other error. */
    return gd_is_capture(status) ? status : CU_OK;
}

/* An id that no other stream has in the life of this process; 0 if it cannot be had. A handle is
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
    if (!driver) return trouble_of(trouble, GD_NO_CONTEXT, stream, CU_INVALID_CONTEXT);
    int status = driver->ctx_get_device(&current);
    if (status == CU_INVALID_CONTEXT) { /* the thread has not used CUDA yet */
        status = driver->ctx_set_current(device->context);
        current = device->ordinal;
    }
    if (status != CU_OK) return trouble_of(trouble, GD_NO_CONTEXT, stream, status);
    if (stream <= GD_PER_THREAD && current != device->ordinal) {
        trouble_of(trouble, GD_OTHER_DEVICE, stream, CU_OK);
        trouble->value = (uint64_t)current;
        return GR_DEVICE;
    }
    status = gd_captured(device, stream);
    return status == CU_OK ? GR_OK : trouble_of(trouble, GD_CAPTURED, stream, status);
}

enum gr_result gd_follow(struct gd_device *device, gd_stream stream, const gd_stream *others,
                         uint32_t n, struct gd_trouble *trouble) {
    enum gr_result result = gd_check_stream(device, stream, trouble);
    for (uint32_t k = 0; k < n && result == GR_OK; k++)
        result = gd_check_stream(device, others[k], trouble);
    if (result != GR_OK) return result;
    struct gd_own_event *spare;
    int status = gd_take_spare(device, &spare);
    if (status != CU_OK) return trouble_of(trouble, GD_ON_STREAM, stream, status);
    for (uint32_t k = 0; k < n && status == CU_OK; k++) {
        if (others[k] == stream) continue;
        status = device->driver->event_record(spare->event, (void *)others[k]);
        if (status == CU_OK)
            status = device->driver->stream_wait_event((void *)stream, spare->event, 0);
    }
    gd_give_spare(device, spare);
    if (status == CU_OK) return GR_OK;
    return trouble_of(trouble, gd_is_capture(status) ? GD_CAPTURED : GD_ON_STREAM, stream, status);
}

/* ---- peers ----------------------------------------------------------------------------------- */

enum gr_result gd_prepare(struct gd_peer *me, struct gd_device *device, bool gate_host,
                          struct gd_trouble *trouble) {
    me->device = device;
    me->gate_host = gate_host;
    me->own = NULL;
    me->blind = me->backoff = 0;
    me->lap_ns = 0;
    gr_store_relaxed(&me->last_value, 0);
    me->use = calloc(me->me.ring->slots, sizeof *me->use);
    for (uint32_t i = 0; me->use && i < me->me.ring->slots; i++) {
        me->use[i].stream = me->use[i].few;
        me->use[i].room = GD_STREAMS;
    }
    enum gr_result result = me->use && gd_released_prepare(me) ? GR_OK : GR_SYSTEM;
    if (result == GR_OK && device && device->sync == &gd_events)
        result = gd_take_events(me, trouble);
    if (result != GR_OK) gd_dispose(me);
    return result;
}

void gd_dispose(struct gd_peer *me) {
    if (!me->use) return;
    for (uint32_t i = 0; i < me->me.ring->slots; i++)
        if (me->use[i].stream != me->use[i].few) free(me->use[i].stream);
    gd_released_dispose(me);
    if (me->device && me->device->driver && !gr_forked(me->me.ring)) gd_give_events(me);
    else free(me->own), me->own = NULL;
    free(me->use);
    me->use = NULL;
}

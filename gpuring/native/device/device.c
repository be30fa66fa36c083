/* One process's device order of one ring: opening and closing it, and each of its peers. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "../core/handles.h"
#include "event.h"
#include "own_event.h"
#include "released.h"
#include "timeline.h"

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
    if (status != CU_OK) return gd_trouble_of(trouble, GD_NO_CONTEXT, 0, status);
    if (device->sync == &gd_timeline && (status = map_fences(device)) != CU_OK) {
        driver->primary_release(ordinal);
        return gd_trouble_of(trouble, GD_REGISTER, 0, status);
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

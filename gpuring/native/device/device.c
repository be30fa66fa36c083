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

enum gr_result gd_prepare(struct gd_peer *peer, struct gd_device *device, bool gate_host,
                          struct gd_trouble *trouble) {
    peer->device = device;
    peer->sync = device ? device->sync : &gd_timeline;
    peer->gate_host = device ? gate_host : peer->core.ring->config.memory != GR_MEMORY_HOST;
    peer->own = NULL;
    peer->blind = peer->backoff = 0;
    peer->lap_ns = 0;
    gr_store_relaxed(&peer->last_value, 0);
    peer->use = calloc(peer->core.ring->slots, sizeof *peer->use);
    for (uint32_t i = 0; peer->use && i < peer->core.ring->slots; i++) {
        peer->use[i].stream = peer->use[i].few;
        peer->use[i].room = GD_STREAMS;
    }
    enum gr_result result = peer->use && gd_released_prepare(peer) ? GR_OK : GR_SYSTEM;
    if (result == GR_OK && peer->sync == &gd_events)
        result = gd_take_events(peer, trouble);
    if (result != GR_OK) gd_dispose(peer);
    return result;
}

void gd_dispose(struct gd_peer *peer) {
    if (!peer->use) return;
    for (uint32_t i = 0; i < peer->core.ring->slots; i++)
        if (peer->use[i].stream != peer->use[i].few) free(peer->use[i].stream);
    gd_released_dispose(peer);
    if (peer->device && peer->device->driver && !gr_forked(peer->core.ring)) gd_give_events(peer);
    else free(peer->own), peer->own = NULL;
    free(peer->use);
    peer->use = NULL;
}

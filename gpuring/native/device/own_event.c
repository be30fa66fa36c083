/* Events that this process made. Its peers use interprocess events one after the other. Spare events
 * are recorded and waited for in one call, so that they can be used again at once. */
#include "own_event.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../core/handles.h"

static int make_event(struct gd_driver *driver, int ordinal, void *context, unsigned flags,
                      struct gd_own_event **made) {
    void *popped;
    struct gd_own_event *own = calloc(1, sizeof *own);
    if (!own) return CU_OUT_OF_MEMORY;
    own->device = ordinal;
    int status = driver->ctx_push(context);
    if (status == CU_OK) {
        status = driver->event_create(&own->event, flags);
        if (status == CU_OK && flags & CU_EVENT_INTERPROCESS) {
            status = driver->ipc_get_event_handle(&own->handle, own->event);
            if (status != CU_OK) driver->event_destroy(own->event);
        }
        driver->ctx_pop(&popped);
    }
    if (status == CU_OK) *made = own;
    else free(own);
    return status;
}

/* ---- interprocess events --------------------------------------------------------------------- */

int gd_take_own_event(struct gd_device *device, struct gd_own_event **taken) {
    struct gd_driver *driver = device->driver;
    int status = CU_OK;
    pthread_mutex_lock(&driver->mutex);
    struct gd_own_event *own = driver->made;
    while (own && !(own->idle && own->device == device->ordinal)) own = own->next;
    if (!own) {
        status = make_event(driver, device->ordinal, device->context,
                            CU_EVENT_NO_TIMING | CU_EVENT_INTERPROCESS, &own);
        if (status == CU_OK) {
            own->next = driver->made;
            driver->made = own;
            driver->made_count++;
        }
    }
    if (status == CU_OK) own->idle = false;
    pthread_mutex_unlock(&driver->mutex);
    *taken = own;
    return status;
}

/* A process cannot open a handle that it made itself, so this looks for the event in its own
 * list. */
void *gd_made_here(struct gd_driver *driver, const struct gd_ipc_handle *handle) {
    void *event = NULL;
    pthread_mutex_lock(&driver->mutex);
    for (struct gd_own_event *own = driver->made; own && !event; own = own->next)
        if (memcmp(&own->handle, handle, sizeof *handle) == 0) event = own->event;
    pthread_mutex_unlock(&driver->mutex);
    return event;
}

/* ---- spare events ---------------------------------------------------------------------------- */

int gd_take_spare(struct gd_device *device, struct gd_own_event **spare) {
    pthread_mutex_lock(&device->mutex);
    *spare = device->spare;
    if (*spare) device->spare = (*spare)->next;
    pthread_mutex_unlock(&device->mutex);
    return *spare ? CU_OK
                  : make_event(device->driver, device->ordinal, device->context, CU_EVENT_NO_TIMING,
                               spare);
}

void gd_give_spare(struct gd_device *device, struct gd_own_event *spare) {
    pthread_mutex_lock(&device->mutex);
    spare->next = device->spare;
    device->spare = spare;
    pthread_mutex_unlock(&device->mutex);
}

void gd_drop_spares(struct gd_device *device) {
    while (device->spare) {
        struct gd_own_event *spare = device->spare;
        device->spare = spare->next;
        if (!gr_forked(device->ring)) device->driver->event_destroy(spare->event);
        free(spare);
    }
}

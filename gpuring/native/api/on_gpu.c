/* Slots that a GPU uses, and the order of its streams. */
#define _GNU_SOURCE
#include "on_gpu.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "../core/exchange_offer.h"
#include "../core/handles.h"
#include "../device/device.h"
#include "../host/diagnosis.h"
#include "../memory/fetch.h"
#include "../memory/trouble.h"

gpuring_status find_gpu(gpuring_ring *ring, const struct gpu_asked *asked, gpuring_error *error) {
    int device = asked->device;
    if (!asked->uuid && device < GPURING_DEVICE_CURRENT)
        return gh_fail(error, GPURING_INVALID, "device must be a GPU's number, 0 or more, not %d", device);
    gpuring_status status = gm_load(&ring->driver, error);
    if (status != GPURING_OK) return status;
    if (asked->uuid && (device = gm_gpu_of(ring->driver, asked->uuid)) < 0)
        return gm_fail(error, 0, "ring '%s': this process does not see the GPU of that UUID",
                       ring->name);
    if (device < 0) device = gm_current_gpu(ring->driver);
    status = gm_check_gpu(ring->driver, device, error);
    if (status == GPURING_OK) ring->gpu = device;
    return status;
}

/* ---- opened ---------------------------------------------------------------------------------- */

gpuring_status offer_segment(const char *name, struct gr_ring *header, int fd,
                             gpuring_error *error) {
    const enum gr_result result = gr_offer(header, fd);
    if (result == GR_OK) return GPURING_OK;
    if (result == GR_SYSTEM) return gh_fail_system(error, errno, name);
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    return gh_fail(error, gh_add_unusable(&words, name, result), "%s", text);
}

gpuring_status offer_slab(gpuring_ring *ring, gpuring_error *error) {
    const struct gm_slab *slab = ring->slab->of ? ring->slab->of : ring->slab;
    return slab->fd < 0 ? GPURING_OK : offer_segment(ring->name, ring->header, slab->fd, error);
}

static gpuring_status open_slab(gpuring_ring *ring, gpuring_error *error) {
    struct gr_ring *header = ring->header;
    const struct gm_wanted wanted = {.ring = ring->name,
                                     .kind = (enum gr_memory)header->config.memory,
                                     .epoch = header->head->epoch,
                                     .uuid = header->head->device_uuid,
                                     .handle = header->head->memory_handle,
                                     .slots = header->slots,
                                     .slot_nbytes = header->config.slot_nbytes};
    int fd;
    gpuring_status status = gm_open(ring->driver, ring->gpu, &wanted, -1, &ring->slab, error);
    if (status != GPURING_OK || ring->slab) return status;
    status = gm_fetch(ring->name, header, &fd, error);
    if (status != GPURING_OK) return status;
    return gm_open(ring->driver, ring->gpu, &wanted, fd, &ring->slab, error);
}

gpuring_status open_on_gpu(gpuring_ring *ring, const struct gpu_asked *asked,
                           gpuring_error *error) {
    static const char *const kinds[] = {"host", "ipc", "vmm", "pool", "pinned"};
    if (!asked->uuid && asked->device == GPURING_DEVICE_HOST)
        return gh_fail(error, GPURING_UNSUPPORTED,
                       "ring '%s': its slots are in memory of a GPU (%s), and they were to be used "
                       "by the CPU",
                       ring->name, kinds[ring->header->config.memory]);
    gpuring_status status = gm_check_creator(ring->name, ring->header, error);
    if (status == GPURING_OK) status = find_gpu(ring, asked, error);
    if (status == GPURING_OK) status = open_slab(ring, error);
    if (status == GPURING_OK) status = begin_order(ring, error);
    if (status == GPURING_OK) status = offer_slab(ring, error);
    return status;
}

/* ---- the order of streams -------------------------------------------------------------------- */

gpuring_status begin_order(gpuring_ring *ring, gpuring_error *error) {
    struct gd_trouble trouble;
    uint8_t uuid[GM_UUID];
    const gpuring_status status = gm_uuid(ring->driver, ring->gpu, uuid, error);
    if (status != GPURING_OK) return status;
    if (gd_open(&ring->order, ring->driver, ring->header, ring->gpu, &trouble) != GR_OK) {
        gm_fail_trouble(error, &ring->order, &trouble);
        ring->order.driver = NULL;
        return GPURING_DEVICE;
    }
    memcpy(ring->header->gpu, uuid, sizeof uuid); /* a join notes it */
    return GPURING_OK;
}

void end_order(gpuring_ring *ring) {
    if (ring->order.driver && !gd_close(&ring->order)) ring->stays_mapped = true;
}

/* ---- pinned ---------------------------------------------------------------------------------- */

static size_t whole_pages(const gpuring_ring *ring) {
    return gm_rounded(ring->slots_nbytes, (uint64_t)sysconf(_SC_PAGESIZE));
}

static int try_to_register(gpuring_ring *ring) {
    struct gm_refusal refusal;
    char why[GM_WORDS];
    if (*gm_lacks_timeline(ring->driver, ring->gpu, why)) return CU_NOT_SUPPORTED;
    if (!gm_enter(ring->driver, ring->gpu, &refusal)) return refusal.status;
    gm_register(ring->driver, ring->slots, whole_pages(ring), &ring->registered, &refusal);
    gm_leave(ring->driver);
    return refusal.status;
}

static void unregister(gpuring_ring *ring) {
    struct gm_refusal refusal;
    bool done = false;
    if (gm_enter(ring->driver, ring->gpu, &refusal)) {
        done = gm_unregister(ring->driver, ring->slots, &refusal);
        gm_leave(ring->driver);
    }
    if (!done) ring->stays_mapped = true;
    ring->registered = 0;
}

gpuring_status register_slots(gpuring_ring *ring, gpuring_error *error) {
    uint8_t uuid[GM_UUID];
    int refused = try_to_register(ring);
    if (refused == CU_OK) {
        if (begin_order(ring, error) == GPURING_OK) return GPURING_OK;
        refused = CU_NOT_SUPPORTED;
        unregister(ring);
    }
    const gpuring_status status = gm_uuid(ring->driver, ring->gpu, uuid, error);
    if (status != GPURING_OK) return status;
    memcpy(ring->header->gpu, uuid, sizeof uuid);
    ring->header->unregistered = (uint64_t)refused; /* its peers tell of it */
    return GPURING_OK;
}

void end_on_gpu(gpuring_ring *ring) {
    end_order(ring);
    if (ring->registered && !gr_forked(ring->header)) unregister(ring);
    gm_put(ring->slab);
    ring->slab = NULL;
}

/* Slots that a GPU uses, and the order of its streams. These functions call gm_ (memory/) and gd_
 * (device/) for a ring. */
#pragma once

#include "../memory/choice.h"
#include "opaque.h"

/* Which GPU a caller has named, if any. */
struct gpu_asked {
    int device;
    const uint8_t *uuid;
};
/* Whether a pinned ring is to be used under a GPU. */
static inline bool asks_for_gpu(const struct gpu_asked *asked) {
    return asked->uuid || (asked->device != GPURING_DEVICE_DEFAULT &&
                           asked->device != GPURING_DEVICE_HOST);
}
/* Finds the GPU, and notes it in the ring. GPURING_DEVICE, GPURING_INVALID. */
gpuring_status find_gpu(gpuring_ring *ring, const struct gpu_asked *asked, gpuring_error *error);

/* Opens the slots of a ring that another process has created. */
gpuring_status open_on_gpu(gpuring_ring *ring, const struct gpu_asked *asked, gpuring_error *error);
/* Registers the slots of a pinned ring, which are mapped already, with CUDA. If the GPU cannot
 * reach them, the ring is used without, and the entries of its peers say so. */
gpuring_status register_slots(gpuring_ring *ring, gpuring_error *error);
/* Opens the device order: from now on streams of this process and of others wait for each other. */
gpuring_status begin_order(gpuring_ring *ring, gpuring_error *error);
/* Offers a descriptor of the slots to processes that attach. For a pinned ring this is done so that
 * they exchange pidfds with us. */
gpuring_status offer_segment(const char *name, struct gr_ring *header, int fd,
                             gpuring_error *error);
/* Has this process hand the memory on to processes that attach, if its kind needs that. */
gpuring_status offer_slab(gpuring_ring *ring, gpuring_error *error);
/* Waits for this process's work on the GPU. May be called twice. */
void end_order(gpuring_ring *ring);
/* The same, and then gives up what this process has on the GPU. */
void end_on_gpu(gpuring_ring *ring);

/* Slots that a GPU uses, and the order of its streams. Here a ring gets what gm_ (memory/) and gd_
 * (device/) have. */
#pragma once

#include "../memory/choice.h"
#include "opaque.h"

/* What a caller has said of a GPU. */
struct gpu_asked {
    int device;
    const uint8_t *uuid;
};
/* Whether a pinned ring is to be used under a GPU. */
static inline bool asks_for_gpu(const struct gpu_asked *asked) {
    return asked->uuid || (asked->device != GPURING_DEVICE_DEFAULT &&
                           asked->device != GPURING_DEVICE_HOST);
}
/* Finds it, and notes it in the ring. GPURING_DEVICE, GPURING_INVALID. */
gpuring_status find_gpu(gpuring_ring *ring, const struct gpu_asked *asked, gpuring_error *error);

/* The slots of a ring that others have. */
gpuring_status open_on_gpu(gpuring_ring *ring, const struct gpu_asked *asked, gpuring_error *error);
/* The slots of a pinned ring, which are mapped, under a GPU. If that does not reach them, the ring goes
 * on without it, and its peers say so. */
gpuring_status register_slots(gpuring_ring *ring, gpuring_error *error);
/* From now on streams of this process are ordered with those of others. */
gpuring_status begin_order(gpuring_ring *ring, gpuring_error *error);
/* Offers a descriptor of the slots to those who attach; of a pinned ring, so that others meet us. */
gpuring_status offer_segment(const char *name, struct gr_ring *header, int fd,
                             gpuring_error *error);
/* Has this process hand the memory on to those who attach, if its kind needs that. */
gpuring_status offer_slab(gpuring_ring *ring, gpuring_error *error);
/* Waits for this process's work on the GPU. May be called twice. */
void end_order(gpuring_ring *ring);
/* The same, and gives up what it has there. */
void end_on_gpu(gpuring_ring *ring);

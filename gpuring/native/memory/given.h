/* Memory that the user has allocated on a GPU, in which the slots of a ring are to lie.
 *
 * Other processes get it as they get memory that this library has allocated: virtual memory as a
 * descriptor (vmm), and memory of cudaMalloc by its handle (ipc). Both stand for a whole allocation,
 * so a part of one is refused: others would get what else is in it. */
#pragma once

#include "slab.h"

struct gm_given {
    uint64_t ptr, nbytes;
    int device; /* the GPU that has it */
    const char *ring;
    uint32_t slots;
    uint64_t slot_nbytes;
};

/* The GPU that has memory. GPURING_INVALID: none has. */
gpuring_status gm_gpu_of_given(struct gd_driver *driver, uint64_t ptr, int *device,
                               gpuring_error *error);
/* Slots at its beginning. It waits for the GPU, so that the first frames come behind what was done with
 * the memory. The user keeps that. GPURING_INVALID: it is too small, or another ring of this process
 * has it. GPURING_DEVICE: it cannot be shared. */
gpuring_status gm_adopt(struct gd_driver *driver, const struct gm_given *given,
                        const uint8_t epoch[16], struct gm_slab **slab, gpuring_error *error);
/* Whether a ring of this process still has what lies at this address. */
bool gm_has_given(uint64_t ptr);

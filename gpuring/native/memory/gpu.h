/* The GPUs of this process: which one is meant, and whether it reaches the memory of another one.
 *
 * This folder has the memory of slots that a GPU uses: the decisions, the calls of the driver, and the
 * words for what is refused. Both callers of this library use it: the public functions
 * (native/api), and Python by way of native/memory.pyx.
 *
 * No file needs one that stands below it in this list, and the folders below need none of them:
 *
 *   gpu          this
 *   choice       what a GPU lacks; which memory, synchroniser and gate a new ring has
 *   share        how each kind of memory is allocated, handed on, mapped, and given back
 *   slab         the memory that this process has, each piece of it once
 *   given        memory that the user has allocated
 *   trouble      what the device order was refused, in words
 *   fetch        the descriptor of slots, from a process that has it
 *
 * A GPU has a number in each process, and a UUID that is the same in all. Its context is the primary
 * one, which CUDA's runtime uses as well. It stays until the process ends, because events of peers
 * that have left are used again. A call here makes it current in its thread, and restores the one
 * before at its end. */
#pragma once

#include "../device/driver.h"
#include "../host/error.h"

enum { GM_WORDS = 384, GM_UUID = 16 };

/* What to use instead of a GPU. Commands leave out what is for C (cli/trouble.py). */
#define GM_HOST "device='host' (in C GPURING_MEMORY_HOST)"

/* A call that the driver has refused. */
struct gm_refusal {
    const char *call;
    int status;
};
/* Such as "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)". Returns words. */
const char *gm_told(char words[GM_WORDS], const struct gd_driver *driver,
                    const struct gm_refusal *refusal);
/* GPURING_DEVICE, with the status of the driver. */
gpuring_status gm_fail(gpuring_error *error, int device_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The driver of this machine. GPURING_DEVICE: there is none, or it is too old. */
gpuring_status gm_load(struct gd_driver **driver, gpuring_error *error);
/* What gd_driver_load, or gd_driver_fill, has said. */
gpuring_status gm_fail_no_driver(const char *why, bool found, gpuring_error *error);

/* GPURING_DEVICE if this process has no GPU of that number. Makes no context. */
gpuring_status gm_check_gpu(struct gd_driver *driver, int device, gpuring_error *error);
/* The GPU whose context is current in this thread, or GPU 0. */
int gm_current_gpu(struct gd_driver *driver);
/* -1: this process does not see it. */
int gm_gpu_of(struct gd_driver *driver, const uint8_t uuid[GM_UUID]);
gpuring_status gm_uuid(struct gd_driver *driver, int device, uint8_t uuid[GM_UUID],
                       gpuring_error *error);
/* The number of the GPU `wanted`, which `device` is or can reach. ring: for the words. */
gpuring_status gm_owner_of(struct gd_driver *driver, int device, const uint8_t wanted[GM_UUID],
                           const char *ring, int *owner, gpuring_error *error);

/* Makes the context of a GPU current in this thread. false: *refusal says why. */
bool gm_enter(struct gd_driver *driver, int device, struct gm_refusal *refusal);
void gm_leave(struct gd_driver *driver);

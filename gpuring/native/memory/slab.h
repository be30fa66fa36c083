/* The memory of rings that this process has: one slab for each memory and each GPU that reaches it.
 *
 * Whoever has a slab counts as a user of it. With the last one it is given back: unmapped, or freed
 * if this process has made it. That waits for this process's work on the GPU. In a forked child it
 * does nothing, because a child may not touch CUDA. Any thread may call these. None of them waits
 * for another process. */
#pragma once

#include "../core/layout.h"
#include "../host/names.h"
#include "share.h"

struct gm_slab {
    struct gm_slab *next;
    uint32_t users; /* both of these under the list's lock */
    struct gd_driver *driver;
    enum gr_memory kind;
    int device;            /* the GPU under which this process has it */
    uint8_t epoch[16];     /* of its ring */
    uint8_t handle[GM_HANDLE]; /* for the header */
    uint64_t nbytes;
    uint64_t ptr[2];       /* its address, to read and to write. 0: it is not mapped for that */
    int fd;                /* what others need as well, or -1 */
    bool made, borrowed;   /* by this process; it is the user's, who frees it */
    uint64_t given;        /* the user's address, or 0 */
    char ring[GH_MAX_NAME + 1]; /* which ring that was given to */
    bool known;            /* the driver has taken the descriptor, so nobody has lied about it */
    void *pool;
    struct gm_slab *of;    /* the same memory under another GPU, which is given back after this */
    int pid;
};

/* What the header of a ring says. */
struct gm_wanted {
    const char *ring; /* its name, for the words */
    enum gr_memory kind;
    const uint8_t *epoch, *uuid, *handle;
    uint32_t slots;
    uint64_t slot_nbytes;
};

/* New memory of at least so many bytes on a GPU. GPURING_DEVICE, GPURING_SYSTEM. */
gpuring_status gm_make(struct gd_driver *driver, enum gr_memory kind, int device,
                       const uint8_t epoch[16], uint64_t nbytes, struct gm_slab **slab,
                       gpuring_error *error);
/* The memory of a ring that others have. GPURING_DEVICE; GPURING_INCOMPATIBLE: the handle cannot be
 * that of the slots. fd: its descriptor, which is taken, also if this fails; or -1. If that is not
 * enough, because this process does not have the memory, it succeeds and *slab is NULL. */
gpuring_status gm_open(struct gd_driver *driver, int device, const struct gm_wanted *wanted, int fd,
                       struct gm_slab **slab, gpuring_error *error);

/* The address of the memory. Virtual memory has one address for reading only, and one for
 * writing. */
gpuring_status gm_view(struct gm_slab *slab, bool writable, uint64_t *ptr, gpuring_error *error);
/* NULL is fine. */
void gm_put(struct gm_slab *slab);

/* For given.c. Makes a slab that is not in the list. The caller has to list it or to end it. NULL
 * with an error: no memory. */
struct gm_slab *gm_begin(struct gd_driver *driver, enum gr_memory kind, int device,
                         const uint8_t epoch[16], gpuring_error *error);
void gm_enlist(struct gm_slab *slab);
void gm_end(struct gm_slab *slab);
/* Uses the user's memory, once that was exported. Memory with a descriptor is mapped once more, as
 * virtual memory. Memory with a handle is used where it is. */
gpuring_status gm_hold_given(struct gm_slab *slab, gpuring_error *error);
/* The slab of the user's memory at this address, with one more user; or NULL. */
struct gm_slab *gm_find_given(uint64_t ptr);

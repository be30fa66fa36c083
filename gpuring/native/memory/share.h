/* How each kind of memory on a GPU is allocated, handed on, mapped, and given back.
 *
 *   ipc    one cudaMalloc allocation. Its handle lies in the header. CUDA forbids to free it while
 *          others have it open, and nobody can open it when its maker is dead.
 *   vmm    virtual memory, shared as a descriptor. It lives as long as any process has that open.
 *          The handle is its size. A mapping can be for reading only, and the GPU enforces that.
 *   pool   an allocation of a stream-ordered pool. The descriptor is that of the pool, and the
 *          handle says where in the pool the allocation lies. Its maker must free it last.
 *   pinned host memory that is locked and mapped into the GPU.
 *
 * Each call needs the GPU's context to be current (gm_enter), and leaves nothing behind if it is
 * refused: false, and *refusal. */
#pragma once

#include "gpu.h"

enum { GM_HANDLE = 64, GM_PAGE = 2 << 20 /* what the driver shares, and hands out whole */ };

/* A number of bytes, or the next multiple of `to`. */
static inline uint64_t gm_rounded(uint64_t nbytes, uint64_t to) {
    return (nbytes + to - 1) / to * to;
}

bool gm_make_plain(struct gd_driver *driver, uint64_t nbytes, uint64_t *ptr,
                   struct gm_refusal *refusal);
void gm_free_plain(struct gd_driver *driver, uint64_t ptr);
bool gm_export_plain(struct gd_driver *driver, uint64_t ptr, uint8_t handle[GM_HANDLE],
                     struct gm_refusal *refusal);
bool gm_open_plain(struct gd_driver *driver, const uint8_t handle[GM_HANDLE], uint64_t *ptr,
                   struct gm_refusal *refusal);
void gm_close_plain(struct gd_driver *driver, uint64_t ptr);

/* Virtual memory, as a descriptor that no program inherits. *nbytes rises to a size that the GPU has. */
bool gm_make_virtual(struct gd_driver *driver, int device, uint64_t *nbytes, int *fd,
                     struct gm_refusal *refusal);
/* Exports the virtual memory that is mapped at an address. *fd is -1 if it is memory of another
 * kind. */
bool gm_export_virtual(struct gd_driver *driver, uint64_t ptr, int *fd,
                       struct gm_refusal *refusal);
bool gm_map_virtual(struct gd_driver *driver, int device, int fd, uint64_t nbytes, bool writable,
                    uint64_t *ptr, struct gm_refusal *refusal);
/* All GPU work on the memory has to be done. */
void gm_unmap_virtual(struct gd_driver *driver, uint64_t ptr, uint64_t nbytes);

bool gm_make_pool(struct gd_driver *driver, int device, uint64_t nbytes, void **pool, uint64_t *ptr,
                  int *fd, uint8_t handle[GM_HANDLE], struct gm_refusal *refusal);
bool gm_import_pool(struct gd_driver *driver, int device, int fd, const uint8_t handle[GM_HANDLE],
                    void **pool, uint64_t *ptr, struct gm_refusal *refusal);
bool gm_let_reach_pool(struct gd_driver *driver, int device, void *pool,
                       struct gm_refusal *refusal);
/* Behind all work of the GPU so far. */
void gm_free_pool(struct gd_driver *driver, void *pool, uint64_t ptr);

/* Locks whole pages of this process. *ptr is their address on the GPU. */
bool gm_register(struct gd_driver *driver, void *address, size_t nbytes, uint64_t *ptr,
                 struct gm_refusal *refusal);
/* Waits for all work of the GPU so far. false: CUDA keeps the pages, and nothing else may be mapped
 * at their address. */
bool gm_unregister(struct gd_driver *driver, void *address, struct gm_refusal *refusal);

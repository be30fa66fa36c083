#include "share.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Whether a call has succeeded; notes it for the words. */
#define DONE(name, result)                                                                         \
    ((refusal->call = (name), refusal->status = (result)) == CU_OK)

/* ---- ipc ------------------------------------------------------------------------------------- */

bool gm_make_plain(struct gd_driver *driver, uint64_t nbytes, uint64_t *ptr,
                   struct gm_refusal *refusal) {
    return DONE("cuMemAlloc_v2", driver->mem_alloc(ptr, nbytes));
}

void gm_free_plain(struct gd_driver *driver, uint64_t ptr) { driver->mem_free(ptr); }

bool gm_export_plain(struct gd_driver *driver, uint64_t ptr, uint8_t handle[GM_HANDLE],
                     struct gm_refusal *refusal) {
    struct gd_ipc_handle made;
    if (!DONE("cuIpcGetMemHandle", driver->ipc_get_handle(&made, ptr))) return false;
    memcpy(handle, made.bytes, GM_HANDLE);
    return true;
}

bool gm_open_plain(struct gd_driver *driver, const uint8_t handle[GM_HANDLE], uint64_t *ptr,
                   struct gm_refusal *refusal) {
    struct gd_ipc_handle theirs;
    memcpy(theirs.bytes, handle, GM_HANDLE);
    return DONE("cuIpcOpenMemHandle_v2", driver->ipc_open(ptr, theirs, CU_LAZY_PEER_ACCESS));
}

void gm_close_plain(struct gd_driver *driver, uint64_t ptr) { driver->ipc_close(ptr); }

/* ---- vmm ------------------------------------------------------------------------------------- */

static void keep_from_programs(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

static bool exported(struct gd_driver *driver, uint64_t memory, int *fd,
                     struct gm_refusal *refusal) {
    if (!DONE("cuMemExportToShareableHandle",
              driver->mem_export(fd, memory, CU_FILE_DESCRIPTOR, 0)))
        return false;
    keep_from_programs(*fd);
    return true;
}

bool gm_make_virtual(struct gd_driver *driver, int device, uint64_t *nbytes, int *fd,
                     struct gm_refusal *refusal) {
    const struct gd_allocation of = {.type = CU_PINNED,
                                     .handle_types = CU_FILE_DESCRIPTOR,
                                     .location = {CU_ON_DEVICE, device}};
    size_t unit = 0;
    uint64_t memory;
    if (!DONE("cuMemGetAllocationGranularity", driver->granularity(&unit, &of, 0))) return false;
    const uint64_t whole = gm_rounded(*nbytes, unit > GM_PAGE ? unit : GM_PAGE);
    if (!DONE("cuMemCreate", driver->mem_create(&memory, whole, &of, 0))) return false;
    const bool done = exported(driver, memory, fd, refusal);
    driver->mem_release(memory); /* the descriptor keeps it */
    if (done) *nbytes = whole;
    return done;
}

bool gm_export_virtual(struct gd_driver *driver, uint64_t ptr, int *fd,
                       struct gm_refusal *refusal) {
    uint64_t memory;
    *fd = -1;
    if (!DONE("cuMemRetainAllocationHandle", driver->mem_retain(&memory, (void *)ptr)))
        return refusal->status == CU_INVALID_VALUE;
    const bool done = exported(driver, memory, fd, refusal);
    driver->mem_release(memory);
    return done;
}

/* The memory at an address that was reserved for it. */
static bool map_at(struct gd_driver *driver, int device, uint64_t memory, uint64_t nbytes,
                   bool writable, uint64_t ptr, struct gm_refusal *refusal) {
    const struct gd_access access = {{CU_ON_DEVICE, device}, writable ? CU_READ_WRITE : CU_READ};
    if (!DONE("cuMemMap", driver->mem_map(ptr, nbytes, 0, memory, 0))) return false;
    if (DONE("cuMemSetAccess", driver->mem_set_access(ptr, nbytes, &access, 1))) return true;
    driver->mem_unmap(ptr, nbytes);
    return false;
}

bool gm_map_virtual(struct gd_driver *driver, int device, int fd, uint64_t nbytes, bool writable,
                    uint64_t *ptr, struct gm_refusal *refusal) {
    uint64_t memory;
    if (!DONE("cuMemImportFromShareableHandle",
              driver->mem_import(&memory, (void *)(intptr_t)fd, CU_FILE_DESCRIPTOR)))
        return false;
    bool done = DONE("cuMemAddressReserve", driver->address_reserve(ptr, nbytes, 0, 0, 0));
    if (done && !map_at(driver, device, memory, nbytes, writable, *ptr, refusal)) {
        driver->address_free(*ptr, nbytes);
        done = false;
    }
    driver->mem_release(memory); /* the mapping keeps it */
    return done;
}

void gm_unmap_virtual(struct gd_driver *driver, uint64_t ptr, uint64_t nbytes) {
    driver->mem_unmap(ptr, nbytes);
    driver->address_free(ptr, nbytes);
}

/* ---- pool ------------------------------------------------------------------------------------ */

static bool fill_pool(struct gd_driver *driver, uint64_t nbytes, void *pool, uint64_t *ptr, int *fd,
                      uint8_t handle[GM_HANDLE], struct gm_refusal *refusal) {
    if (!DONE("cuMemAllocFromPoolAsync", driver->pool_alloc(ptr, nbytes, pool, NULL))) return false;
    /* Waits for the allocation, because other processes may use it at once. A pool must be exported
     * before its memory. */
    if (DONE("cuStreamSynchronize", driver->stream_synchronize(NULL)) &&
        DONE("cuMemPoolExportToShareableHandle",
             driver->pool_export(fd, pool, CU_FILE_DESCRIPTOR, 0))) {
        keep_from_programs(*fd);
        if (DONE("cuMemPoolExportPointer", driver->pool_export_pointer(handle, *ptr))) return true;
        close(*fd);
    }
    driver->pool_free(*ptr, NULL);
    return false;
}

bool gm_make_pool(struct gd_driver *driver, int device, uint64_t nbytes, void **pool, uint64_t *ptr,
                  int *fd, uint8_t handle[GM_HANDLE], struct gm_refusal *refusal) {
    const struct gd_pool of = {.type = CU_PINNED,
                               .handle_types = CU_FILE_DESCRIPTOR,
                               .location = {CU_ON_DEVICE, device}};
    if (!DONE("cuMemPoolCreate", driver->pool_create(pool, &of))) return false;
    if (fill_pool(driver, nbytes, *pool, ptr, fd, handle, refusal)) return true;
    driver->pool_destroy(*pool);
    return false;
}

bool gm_let_reach_pool(struct gd_driver *driver, int device, void *pool,
                       struct gm_refusal *refusal) {
    const struct gd_access access = {{CU_ON_DEVICE, device}, CU_READ_WRITE};
    return DONE("cuMemPoolSetAccess", driver->pool_set_access(pool, &access, 1));
}

bool gm_import_pool(struct gd_driver *driver, int device, int fd, const uint8_t handle[GM_HANDLE],
                    void **pool, uint64_t *ptr, struct gm_refusal *refusal) {
    uint8_t exported[GM_HANDLE];
    memcpy(exported, handle, GM_HANDLE);
    if (!DONE("cuMemPoolImportFromShareableHandle",
              driver->pool_import(pool, (void *)(intptr_t)fd, CU_FILE_DESCRIPTOR, 0)))
        return false;
    if (gm_let_reach_pool(driver, device, *pool, refusal) &&
        DONE("cuMemPoolImportPointer", driver->pool_import_pointer(ptr, *pool, exported)))
        return true;
    driver->pool_destroy(*pool);
    return false;
}

void gm_free_pool(struct gd_driver *driver, void *pool, uint64_t ptr) {
    driver->ctx_synchronize();
    driver->pool_free(ptr, NULL);
    driver->stream_synchronize(NULL);
    driver->pool_destroy(pool);
}

/* ---- pinned ---------------------------------------------------------------------------------- */

bool gm_register(struct gd_driver *driver, void *address, size_t nbytes, uint64_t *ptr,
                 struct gm_refusal *refusal) {
    if (!DONE("cuMemHostRegister_v2",
              driver->host_register(address, nbytes, CU_HOST_PORTABLE_MAPPED)))
        return false;
    if (DONE("cuMemHostGetDevicePointer_v2", driver->host_device_pointer(ptr, address, 0)))
        return true;
    driver->host_unregister(address);
    return false;
}

bool gm_unregister(struct gd_driver *driver, void *address, struct gm_refusal *refusal) {
    return DONE("cuCtxSynchronize", driver->ctx_synchronize()) &&
           DONE("cuMemHostUnregister", driver->host_unregister(address));
}

#include "given.h"

#include <pthread.h>
#include <string.h>

#define ALONE                                                                                      \
    "Allocate it alone, without a library's pool (in CuPy: cupy.cuda.using_allocator(None))"

/* Held while it is checked whether a ring has the memory, and until it is listed. The calls of the
 * driver that are made under this mutex wait for no stream. */
static pthread_mutex_t giving = PTHREAD_MUTEX_INITIALIZER;

bool gm_has_given(uint64_t ptr) {
    struct gm_slab *slab = gm_find_given(ptr);
    gm_put(slab);
    return slab != NULL;
}

/* ---- what cannot be -------------------------------------------------------------------------- */

static gpuring_status cannot_share(const struct gd_driver *driver, const struct gm_refusal *refusal,
                                   gpuring_error *error) {
    char words[GM_WORDS];
    return gm_fail(error, refusal->status,
                   "the memory that was given cannot be shared with other processes (%s). Memory of "
                   "cudaMalloc can, and virtual memory that was made to be exported as a file "
                   "descriptor. That of cudaMallocAsync, of managed memory and of torch's expandable "
                   "segments cannot",
                   gm_told(words, driver, refusal));
}

gpuring_status gm_gpu_of_given(struct gd_driver *driver, uint64_t ptr, int *device,
                               gpuring_error *error) {
    struct gm_refusal refusal = {"cuPointerGetAttribute", driver->init(0)};
    char words[GM_WORDS];
    if (refusal.status == CU_OK)
        refusal.status = driver->pointer_get_attribute(device, CU_DEVICE_ORDINAL, ptr);
    if (refusal.status == CU_OK) return GPURING_OK;
    return gh_fail(error, GPURING_INVALID, "what was given at %#llx is no memory of a GPU (%s)",
                   (unsigned long long)ptr, gm_told(words, driver, &refusal));
}

static gpuring_status check_size(const struct gm_given *given, gpuring_error *error) {
    const uint64_t wanted = given->slots * given->slot_nbytes;
    if (given->nbytes >= wanted) return GPURING_OK;
    return gh_fail(error, GPURING_INVALID,
                   "the memory that was given has %llu bytes, and %u slots of %llu bytes need %llu",
                   (unsigned long long)given->nbytes, given->slots,
                   (unsigned long long)given->slot_nbytes, (unsigned long long)wanted);
}

static gpuring_status check_whole(const struct gm_given *given, uint64_t base, uint64_t whole,
                                  gpuring_error *error) {
    if (base != given->ptr)
        return gm_fail(error, 0,
                       "the memory that was given is a part of an allocation: it begins %llu bytes "
                       "after the start of %llu bytes, and only all of these can be shared. " ALONE,
                       (unsigned long long)(given->ptr - base), (unsigned long long)whole);
    if (given->nbytes <= whole && whole < given->nbytes + GM_PAGE) return GPURING_OK;
    return gm_fail(error, 0,
                   "the memory that was given is %llu bytes of an allocation of %llu, and only all of "
                   "it can be shared. " ALONE,
                   (unsigned long long)given->nbytes, (unsigned long long)whole);
}

static gpuring_status check_free(const struct gm_given *given, gpuring_error *error) {
    struct gm_slab *other = gm_find_given(given->ptr);
    if (!other) return GPURING_OK;
    gh_fail(error, GPURING_INVALID,
            "the memory that was given has the slots of ring '%s' already, and two rings would "
            "overwrite each other's frames. Close that ring, also in other processes, or allocate "
            "other memory",
            other->ring);
    gm_put(other);
    return GPURING_INVALID;
}

/* ---- adopted --------------------------------------------------------------------------------- */

/* Each of these needs the GPU's context to be current. */

static gpuring_status look(struct gm_slab *slab, const struct gm_given *given,
                           gpuring_error *error) {
    struct gd_driver *driver = slab->driver;
    uint64_t base = 0;
    size_t whole = 0;
    const struct gm_refusal refusal = {"cuMemGetAddressRange_v2",
                                       driver->address_range(&base, &whole, given->ptr)};
    if (refusal.status != CU_OK) return cannot_share(driver, &refusal, error);
    slab->nbytes = whole;
    return check_whole(given, base, whole, error);
}

static gpuring_status export(struct gm_slab *slab, gpuring_error *error) {
    struct gd_driver *driver = slab->driver;
    struct gm_refusal refusal;
    if (!gm_export_virtual(driver, slab->given, &slab->fd, &refusal) ||
        (slab->fd < 0 && !gm_export_plain(driver, slab->given, slab->handle, &refusal)))
        return cannot_share(driver, &refusal, error);
    return gm_hold_given(slab, error);
}

static gpuring_status adopt(struct gm_slab *slab, const struct gm_given *given,
                            gpuring_error *error) {
    const struct gm_refusal waited = {"cuCtxSynchronize", slab->driver->ctx_synchronize()};
    if (waited.status != CU_OK) return cannot_share(slab->driver, &waited, error);
    pthread_mutex_lock(&giving); /* not while it waits: that work may wait for another thread's ring */
    gpuring_status status = check_free(given, error);
    if (status == GPURING_OK) status = look(slab, given, error);
    if (status == GPURING_OK) status = export(slab, error);
    if (status == GPURING_OK) gm_enlist(slab);
    pthread_mutex_unlock(&giving);
    return status;
}

gpuring_status gm_adopt(struct gd_driver *driver, const struct gm_given *given,
                        const uint8_t epoch[16], struct gm_slab **made, gpuring_error *error) {
    struct gm_refusal refusal;
    gpuring_status status = check_size(given, error);
    if (status != GPURING_OK) return status;
    struct gm_slab *slab = gm_begin(driver, GR_MEMORY_IPC, given->device, epoch, error);
    if (!slab) return error->status;
    slab->made = true;
    slab->given = given->ptr;
    strcpy(slab->ring, given->ring); /* it was checked */
    if (!gm_enter(driver, given->device, &refusal)) status = cannot_share(driver, &refusal, error);
    else {
        status = adopt(slab, given, error);
        gm_leave(driver);
    }
    if (status == GPURING_OK) *made = slab;
    else gm_end(slab);
    return status;
}

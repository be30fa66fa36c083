#include "slab.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../core/handles.h"

/* Guards the list and the counts. No call of the driver is made under it. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gm_slab *all;
/* Held while memory is opened and mapped, so that this process opens it only once. The calls of the
 * driver that are made under this mutex wait for no stream. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

enum { READ, WRITE };

/* ---- the list -------------------------------------------------------------------------------- */

struct gm_slab *gm_begin(struct gd_driver *driver, enum gr_memory kind, int device,
                         const uint8_t epoch[16], gpuring_error *error) {
    struct gm_slab *slab = calloc(1, sizeof *slab);
    if (!slab) {
        gh_fail_system(error, ENOMEM, "memory of a ring");
        return NULL;
    }
    slab->driver = driver;
    slab->kind = kind;
    slab->device = device;
    slab->fd = -1;
    slab->users = 1;
    slab->pid = getpid();
    memcpy(slab->epoch, epoch, sizeof slab->epoch);
    return slab;
}

void gm_enlist(struct gm_slab *slab) {
    pthread_mutex_lock(&list_lock);
    slab->next = all;
    all = slab;
    pthread_mutex_unlock(&list_lock);
}

/* Counts one more user. */
static struct gm_slab *get(struct gm_slab *slab) {
    pthread_mutex_lock(&list_lock);
    slab->users++;
    pthread_mutex_unlock(&list_lock);
    return slab;
}

/* Counts as a user of what it finds. device: -1 means any. */
static struct gm_slab *find(const uint8_t epoch[16], int device) {
    pthread_mutex_lock(&list_lock);
    struct gm_slab *slab = all;
    while (slab && (memcmp(slab->epoch, epoch, sizeof slab->epoch) != 0 ||
                    slab->pid != getpid() || (device >= 0 && slab->device != device)))
        slab = slab->next;
    if (slab) slab->users++;
    pthread_mutex_unlock(&list_lock);
    return slab;
}

struct gm_slab *gm_find_given(uint64_t ptr) {
    pthread_mutex_lock(&list_lock);
    struct gm_slab *slab = all;
    while (slab && (slab->given != ptr || slab->pid != getpid())) slab = slab->next;
    if (slab) slab->users++;
    pthread_mutex_unlock(&list_lock);
    return slab;
}

/* ---- given back ------------------------------------------------------------------------------ */

static void unmap(struct gm_slab *slab) {
    struct gd_driver *driver = slab->driver;
    /* Unlike cuMemFree, the driver does not wait for work on what is unmapped; and whoever frees
     * memory waits for its own GPU only. */
    if (slab->kind == GR_MEMORY_VMM || slab->of) driver->ctx_synchronize();
    if (slab->of || slab->borrowed) return;
    if (slab->kind == GR_MEMORY_IPC)
        (slab->made ? gm_free_plain : gm_close_plain)(driver, slab->ptr[WRITE]);
    if (slab->kind == GR_MEMORY_POOL) gm_free_pool(driver, slab->pool, slab->ptr[WRITE]);
    for (int k = READ; slab->kind == GR_MEMORY_VMM && k <= WRITE; k++)
        if (slab->ptr[k]) gm_unmap_virtual(driver, slab->ptr[k], slab->nbytes);
}

void gm_end(struct gm_slab *slab) {
    struct gm_refusal refusal;
    struct gm_slab *of = slab->of;
    if (slab->pid == getpid()) {
        if ((slab->ptr[READ] || slab->ptr[WRITE]) &&
            gm_enter(slab->driver, slab->device, &refusal)) {
            unmap(slab);
            gm_leave(slab->driver);
        }
        /* A process may have lied and handed over a descriptor whose close takes for ever. */
        if (slab->fd >= 0 && slab->known) close(slab->fd);
        else if (slab->fd >= 0) gr_close_aside(slab->fd);
    }
    free(slab);
    gm_put(of);
}

void gm_put(struct gm_slab *slab) {
    if (!slab) return;
    pthread_mutex_lock(&list_lock);
    const bool last = --slab->users == 0;
    struct gm_slab **at = &all;
    while (last && *at && *at != slab) at = &(*at)->next;
    if (last && *at) *at = slab->next;
    pthread_mutex_unlock(&list_lock);
    if (last) gm_end(slab);
}

/* ---- made here ------------------------------------------------------------------------------- */

static bool make(struct gm_slab *slab, struct gm_refusal *refusal) {
    struct gd_driver *driver = slab->driver;
    uint64_t *ptr = &slab->ptr[WRITE];
    if (slab->kind == GR_MEMORY_IPC) return gm_make_plain(driver, slab->nbytes, ptr, refusal);
    if (slab->kind == GR_MEMORY_VMM)
        return gm_make_virtual(driver, slab->device, &slab->nbytes, &slab->fd, refusal);
    return gm_make_pool(driver, slab->device, slab->nbytes, &slab->pool, ptr, &slab->fd,
                        slab->handle, refusal);
}

static gpuring_status no_room(const struct gm_slab *slab, const struct gm_refusal *refusal,
                              gpuring_error *error) {
    char words[GM_WORDS];
    return gm_fail(error, refusal->status,
                   "allocating %.0f MiB for the slots on GPU %d failed (%s). Use fewer or smaller "
                   "slots, %sstop who else uses that GPU%s",
                   (double)slab->nbytes / (1 << 20), slab->device,
                   gm_told(words, slab->driver, refusal), slab->kind == GR_MEMORY_IPC ? "or " : "",
                   slab->kind == GR_MEMORY_IPC ? "" : ", or take `memory` ipc");
}

static gpuring_status export_plain(struct gm_slab *slab, gpuring_error *error) {
    struct gm_refusal refusal;
    char words[GM_WORDS];
    if (gm_export_plain(slab->driver, slab->ptr[WRITE], slab->handle, &refusal)) return GPURING_OK;
    return gm_fail(error, refusal.status,
                   "GPU %d cannot share memory between processes by CUDA IPC (%s). Virtualised GPUs "
                   "and some sandboxes cannot. Use " GM_HOST,
                   slab->device, gm_told(words, slab->driver, &refusal));
}

/* The handle of virtual memory is its size. */
static void say_size(struct gm_slab *slab) {
    for (int k = 0; k < 8; k++) slab->handle[k] = (uint8_t)(slab->nbytes >> 8 * k);
}

static gpuring_status finish_making(struct gm_slab *slab, gpuring_error *error) {
    uint64_t ptr;
    slab->known = true;
    if (slab->kind == GR_MEMORY_IPC) return export_plain(slab, error);
    if (slab->kind != GR_MEMORY_VMM) return GPURING_OK;
    say_size(slab);
    return gm_view(slab, true, &ptr, error);
}

gpuring_status gm_hold_given(struct gm_slab *slab, gpuring_error *error) {
    slab->borrowed = slab->fd < 0;
    if (slab->borrowed) {
        slab->ptr[WRITE] = slab->given;
        return GPURING_OK;
    }
    slab->kind = GR_MEMORY_VMM; /* with a mapping of our own */
    return finish_making(slab, error);
}

gpuring_status gm_make(struct gd_driver *driver, enum gr_memory kind, int device,
                       const uint8_t epoch[16], uint64_t nbytes, struct gm_slab **made,
                       gpuring_error *error) {
    struct gm_refusal refusal;
    struct gm_slab *slab = gm_begin(driver, kind, device, epoch, error);
    if (!slab) return error->status;
    slab->made = true;
    slab->nbytes = gm_rounded(nbytes, GM_PAGE);
    gpuring_status status = GPURING_DEVICE;
    if (!gm_enter(driver, device, &refusal)) no_room(slab, &refusal, error);
    else {
        if (make(slab, &refusal)) status = finish_making(slab, error);
        else {
            no_room(slab, &refusal, error);
            slab->ptr[WRITE] = 0; /* nothing is there to be given back */
            slab->fd = -1;
        }
        gm_leave(driver);
    }
    if (status == GPURING_OK) gm_enlist(*made = slab);
    else gm_end(slab);
    return status;
}

/* ---- of others ------------------------------------------------------------------------------- */

static uint64_t size_said(const uint8_t handle[GM_HANDLE]) {
    uint64_t nbytes = 0;
    for (int k = 0; k < 8; k++) nbytes |= (uint64_t)handle[k] << 8 * k;
    return nbytes;
}

static gpuring_status check(struct gd_driver *driver, int device, const struct gm_wanted *wanted,
                            gpuring_error *error) {
    int owner;
    const gpuring_status status =
        gm_owner_of(driver, device, wanted->uuid, wanted->ring, &owner, error);
    if (status != GPURING_OK) return status;
    const uint64_t nbytes = size_said(wanted->handle);
    if (wanted->kind == GR_MEMORY_VMM &&
        (nbytes < wanted->slots * wanted->slot_nbytes || nbytes > UINT64_C(1) << 50))
        return gh_fail(error, GPURING_INCOMPATIBLE,
                       "ring '%s': its memory has %llu bytes, not %u \xc3\x97 %llu", wanted->ring,
                       (unsigned long long)nbytes, wanted->slots,
                       (unsigned long long)wanted->slot_nbytes);
    return GPURING_OK;
}

static gpuring_status cannot_open(const struct gm_slab *slab, const struct gm_wanted *wanted,
                                  const struct gm_refusal *refusal, gpuring_error *error) {
    char words[GM_WORDS];
    const int status = refusal->status;
    gm_told(words, slab->driver, refusal);
    if (wanted->kind == GR_MEMORY_IPC && (status == CU_INVALID_VALUE || status == CU_MAP_FAILED ||
                                          status == CU_INVALID_CONTEXT || status == CU_INVALID_HANDLE))
        return gm_fail(error, status,
                       "ring '%s': its GPU memory cannot be opened (%s): its creator is probably "
                       "gone. Those inside may finish, but nobody new can join. Create it again. If "
                       "its creator lives, both processes must share the host's pid and IPC "
                       "namespaces, or the ring must be created with `memory` vmm",
                       wanted->ring, words);
    return gm_fail(error, status, "ring '%s': opening its GPU memory failed (%s)", wanted->ring,
                   words);
}

/* Lets the GPU of `slab` reach memory that this process has already opened for another GPU. owner:
 * the GPU that has the memory. */
static bool reach(struct gm_slab *slab, struct gm_slab *of, int owner,
                  struct gm_refusal *refusal) {
    struct gd_driver *driver = slab->driver;
    void *context = NULL;
    slab->of = of;
    slab->pool = of->pool;
    slab->ptr[WRITE] = of->ptr[WRITE];
    if (slab->kind == GR_MEMORY_POOL)
        return gm_let_reach_pool(driver, slab->device, of->pool, refusal);
    *refusal = (struct gm_refusal){"cuDevicePrimaryCtxRetain", driver->primary_retain(&context, owner)};
    if (refusal->status != CU_OK) return false;
    *refusal = (struct gm_refusal){"cuCtxEnablePeerAccess", driver->let_reach(context, 0)};
    return refusal->status == CU_OK || refusal->status == CU_PEER_ACCESS_ALREADY_ENABLED;
}

static bool open_as(struct gm_slab *slab, const struct gm_wanted *wanted,
                    struct gm_refusal *refusal) {
    struct gd_driver *driver = slab->driver;
    uint64_t *ptr = &slab->ptr[WRITE];
    if (slab->kind == GR_MEMORY_IPC) return gm_open_plain(driver, wanted->handle, ptr, refusal);
    if (slab->kind == GR_MEMORY_POOL)
        return gm_import_pool(driver, slab->device, slab->fd, wanted->handle, &slab->pool, ptr,
                              refusal);
    return true; /* virtual memory is mapped when it is used */
}

/* Whether the memory need not be opened again, because this process has made it, or has imported
 * its pool, which can be done only once. */
static bool is_reached(const struct gm_slab *here, const struct gm_slab *slab) {
    return here && (slab->kind == GR_MEMORY_POOL || (slab->kind == GR_MEMORY_IPC && here->made));
}

static gpuring_status open_new(struct gm_slab *slab, const struct gm_wanted *wanted,
                               struct gm_slab *here, gpuring_error *error) {
    struct gm_refusal refusal;
    uint64_t ptr;
    int owner;
    gpuring_status status =
        gm_owner_of(slab->driver, slab->device, wanted->uuid, wanted->ring, &owner, error);
    if (status != GPURING_OK) return status;
    if (!gm_enter(slab->driver, slab->device, &refusal))
        return cannot_open(slab, wanted, &refusal, error);
    const bool done = is_reached(here, slab) ? reach(slab, get(here), owner, &refusal)
                                             : open_as(slab, wanted, &refusal);
    gm_leave(slab->driver);
    if (!done) {
        if (!slab->of) slab->ptr[WRITE] = 0; /* nothing of ours is there to be given back */
        return cannot_open(slab, wanted, &refusal, error);
    }
    if (slab->kind == GR_MEMORY_POOL) slab->known = true;
    if (slab->kind != GR_MEMORY_VMM) return GPURING_OK;
    slab->nbytes = size_said(wanted->handle);
    status = gm_view(slab, false, &ptr, error); /* now, so that nobody gets slots that cannot be mapped */
    if (status != GPURING_DEVICE) return status;
    const int device_status = error->device_status;
    return gm_fail(error, device_status, "ring '%s': %s", wanted->ring, error->text);
}

/* A pool is imported once. Virtual memory is mapped for each GPU. */
static bool needs_fd(const struct gm_slab *here, enum gr_memory kind) {
    return kind == GR_MEMORY_VMM || (kind == GR_MEMORY_POOL && !here);
}

/* Opens memory for a GPU for which this process has not opened it yet. here: the same memory,
 * opened for another GPU, or NULL. */
static gpuring_status open_under(struct gd_driver *driver, int device,
                                 const struct gm_wanted *wanted, struct gm_slab *here, int *fd,
                                 struct gm_slab **opened, gpuring_error *error) {
    struct gm_slab *slab = gm_begin(driver, wanted->kind, device, wanted->epoch, error);
    if (!slab) return error->status;
    if (!is_reached(here, slab)) {
        slab->fd = *fd;
        *fd = -1;
    }
    slab->nbytes = wanted->slots * wanted->slot_nbytes;
    memcpy(slab->handle, wanted->handle, GM_HANDLE);
    const gpuring_status status = open_new(slab, wanted, here, error);
    if (status == GPURING_OK) gm_enlist(*opened = slab);
    else gm_end(slab);
    return status;
}

gpuring_status gm_open(struct gd_driver *driver, int device, const struct gm_wanted *wanted, int fd,
                       struct gm_slab **opened, gpuring_error *error) {
    *opened = NULL;
    gpuring_status status = check(driver, device, wanted, error);
    if (status == GPURING_OK) {
        pthread_mutex_lock(&opening);
        *opened = find(wanted->epoch, device);
        if (!*opened) {
            struct gm_slab *here = find(wanted->epoch, -1);
            if (fd >= 0 || !needs_fd(here, wanted->kind))
                status = open_under(driver, device, wanted, here, &fd, opened, error);
            gm_put(here);
        }
        pthread_mutex_unlock(&opening);
    }
    if (fd >= 0) gr_close_aside(fd); /* another thread was faster */
    return status;
}

/* ---- mapped ---------------------------------------------------------------------------------- */

static gpuring_status map(struct gm_slab *slab, bool writable, gpuring_error *error) {
    struct gm_refusal refusal;
    char words[GM_WORDS];
    bool done = gm_enter(slab->driver, slab->device, &refusal);
    if (done) {
        done = gm_map_virtual(slab->driver, slab->device, slab->fd, slab->nbytes, writable,
                              &slab->ptr[writable], &refusal);
        gm_leave(slab->driver);
    }
    if (done) {
        slab->known = true;
        return GPURING_OK;
    }
    slab->ptr[writable] = 0;
    return gm_fail(error, refusal.status,
                   "%.0f MiB of slots cannot be mapped into GPU %d for %s (%s)",
                   (double)slab->nbytes / (1 << 20), slab->device,
                   writable ? "reading and writing" : "reading",
                   gm_told(words, slab->driver, &refusal));
}

gpuring_status gm_view(struct gm_slab *slab, bool writable, uint64_t *ptr, gpuring_error *error) {
    static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;
    gpuring_status status = GPURING_OK;
    const int which = slab->kind == GR_MEMORY_VMM ? writable : WRITE;
    pthread_mutex_lock(&mapping);
    if (!slab->ptr[which]) status = map(slab, writable, error);
    *ptr = slab->ptr[which];
    pthread_mutex_unlock(&mapping);
    return status;
}

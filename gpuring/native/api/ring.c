/* Attach and detach; what a ring is. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/bell.h"
#include "../core/claim.h"
#include "../core/exchange_fetch.h"
#include "../core/handles.h"
#include "../core/lock.h"
#include "../core/members.h"
#include "../core/notify.h"
#include "../host/arrivals.h"
#include "../host/diagnosis.h"
#include "../host/leftovers.h"
#include "../host/making.h"
#include "../host/opening.h"
#include "../host/slots.h"
#include "on_gpu.h"

uint32_t gpuring_api_version(void) { return GPURING_API_VERSION; }

const char *gpuring_status_name(gpuring_status status) {
    static const char *const names[] = {
        "GPURING_OK",           "GPURING_TIMEOUT",       "GPURING_FULL",
        "GPURING_NOT_FOUND",    "GPURING_EXISTS",        "GPURING_INCOMPATIBLE",
        "GPURING_TOO_MANY_PEERS", "GPURING_CLOSED",      "GPURING_END_OF_STREAM",
        "GPURING_PEER_LOST",    "GPURING_PRODUCER_DIED", "GPURING_FRAME_TORN",
        "GPURING_NOT_PERMITTED", "GPURING_NO_ROOM",      "GPURING_DEVICE",
        "GPURING_INVALID",      "GPURING_FORKED",        "GPURING_UNSUPPORTED",
        "GPURING_SYSTEM",       "GPURING_FAILED"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "no status";
}

/* ---- attach ---------------------------------------------------------------------------------- */

/* A process that attaches to a pinned ring exchanges pidfds with the processes that have it, before
 * it joins. It needs nothing else from them, so a failure here does not matter. */
static void meet(struct gr_ring *header) {
    const int64_t deadline = gr_now_ns() + INT64_C(5000000000);
    struct gr_fetch *fetch = malloc(sizeof *fetch);
    if (!fetch) return;
    int fd = -1;
    gr_fetch_begin(fetch, header);
    do {
        const int64_t slice = gr_now_ns() + 50 * 1000 * 1000;
        fd = gr_fetch_go_on(fetch, header, slice < deadline ? slice : deadline);
    } while (fd < 0 && errno == EAGAIN && gr_now_ns() < deadline);
    if (fd >= 0) gr_close_aside(fd);
    gr_fetch_end(fetch);
    free(fetch);
}

static gpuring_status open_slots(gpuring_ring *ring, const struct gpu_asked *asked,
                                 gpuring_error *error) {
    struct gr_ring *header = ring->header;
    struct stat file;
    int fd = -1;
    const bool pinned = header->config.memory == GR_MEMORY_PINNED;
    if (!pinned && header->config.memory != GR_MEMORY_HOST) return open_on_gpu(ring, asked, error);
    if (fstat(header->lock_fd, &file) != 0) return gh_fail_system(error, errno, ring->name);
    gpuring_status status =
        gh_open_slots(ring->name, header->head->epoch, file.st_uid, header->slots,
                      header->config.slot_nbytes, &ring->slots, &fd, error);
    if (status != GPURING_OK) return status;
    ring->slots_nbytes = header->slots * header->config.slot_nbytes;
    if (pinned && asks_for_gpu(asked)) {
        status = find_gpu(ring, asked, error);
        if (status == GPURING_OK) status = register_slots(ring, error);
    }
    if (pinned && status == GPURING_OK) {
        meet(header);
        status = offer_segment(ring->name, header, fd, error);
    }
    close(fd);
    return status;
}

void end_ring(gpuring_ring *ring) {
    end_on_gpu(ring);
    GR_ASSERT(!ring->header || !gr_is_looked_at(ring->header));
    if (ring->header) (ring->stays_mapped ? gr_disown : gr_detach)(ring->header);
    if (ring->slots && !ring->stays_mapped) munmap(ring->slots, ring->slots_nbytes);
    gh_free_spec(&ring->spec);
    free(ring);
}

/* Without a wait. GPURING_NOT_FOUND: waiting may help. */
static gpuring_status attach_now(gpuring_ring *ring, const gpuring_attach_options *options,
                                 bool living, gpuring_error *error) {
    const struct gpu_asked asked = {options->device, options->device_uuid};
    gpuring_status status = gh_attach_header(ring->name, options->owner, &ring->header, error);
    if (status == GPURING_OK && living) status = gh_check_living(ring->name, ring->header, error);
    if (status == GPURING_OK) status = gh_open_spec(ring->name, ring->header, &ring->spec, error);
    if (status == GPURING_OK) status = open_slots(ring, &asked, error);
    if (status == GPURING_OK) memcpy(ring->epoch, ring->header->head->epoch, sizeof ring->epoch);
    return status;
}

gpuring_ring *begin_ring(const char *name, gpuring_error *error) {
    gpuring_ring *ring = calloc(1, sizeof *ring);
    if (ring) {
        strcpy(ring->name, name); /* it was checked */
        ring->gpu = -1;
        ring->attached = 1;
    } else gh_fail_system(error, ENOMEM, name);
    return ring;
}

gpuring_status try_to_attach(const char *name, const gpuring_attach_options *options, bool living,
                             gpuring_ring **found, gpuring_error *error) {
    gpuring_ring *ring = begin_ring(name, error);
    if (!ring) return error->status;
    ring->owner = options->owner;
    ring->device = options->device;
    const gpuring_status status = attach_now(ring, options, living, error);
    if (status == GPURING_OK) *found = ring;
    else end_ring(ring);
    return status;
}

/* An endpoint that follows a ring over restarts may come from a GPU into host memory. A caller that
 * names a GPU for a ring in host memory is mistaken. */
static gpuring_status check_device(const gpuring_ring *ring, const gpuring_attach_options *options,
                                   gpuring_error *error) {
    const struct gpu_asked asked = {options->device, options->device_uuid};
    if (ring->header->config.memory != GR_MEMORY_HOST || !asks_for_gpu(&asked)) return GPURING_OK;
    return gh_fail(error, GPURING_INVALID,
                   "ring '%s' is in host memory: it takes no device, so leave `device` out",
                   ring->name);
}

gpuring_status gpuring_attach(const char *name, const gpuring_attach_options *given,
                              gpuring_ring **ring, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED(ring, error);
    *ring = NULL;
    OPTIONS_OF(gpuring_attach_options, owner, given, GPURING_ATTACH_OPTIONS, error);
    NEED_TIMEOUT(options.timeout_ns, error);
    NEED_NS(&options, owner, -1, error);
    NEED(name, error);
    gpuring_status status = gh_check_name(name, strlen(name), error);
    if (status != GPURING_OK) return status;
    const bool living = options.timeout_ns != 0;
    const int64_t deadline = deadline_of(options.timeout_ns);
    struct gh_arrivals arrivals = {0};
    for (;;) {
        status = try_to_attach(name, &options, living, ring, error);
        if (status != GPURING_NOT_FOUND && !(living && status == GPURING_PEER_LOST)) break;
        const int64_t left = deadline == INT64_MAX ? INT64_MAX : deadline - gr_now_ns();
        if (left <= 0) {
            if (status == GPURING_NOT_FOUND) gh_fail_missing(name, error->text, error);
            break;
        }
        gh_await_name(&arrivals, status == GPURING_NOT_FOUND && *error->text, -1, left);
    }
    gh_end_arrivals(&arrivals);
    if (status == GPURING_OK) status = check_device(*ring, &options, error);
    if (status == GPURING_INVALID && *ring) {
        end_ring(*ring);
        *ring = NULL;
    }
    return status;
}

/* Rings that were detached here, and whose handles have to stay for a while. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static gpuring_ring *kept;

static void keep_ring(gpuring_ring *ring) {
    pthread_mutex_lock(&kept_lock);
    ring->next_kept = kept;
    kept = ring;
    pthread_mutex_unlock(&kept_lock);
}

/* Whether the handle has to stay. Other processes may still use memory that this ring has made. Or
 * a join was refused, and its peer could not leave yet: without the locks of the handle it would be
 * taken for dead. */
static bool is_needed(const gpuring_ring *ring) {
    return gr_leave_late(ring->header) ||
           (ring->created && ring->slab && gr_attached(ring->header));
}

/* Takes out of the list the first ring that is not needed, or that belongs to a parent process. */
static gpuring_ring *take_unused(void) {
    gpuring_ring **at = &kept;
    while (*at && !gr_forked((*at)->header) && is_needed(*at)) at = &(*at)->next_kept;
    gpuring_ring *found = *at;
    if (found) *at = found->next_kept;
    return found;
}

void free_kept_rings(void) {
    gpuring_ring *ring;
    do {
        pthread_mutex_lock(&kept_lock);
        ring = take_unused();
        pthread_mutex_unlock(&kept_lock);
        if (ring) end_ring(ring);
    } while (ring);
}

gpuring_ring *gpuring_retain(gpuring_ring *ring) {
    if (ring) atomic_fetch_add(&ring->attached, 1);
    return ring;
}

gpuring_status gpuring_detach(gpuring_ring *ring, gpuring_error *error) {
    MIND_NO_ERROR(error);
    if (!ring) return GPURING_OK;
    for (uint32_t times = atomic_load(&ring->attached); times > 1;)
        if (atomic_compare_exchange_weak(&ring->attached, &times, times - 1)) return GPURING_OK;
    const uint32_t open = atomic_load(&ring->endpoints);
    if (open)
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': %u of its producers and consumers are open. Close them first",
                       ring->name, open);
    if (gr_forked(ring->header)) {
        end_ring(ring);
        return GPURING_OK;
    }
    gpuring_status status = GPURING_OK;
    bool goes = false, removed;
    char name[GH_MAX_NAME + 1];
    uint8_t epoch[16];
    strcpy(name, ring->name);
    memcpy(epoch, ring->epoch, sizeof epoch);
    if (ring->created) {
        gr_close(ring->header);
        status = gh_remove_own(name, epoch, ring->header, error);
    } else goes = gh_goes_with_the_last(name, ring->header);
    if (is_needed(ring)) {
        end_order(ring);
        keep_ring(ring);
        goes = false;
    } else end_ring(ring);
    /* If this fails, others can do it later. */
    gpuring_error ignored;
    if (goes) gh_remove_dead(name, epoch, &removed, &ignored);
    free_kept_rings();
    return status;
}

/* ---- what it is ------------------------------------------------------------------------------ */

static void count_peers(const struct gr_ring *header, gpuring_info *info) {
    for (uint32_t p = 0; p < header->max_peers; p++) {
        const uint64_t word = gr_load_acquire(&header->peer[p].word);
        if (state_of(word) == GR_FREE || !gr_peer_alive((struct gr_ring *)header, p)) continue;
        if (role_of(word) == GR_PRODUCER) info->live_producers++;
        else info->live_consumers++;
    }
}

gpuring_status gpuring_get_info(const gpuring_ring *ring, gpuring_info *info) {
    if (!ring || !info) return GPURING_INVALID;
    struct gr_ring *header = ring->header;
    if (gr_forked(header)) return GPURING_FORKED;
    const size_t size = gh_size_of(info->size, sizeof *info);
    gpuring_info found = {
        .size = info->size,
        .name = ring->name,
        .slots = header->slots,
        .max_peers = header->max_peers,
        .max_subscriptions = header->max_subscriptions,
        .producers = header->producers_in_all,
        .slot_nbytes = header->config.slot_nbytes,
        .meta_nbytes = header->config.meta_nbytes,
        .fields = ring->spec.fields,
        .meta_fields = ring->spec.meta_fields,
        .memory = (gpuring_memory)header->config.memory,
        .creator_pid = header->head->creator_pid,
        .closed = gr_load_acquire(&header->head->closed) != 0,
        .creator_alive = gr_creator_alive(header),
        .next_seq = gr_frontier(header),
        .dropped = gr_load_acquire(&header->head->dropped),
        .deaths = gr_load_acquire(&header->head->reaps),
        .sync = (gpuring_sync)header->config.sync,
        .gate = header->config.gate == GR_GATE_HOST ? GPURING_GATE_HOST : GPURING_GATE_STREAM,
        .device = ring->gpu,
        .mapped = ring->order.driver != NULL,
    };
    memcpy(found.device_uuid, header->head->device_uuid, sizeof found.device_uuid);
    memcpy(found.epoch, header->head->epoch, sizeof found.epoch);
    count_peers(header, &found);
    memcpy(info, &found, size);
    return GPURING_OK;
}

static gpuring_status describe(const gpuring_ring *ring, const struct gh_field *list, uint32_t n,
                               uint32_t number, gpuring_field *field) {
    if (gr_forked(ring->header)) return GPURING_FORKED;
    if (number >= n || !field) return GPURING_INVALID;
    const struct gh_field *of = &list[number];
    gpuring_field found = {.size = field->size,
                           .name = of->name,
                           .dtype = of->dtype,
                           .offset = of->offset,
                           .itemsize = of->itemsize,
                           .nbytes = of->nbytes,
                           .dimensions = of->dimensions};
    memcpy(found.shape, of->shape, sizeof found.shape);
    memcpy(field, &found, gh_size_of(field->size, sizeof found));
    return GPURING_OK;
}

static uint32_t number_of(const struct gh_field *list, uint32_t n, const char *name) {
    uint32_t k = 0;
    while (k < n && strcmp(list[k].name, name) != 0) k++;
    return k;
}

gpuring_status gpuring_field_at(const gpuring_ring *ring, uint32_t number, gpuring_field *field) {
    if (!ring) return GPURING_INVALID;
    return describe(ring, ring->spec.field, ring->spec.fields, number, field);
}

gpuring_status gpuring_field_named(const gpuring_ring *ring, const char *name,
                                   gpuring_field *field) {
    if (!ring || !name) return GPURING_INVALID;
    const struct gh_spec *spec = &ring->spec;
    return gpuring_field_at(ring, number_of(spec->field, spec->fields, name), field);
}

gpuring_status gpuring_meta_at(const gpuring_ring *ring, uint32_t number, gpuring_field *field) {
    if (!ring) return GPURING_INVALID;
    return describe(ring, ring->spec.meta, ring->spec.meta_fields, number, field);
}

gpuring_status gpuring_meta_named(const gpuring_ring *ring, const char *name,
                                  gpuring_field *field) {
    if (!ring || !name) return GPURING_INVALID;
    const struct gh_spec *spec = &ring->spec;
    return gpuring_meta_at(ring, number_of(spec->meta, spec->meta_fields, name), field);
}

/* Creates rings. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../core/header.h"
#include "../core/lock.h"
#include "../host/describing.h"
#include "../host/locks.h"
#include "../host/making.h"
#include "../host/opening.h"
#include "../host/replacing.h"
#include "../host/room.h"
#include "../host/taking.h"
#include "../memory/given.h"
#include "durable.h"
#include "on_gpu.h"

/* How many fields of the metadata have a name. The others are gaps. */
static uint32_t named(const gpuring_field *meta, uint32_t count) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < count; k++) n += *gh_field_of(meta, k)->name != 0;
    return n;
}

static bool is_utf8(const char *text) { return gh_is_utf8(text, strlen(text)); }

/* of: "fields" or "meta", the member of the options that has them */
static gpuring_status check_given(const char *of, const gpuring_field *fields, uint32_t count,
                                  gpuring_error *error) {
    char order;
    if (!count) return GPURING_OK;
    if (!fields)
        return gh_fail(error, GPURING_INVALID, "`%s` is NULL, and `%s_count` is not 0", of,
                       *of == 'f' ? "field" : of);
    NEED_SIZE(fields, shape, "GPURING_FIELD", error);
    for (uint32_t k = 0; k < count; k++) {
        const gpuring_field *field = gh_field_of(fields, k);
        if (!field->name || !is_utf8(field->name))
            return gh_fail(error, GPURING_INVALID, "%s[%u]: its name is missing or is not UTF-8",
                           of, (unsigned)k);
        if (!field->dtype || !is_utf8(field->dtype))
            return gh_fail(error, GPURING_INVALID,
                           "field '%s': its dtype is missing or is not UTF-8", field->name);
        if (field->dimensions > GPURING_MAX_DIMENSIONS)
            return gh_fail(error, GPURING_INVALID, "field '%s' has at most %d dimensions, not %u",
                           field->name, GPURING_MAX_DIMENSIONS, (unsigned)field->dimensions);
        if (*field->dtype != '[' && !gh_order_of(field->dtype, &order))
            return gh_fail(error, GPURING_INVALID,
                           "field '%s': there is no such dtype as '%s'. Write \"|u1\" for uint8, and "
                           "\"<f4\" for float32",
                           field->name, field->dtype);
    }
    return GPURING_OK;
}

static gpuring_status check_shapes(const gpuring_field *fields, uint32_t count,
                                   gpuring_error *error) {
    for (uint32_t k = 0; k < count; k++) {
        const gpuring_field *field = gh_field_of(fields, k);
        for (uint32_t d = 0; d < field->dimensions; d++)
            if (!field->shape[d])
                return gh_fail(error, GPURING_INVALID, "field '%s': shape[%u] is 0, not positive",
                               field->name, (unsigned)d);
    }
    return GPURING_OK;
}

static gpuring_status describe(gpuring_ring *ring, const gpuring_create_options *options,
                               char *json, size_t room, gpuring_error *error) {
    struct gh_text text = gh_begin_text(json, room);
    if (!options->field_count)
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': a slot needs at least one field. `fields` and `field_count` say which",
                       ring->name);
    gpuring_status status = check_given("fields", options->fields, options->field_count, error);
    if (status == GPURING_OK)
        status = check_given("meta", options->meta, options->meta_count, error);
    if (status != GPURING_OK) return status;
    gh_describe(&text, options->fields, options->field_count, options->meta, options->meta_count);
    if (text.nbytes + 1 >= room)
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': its fields take more than %zu bytes as JSON", ring->name, room);
    status = check_shapes(options->fields, options->field_count, error);
    if (status != GPURING_OK) return status;
    status = gh_read_spec(json, text.nbytes, &ring->spec, error);
    if (status == GPURING_INCOMPATIBLE)
        return gh_fail(error, GPURING_INVALID, "ring '%s': %s", ring->name, error->text);
    /* A dtype that is a structure is JSON, and is put into the description as it is. If text
     * follows the structure, the description has other fields than those that were given. */
    if (status == GPURING_OK &&
        (ring->spec.fields != options->field_count ||
         ring->spec.meta_fields != named(options->meta, options->meta_count)))
        return gh_fail(error, GPURING_INVALID, "ring '%s': a dtype has more than one structure",
                       ring->name);
    return status;
}

static gpuring_status make_slots(gpuring_ring *ring, const struct gr_config *config, uint32_t mode,
                                 int *making, gpuring_error *error) {
    gpuring_status status;
    do status = gh_make_slots(ring->name, ring->epoch, mode, config->slots, config->slot_nbytes,
                              &ring->slots, making, error);
    while (status == GPURING_SYSTEM && error->sys_errno == EINTR);
    if (status == GPURING_OK) ring->slots_nbytes = config->slots * config->slot_nbytes;
    return status;
}

/* Whether arrays of a field can be on a GPU. A structure, text or a date cannot. */
static bool is_for_gpu(const struct gh_field *field) {
    const char *dtype = field->dtype;
    return *dtype != '[' && (!strchr("<>|=", *dtype) || strchr("biufc", dtype[1]));
}

static gpuring_status check_fields(const gpuring_ring *ring, gpuring_error *error) {
    for (uint32_t k = 0; k < ring->spec.fields; k++)
        if (!is_for_gpu(&ring->spec.field[k]))
            return gh_fail(error, GPURING_INVALID,
                           "field '%s': %s cannot be an array on a GPU", ring->spec.field[k].name,
                           ring->spec.field[k].dtype);
    return GPURING_OK;
}

/* The kind of memory of a ring on a GPU. */
static gpuring_status choose_kind(gpuring_ring *ring, gpuring_memory memory,
                                  struct gr_config *config, char why[2 * GM_WORDS],
                                  gpuring_error *error) {
    char no_ipc[GM_WORDS], no_vmm[GM_WORDS];
    struct utsname system = {.release = ""};
    uname(&system);
    *why = 0;
    if (memory == GPURING_MEMORY_AUTO) {
        gm_lacks(ring->driver, GR_MEMORY_IPC, ring->gpu, system.release, no_ipc);
        gm_lacks(ring->driver, GR_MEMORY_VMM, ring->gpu, system.release, no_vmm);
        config->memory = gm_auto(gm_is_contained(), no_ipc, no_vmm, why);
        return GPURING_OK;
    }
    config->memory = (enum gr_memory)memory;
    if (!*gm_lacks(ring->driver, config->memory, ring->gpu, system.release, no_ipc))
        return GPURING_OK;
    return gm_fail(error, CU_NOT_SUPPORTED, "`memory` %s: %s. Use `memory` auto",
                   memory == GPURING_MEMORY_IPC ? "ipc" : memory == GPURING_MEMORY_VMM ? "vmm" : "pool",
                   no_ipc);
}

/* The GPU that has the memory that was given. */
static gpuring_status find_given(gpuring_ring *ring, const gpuring_create_options *options,
                                 const struct gpu_asked *asked, gpuring_error *error) {
    struct gpu_asked there = *asked;
    int device = 0;
    if (!options->given)
        return gh_fail(error, GPURING_INVALID, "ring '%s': `given` is NULL, and has to be the memory of its slots",
                       ring->name);
    gpuring_status status = gm_load(&ring->driver, error);
    if (status == GPURING_OK)
        status = gm_gpu_of_given(ring->driver, (uintptr_t)options->given, &device, error);
    if (!asked->uuid && asked->device == GPURING_DEVICE_DEFAULT) there.device = device;
    if (status == GPURING_OK) status = find_gpu(ring, &there, error);
    if (status != GPURING_OK || ring->gpu == device) return status;
    return gh_fail(error, GPURING_INVALID,
                   "the memory that was given is on GPU %d, and the ring is to be used under GPU %d",
                   device, ring->gpu);
}

/* Which GPU, which kind, and how streams wait. */
static gpuring_status choose(gpuring_ring *ring, const gpuring_create_options *options,
                             const struct gpu_asked *asked, struct gr_config *config,
                             gpuring_error *error) {
    const gpuring_memory memory = options->memory;
    const bool pinned = memory == GPURING_MEMORY_PINNED, given = memory == GPURING_MEMORY_GIVEN;
    char why[2 * GM_WORDS] = "", no_timeline[GM_WORDS];
    gpuring_status status = GPURING_OK;
    if (options->given && !given)
        return gh_fail(error, GPURING_INVALID, "`given` is for memory that is GPURING_MEMORY_GIVEN");
    if (memory == GPURING_MEMORY_HOST) {
        if (options->sync == GPURING_SYNC_AUTO && options->gate == GPURING_GATE_AUTO &&
            !asks_for_gpu(asked))
            return GPURING_OK;
        return gh_fail(error, GPURING_INVALID,
                       "device, sync and gate are for GPU rings; a host ring needs none");
    }
    if (memory != GPURING_MEMORY_AUTO && !given && (unsigned)memory > GPURING_MEMORY_PINNED)
        return gh_fail(error, GPURING_INVALID, "there is no kind of memory with number %d", (int)memory);
    if ((unsigned)options->sync > GPURING_SYNC_TIMELINE || (unsigned)options->gate > GPURING_GATE_HOST)
        return gh_fail(error, GPURING_INVALID, "there is no sync of number %d or gate of number %d",
                       (int)options->sync, (int)options->gate);
    config->memory = given ? GR_MEMORY_IPC : (enum gr_memory)memory; /* or what is found there */
    if (given) status = find_given(ring, options, asked, error);
    else if (!pinned || asks_for_gpu(asked)) status = find_gpu(ring, asked, error);
    if (status == GPURING_OK && !pinned && !given)
        status = choose_kind(ring, memory, config, why, error);
    if (status == GPURING_OK) status = check_fields(ring, error);
    if (status != GPURING_OK) return status;
    if (config->memory == GR_MEMORY_PINNED) {
        config->sync = GR_SYNC_TIMELINE;
        config->gate = options->gate == GPURING_GATE_HOST ? GR_GATE_HOST : GR_GATE_STREAM;
        if (options->sync != GPURING_SYNC_EVENT) return GPURING_OK;
        return gh_fail(error, GPURING_INVALID,
                       "%s%s%sa pinned ring has `sync` timeline: peers without a GPU have no "
                       "events. Leave `sync` out",
                       *why ? "`memory` auto takes pinned here (" : "", why,
                       *why ? "), and " : "");
    }
    gm_lacks_timeline(ring->driver, ring->gpu, no_timeline);
    return gm_order(options->sync, options->gate, no_timeline, &config->sync, &config->gate, error);
}

static bool is_on_host(const struct gr_config *config) {
    return config->memory == GR_MEMORY_HOST || config->memory == GR_MEMORY_PINNED;
}

static gpuring_status make_slab(gpuring_ring *ring, const gpuring_create_options *options,
                                struct gr_config *config, gpuring_error *error) {
    if (options->memory != GPURING_MEMORY_GIVEN)
        return gm_make(ring->driver, config->memory, ring->gpu, ring->epoch,
                       config->slots * config->slot_nbytes, &ring->slab, error);
    const struct gm_given given = {.ptr = (uintptr_t)options->given,
                                   .nbytes = options->given_nbytes,
                                   .device = ring->gpu,
                                   .ring = ring->name,
                                   .slots = config->slots,
                                   .slot_nbytes = config->slot_nbytes};
    const gpuring_status status = gm_adopt(ring->driver, &given, ring->epoch, &ring->slab, error);
    if (status == GPURING_OK) config->memory = ring->slab->kind;
    return status;
}

bool gpuring_has_given(const void *given) {
    free_kept_rings();
    return gm_has_given((uintptr_t)given);
}

/* How this process uses the slots of a ring that is complete but has no name yet. */
static gpuring_status use_slots(gpuring_ring *ring, int making, gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    if (ring->slab) {
        status = begin_order(ring, error);
        return status == GPURING_OK ? offer_slab(ring, error) : status;
    }
    if (ring->header->config.memory != GR_MEMORY_PINNED) return GPURING_OK;
    if (ring->driver) status = register_slots(ring, error);
    return status == GPURING_OK ? offer_segment(ring->name, ring->header, making, error) : status;
}

static gpuring_status for_room(const gpuring_ring *ring, gpuring_status status,
                               const struct gr_layout *layout, gpuring_error *error) {
    if (status != GPURING_SYSTEM) return status;
    return gh_fail_for_room(error, ring->name, error->sys_errno, "the header", layout->nbytes);
}

/* The ring gets its name last, so nobody finds half of a ring. */
static gpuring_status make_header(gpuring_ring *ring, const struct gr_config *config,
                                  const struct gr_layout *layout,
                                  const gpuring_create_options *options, const char *json,
                                  int making, gpuring_error *error) {
    static const uint8_t zeros[GR_MEMORY_HANDLE];
    uint8_t uuid[GM_UUID] = {0};
    const int fd = gh_unnamed(options->mode, error);
    if (fd < 0) return for_room(ring, error->status, layout, error);
    gpuring_status status = GPURING_OK;
    if (ring->slab) status = gm_uuid(ring->driver, ring->gpu, uuid, error);
    if (status == GPURING_OK) {
        do
            ring->header = gr_create(fd, config, ring->epoch, uuid,
                                     ring->slab ? ring->slab->handle : zeros, json);
        while (!ring->header && errno == EINTR);
        if (!ring->header)
            status = gh_fail_for_room(error, ring->name, errno, "the header", layout->nbytes);
    }
    if (status == GPURING_OK) status = use_slots(ring, making, error);
    if (status == GPURING_OK) {
        GR_FAULT("create: header made");
        /* These come first: gh_take_name adds the subscriptions of a ring that is replaced. */
        for (uint32_t k = 0; status == GPURING_OK && k < options->subscription_count; k++)
            status = subscribe(ring, options->subscriptions[k], NULL, error);
        if (status == GPURING_OK) {
            status = gh_take_name(ring->name, fd, options->replace, ring->header, error);
            status = for_room(ring, status, layout, error);
        }
        GR_FAULT("create: named");
    }
    close(fd);
    return status;
}

static gpuring_status create(gpuring_ring *ring, const gpuring_create_options *options,
                             const char *json, gpuring_error *error) {
    const struct gpu_asked asked = {options->device, options->device_uuid};
    struct gr_config config = {.slots = options->slots,
                               .max_peers = options->max_peers,
                               .max_subscriptions = options->max_subscriptions,
                               .memory = GR_MEMORY_HOST,
                               .sync = GR_SYNC_HOST,
                               .gate = GR_GATE_STREAM,
                               .producers = options->producers,
                               .slot_nbytes = ring->spec.slot_nbytes,
                               .meta_nbytes = ring->spec.meta_nbytes,
                               .spec_nbytes = (uint32_t)strlen(json)};
    struct gr_layout layout;
    char why[128], path[GH_PATH];
    int making = -1;
    if (!gr_layout(&config, &layout, why, sizeof why) || !options->producers)
        return gh_fail(error, GPURING_INVALID, "ring '%s': %s", ring->name,
                       options->producers ? why : "producers must be 1 to 4095, not 0");
    if (options->mode > 0777)
        return gh_fail(error, GPURING_INVALID, "mode must be permission bits such as 0600, not %#o",
                       options->mode);
    gpuring_status status = choose(ring, options, &asked, &config, error);
    if (status == GPURING_OK) status = gh_make_way(ring->name, options->replace, error);
    if (status != GPURING_OK) return status;
    if (getrandom(ring->epoch, sizeof ring->epoch, 0) != sizeof ring->epoch)
        return gh_fail_system(error, errno, "a random number");
    if (is_on_host(&config)) status = make_slots(ring, &config, options->mode, &making, error);
    else status = make_slab(ring, options, &config, error);
    if (status != GPURING_OK) return status;
    status = make_header(ring, &config, &layout, options, json, making, error);
    if (status != GPURING_OK && is_on_host(&config)) {
        gh_slots_path(ring->name, ring->epoch, path);
        gh_remove_file(path, geteuid());
    }
    if (making >= 0) gh_unlock_and_close(making, GR_NAME_BYTE);
    return status;
}

gpuring_status gpuring_create(const char *name, const gpuring_create_options *given,
                              gpuring_ring **ring, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED(ring, error);
    *ring = NULL;
    OPTIONS_OF(gpuring_create_options, mode, given, GPURING_CREATE_OPTIONS, error);
    NEED(name, error);
    gpuring_status status = gh_check_name(name, strlen(name), error);
    if (status != GPURING_OK) return status;
    if ((unsigned)options.replace > GPURING_REPLACE_ANY)
        return gh_fail(error, GPURING_INVALID, "there is no gpuring_replace of number %d",
                       (int)options.replace);
    if (options.subscription_count && !options.subscriptions)
        return gh_fail(error, GPURING_INVALID,
                       "`subscriptions` is NULL, and `subscription_count` is not 0");
    free_kept_rings();
    gpuring_ring *made = begin_ring(name, error);
    char *json = malloc(GR_MAX_SPEC);
    status = GPURING_SYSTEM;
    if (made && json) status = describe(made, &options, json, GR_MAX_SPEC - GH_KEPT_FREE, error);
    else if (made) gh_fail_system(error, ENOMEM, name);
    if (status == GPURING_OK) status = create(made, &options, json, error);
    free(json);
    if (status == GPURING_OK) {
        made->created = true;
        made->owner = -1;
        made->device = options.device;
        *ring = made;
    } else if (made) end_ring(made);
    return status;
}

gpuring_status gpuring_unlink(const char *name, gpuring_error *error) {
    MIND_NO_ERROR(error);
    bool found = false;
    NEED(name, error);
    gpuring_status status = gh_check_name(name, strlen(name), error);
    if (status == GPURING_OK) status = gh_remove_name(name, false, &found, error);
    return status == GPURING_OK && !found ? gh_fail_missing(name, "", error) : status;
}

/* Creates rings. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "../core/header.h"
#include "../host/making.h"
#include "../host/named.h"
#include "../host/room.h"
#include "opaque.h"

/* Whether a name is free now. It may be taken before the ring is whole. */
static gpuring_status exists(const char *name, gpuring_error *error) {
    return gh_fail(error, GPURING_EXISTS,
                   "ring '%s' exists. Attach to it or choose another name. If its processes are "
                   "dead, `gpuring clean` removes it, and a program in Python that creates it again "
                   "takes its place",
                   name);
}

static gpuring_status look(const char *name, gpuring_error *error) {
    char path[GH_PATH];
    struct gh_named named;
    gh_header_path(name, path);
    if (gh_look(&named, path) != 0)
        return errno == ENOENT ? GPURING_OK : gh_fail_system(error, errno, path);
    gh_look_away(&named);
    return exists(name, error);
}

/* How many fields of the metadata have a name. The others are gaps. */
static uint32_t named(const gpuring_field *meta, uint32_t count) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < count; k++) n += *gh_field_of(meta, k)->name != 0;
    return n;
}

static gpuring_status describe(gpuring_ring *ring, const gpuring_create_options *options,
                               char *json, size_t room, gpuring_error *error) {
    struct gh_text text = gh_begin_text(json, room);
    if (!options->fields != !options->field_count || !options->meta != !options->meta_count ||
        (options->field_count && !HAS_SIZE(options->fields, shape)) ||
        (options->meta_count && !HAS_SIZE(options->meta, shape)) ||
        !gh_describe(&text, options->fields, options->field_count, options->meta,
                     options->meta_count))
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': each field has its size, a name and a dtype in UTF-8, and at most "
                       "%d dimensions",
                       ring->name, GPURING_MAX_DIMENSIONS);
    if (text.nbytes + 1 >= room)
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': its fields take more than %zu bytes as JSON", ring->name, room);
    const gpuring_status status = gh_read_spec(json, text.nbytes, &ring->spec, error);
    if (status == GPURING_INCOMPATIBLE)
        return gh_fail(error, GPURING_INVALID, "ring '%s': %s", ring->name, error->text);
    /* The dtype of a structure is JSON, which may go on behind its end. */
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

/* Last of all it gets its name, so nobody finds half of a ring. */
static gpuring_status make_header(gpuring_ring *ring, const struct gr_config *config,
                                  const struct gr_layout *layout, uint32_t mode, const char *json,
                                  gpuring_error *error) {
    static const uint8_t zeros[GR_MEMORY_HANDLE];
    char path[GH_PATH];
    const int fd = gh_unnamed(mode, error);
    if (fd < 0)
        return error->status == GPURING_SYSTEM
                   ? gh_fail_for_room(error, ring->name, error->sys_errno, "the header",
                                      layout->nbytes)
                   : error->status;
    do ring->header = gr_create(fd, config, ring->epoch, zeros, zeros, json);
    while (!ring->header && errno == EINTR);
    gpuring_status status = GPURING_OK;
    if (!ring->header)
        status = gh_fail_for_room(error, ring->name, errno, "the header", layout->nbytes);
    else {
        GR_FAULT("create: header made");
        gh_header_path(ring->name, path);
        if (gh_give_name(fd, path) != 0)
            status = errno == EEXIST ? exists(ring->name, error)
                                     : gh_fail_for_room(error, ring->name, errno, "the header",
                                                        layout->nbytes);
        GR_FAULT("create: named");
    }
    close(fd);
    return status;
}

static gpuring_status create(gpuring_ring *ring, const gpuring_create_options *options,
                             const char *json, gpuring_error *error) {
    const struct gr_config config = {.slots = options->slots,
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
                       options->producers ? why : "producers is 1 to 4095, not 0");
    if (options->mode > 0777)
        return gh_fail(error, GPURING_INVALID, "mode is permission bits such as 0600, not %#o",
                       options->mode);
    if (getrandom(ring->epoch, sizeof ring->epoch, 0) != sizeof ring->epoch)
        return gh_fail_system(error, errno, "a random number");
    gpuring_status status = make_slots(ring, &config, options->mode, &making, error);
    if (status != GPURING_OK) return status;
    status = make_header(ring, &config, &layout, options->mode, json, error);
    if (status != GPURING_OK) {
        gh_slots_path(ring->name, ring->epoch, path);
        gh_remove_file(path, geteuid());
    }
    close(making);
    return status;
}

gpuring_status gpuring_create(const char *name, const gpuring_create_options *given,
                              gpuring_ring **ring, gpuring_error *error) {
    MIND_NO_ERROR(error);
    *ring = NULL;
    OPTIONS_OF(gpuring_create_options, mode, given, GPURING_CREATE_OPTIONS, error);
    gpuring_status status = gh_check_name(name, strlen(name), error);
    if (status == GPURING_OK) status = look(name, error);
    if (status != GPURING_OK) return status;
    gpuring_ring *made = begin_ring(name, error);
    char *json = malloc(GR_MAX_SPEC);
    status = GPURING_SYSTEM;
    if (made && json) status = describe(made, &options, json, GR_MAX_SPEC - GH_KEPT_FREE, error);
    else if (made) gh_fail_system(error, ENOMEM, name);
    if (status == GPURING_OK) status = create(made, &options, json, error);
    free(json);
    if (status == GPURING_OK) {
        made->created = true;
        *ring = made;
    } else if (made) end_ring(made);
    return status;
}

/* What the dead have left in /dev/shm. */
#define _GNU_SOURCE
#include "leftovers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../core/annex.h"
#include "../core/handles.h"
#include "../core/header.h"
#include "../core/lock.h"
#include "debts.h"
#include "locks.h"
#include "making.h"
#include "named.h"
#include "sockets.h"

bool gh_is_kept(struct gr_ring *ring) {
    return ring->lock_fd >= 0 && gr_creator_alive(ring) && !gr_load_acquire(&ring->head->closed);
}

uint32_t gh_live_peers(struct gr_ring *ring) {
    uint32_t n = 0;
    for (uint32_t p = 0; ring->lock_fd >= 0 && p < ring->max_peers; p++)
        n += state_of(gr_load_acquire(&ring->peer[p].word)) != GR_FREE && gr_peer_alive(ring, p);
    return n;
}

static bool is_on_host(const struct gr_ring *ring) {
    return ring->config.memory == GR_MEMORY_HOST || ring->config.memory == GR_MEMORY_PINNED;
}

struct life {
    bool is_read;
    uint8_t epoch[16];
    bool lives;    /* whether any process is in it */
    bool durables; /* whether it has subscriptions that the next ring takes over */
};

static gpuring_status read_life(int fd, const char *path, struct life *life,
                                gpuring_error *error) {
    char text[256];
    const char *why = NULL;
    struct gr_ring *copy = gr_read(fd, &why, text, sizeof text);
    *life = (struct life){0};
    if (!copy && !why) return gh_fail_system(error, errno, path);
    if (!copy) {
        life->lives = gh_is_in_use(fd);
        return GPURING_OK;
    }
    life->is_read = true;
    memcpy(life->epoch, copy->head->epoch, sizeof life->epoch);
    /* Nobody can join a GPU ring whose creator is dead, so a handle without a peer does not count. */
    life->lives = gh_is_kept(copy) || (is_on_host(copy) && gr_attached(copy)) ||
                  gh_live_peers(copy) != 0;
    life->durables = gh_has_durable(copy);
    gr_detach(copy);
    return GPURING_OK;
}

static gpuring_status look_at(const struct gh_named *named, struct life *life,
                              gpuring_error *error) {
    const int fd = gh_open(named, O_RDONLY, error);
    if (fd < 0) return error->status;
    const gpuring_status status = read_life(fd, named->path, life, error);
    close(fd);
    return status;
}

static bool is_same(const struct life *one, const struct life *other) {
    return one->is_read == other->is_read && one->lives == other->lives &&
           memcmp(one->epoch, other->epoch, sizeof one->epoch) == 0;
}

/* Removes the slots that are to go. with_own: also `own`, if there is one. */
static gpuring_status remove_slots(struct gh_beside *beside, const char *own, bool with_own,
                                   gpuring_error *error) {
    for (uint32_t k = 0; k < beside->n; k++) {
        struct gh_beside_file *file = &beside->file[k];
        if (!file->goes || strcmp(file->path, own) == 0) continue;
        const int gone = gh_remove_slots(file->path);
        if (gone < 0) return gh_fail_system(error, errno, file->path);
        file->gone = gone == 1;
    }
    if (with_own && *own && gh_remove_slots(own) < 0) return gh_fail_system(error, errno, own);
    return GPURING_OK;
}

/* Under the lock of its name. */
static gpuring_status remove_dead(const char *name, const struct gh_named *named, int fd,
                                  const struct life *before, struct gh_beside *beside,
                                  const char *own, bool keep_durable, bool *removed,
                                  gpuring_error *error) {
    struct life life;
    const int still = gh_is_still(named);
    if (still < 0) return gh_fail_system(error, errno, named->path);
    if (!still) return GPURING_OK;
    /* Whoever has attached since the first look is seen by this one; see gh_attach_header. */
    gpuring_status status = read_life(fd, named->path, &life, error);
    if (status != GPURING_OK || !is_same(&life, before)) return status;
    GR_FAULT("tidy: locked");
    status = remove_slots(beside, own, true, error);
    GR_FAULT("tidy: slots removed");
    if (status != GPURING_OK || (keep_durable && life.durables)) return status;
    status = gh_remove_asides(name, error); /* first: so they never outlive it */
    GR_FAULT("tidy: asides removed");
    if (status != GPURING_OK) return status;
    if (unlink(named->path) != 0 && errno != ENOENT)
        return gh_fail_system(error, errno, named->path);
    GR_FAULT("tidy: removed");
    *removed = true;
    if (life.is_read) gh_tidy_sockets_of(life.epoch);
    return GPURING_OK;
}

static gpuring_status remove_ring(const char *name, const struct gh_named *named,
                                  struct gh_beside *beside, const uint8_t *wanted,
                                  bool keep_durable, bool *removed, gpuring_error *error) {
    struct life life;
    char own[GH_PATH] = "";
    gpuring_status status = look_at(named, &life, error);
    GR_FAULT("tidy: looked");
    if (status != GPURING_OK) return status;
    if (wanted && !(life.is_read && memcmp(life.epoch, wanted, sizeof life.epoch) == 0))
        return GPURING_OK;
    if (life.is_read) gh_slots_path(name, life.epoch, own);
    if (life.lives) /* of another version: which slots are its is unknown */
        return life.is_read ? remove_slots(beside, own, false, error) : GPURING_OK;
    const int fd = gh_open(named, O_RDWR, error);
    if (fd < 0) return error->status;
    const int locked = gh_lock(fd, GR_NAME_BYTE);
    if (locked < 0) status = gh_fail_system(error, errno, named->path);
    else if (locked)
        status = remove_dead(name, named, fd, &life, beside, own, keep_durable, removed, error);
    gh_unlock_and_close(fd, GR_NAME_BYTE);
    return status;
}

static bool changed_meanwhile(const gpuring_error *error) {
    return error->status == GPURING_NOT_PERMITTED ||
           (error->status == GPURING_SYSTEM &&
            (error->sys_errno == ENOENT || error->sys_errno == EACCES ||
             error->sys_errno == EPERM));
}

gpuring_status gh_remove_left(const char *name, struct gh_beside *beside, const uint8_t *wanted,
                              bool keep_durable, bool *removed, gpuring_error *error) {
    char path[GH_PATH];
    struct gh_named named;
    gpuring_status status;
    *removed = false;
    /* This look must come before the one at the header. */
    for (uint32_t k = 0; k < beside->n; k++) {
        struct gh_beside_file *file = &beside->file[k];
        file->goes = gh_is_left(file->path) && !gh_is_kept_aside(name, file->path);
    }
    GR_FAULT("tidy: strays found");
    gh_header_path(name, path);
    if (gh_look(&named, path) == 0) {
        status = gh_is_own(&named)
                     ? remove_ring(name, &named, beside, wanted, keep_durable, removed, error)
                     : remove_slots(beside, "", false, error);
        gh_look_away(&named);
    } else
        status = errno == ENOENT ? remove_slots(beside, "", false, error)
                                 : gh_fail_system(error, errno, path);
    return status != GPURING_OK && changed_meanwhile(error) ? GPURING_OK : status;
}

static gpuring_status remove_all(const char *name, const uint8_t *epoch, bool keep_durable,
                                 bool *removed, gpuring_error *error) {
    struct gh_beside beside;
    *removed = false;
    if (gh_list_beside(name, &beside) != 0) return gh_fail_system(error, errno, GH_SHM);
    const gpuring_status status = gh_remove_left(name, &beside, epoch, keep_durable, removed, error);
    gh_end_beside(&beside);
    return status;
}

gpuring_status gh_remove_dead(const char *name, const uint8_t *epoch, bool *removed,
                              gpuring_error *error) {
    return remove_all(name, epoch, false, removed, error);
}

gpuring_status gh_make_room(const char *name, gpuring_error *error) {
    bool removed;
    return remove_all(name, NULL, true, &removed, error);
}

bool gh_goes_with_the_last(const char *name, struct gr_ring *ring) {
    struct gr_watermark mark;
    struct stat ours;
    char path[GH_PATH];
    gh_header_path(name, path);
    if (ring->lock_fd < 0 || fstat(ring->lock_fd, &ours) != 0 || /* it was left before */
        gh_has_name(path, ours.st_dev, ours.st_ino) != 1)
        return false;
    if (gh_is_kept(ring) || gr_link(ring, &mark) || gh_has_durable(ring)) return false;
    /* gh_remove_dead counts the peers of a GPU ring, but not those who could still join it. */
    return is_on_host(ring) || !gr_attached(ring);
}

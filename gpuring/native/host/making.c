/* How the names of a ring come and go. Slots get their name before their header does, and lose it
 * before the header does. So what a killed process leaves is always found (leftovers.h). */
#define _GNU_SOURCE
#include "making.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/header.h"
#include "../core/lock.h"
#include "locks.h"
#include "named.h"
#include "room.h"
#include "slots.h"

int gh_unnamed(uint32_t mode, gpuring_error *error) {
    int fd;
    do fd = open(GH_SHM, O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR))
        gh_fail(error, GPURING_FAILED,
                GH_SHM " cannot hold files without a name (O_TMPFILE); rings need a tmpfs there");
    else if (fd < 0) gh_fail_system(error, errno, GH_SHM);
    /* The umask has restricted the mode. */
    else if (fchmod(fd, mode) != 0) {
        gh_fail_system(error, errno, GH_SHM);
        close(fd);
        fd = -1;
    }
    return fd;
}

int gh_give_name(int fd, const char *path) {
    char at[64];
    snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, at, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Mapped through another descriptor: a mapping keeps its own one open, and the lock must end when
 * that of the maker is closed. */
static void *map_again(int fd, uint64_t nbytes) {
    const int again = gr_again(fd, O_RDWR);
    if (again < 0) return NULL;
    void *base = gh_map(again, nbytes);
    const int why = errno;
    close(again);
    errno = why;
    return base;
}

/* 0, or errno. */
static int fill(int fd, const char *path, uint64_t nbytes, void **base) {
    int why = posix_fallocate(fd, 0, (off_t)nbytes);
    if (why) return why;
    if (gh_lock(fd, GR_NAME_BYTE) < 0) return errno;
    *base = map_again(fd, nbytes);
    if (!*base) return errno;
    GR_FAULT("create: slots made");
    if (gh_give_name(fd, path) == 0) return 0;
    why = errno;
    munmap(*base, nbytes);
    return why;
}

gpuring_status gh_make_slots(const char *name, const uint8_t epoch[16], uint32_t mode,
                             uint32_t slots, uint64_t slot_nbytes, void **base, int *making,
                             gpuring_error *error) {
    const uint64_t nbytes = slots * slot_nbytes;
    char path[GH_PATH];
    gh_slots_path(name, epoch, path);
    *making = gh_unnamed(mode, error);
    if (*making < 0)
        return error->status == GPURING_SYSTEM
                   ? gh_fail_for_room(error, name, error->sys_errno, "the slots", nbytes)
                   : error->status;
    const int why = fill(*making, path, nbytes, base);
    GR_FAULT("create: slots named");
    if (why == 0) return GPURING_OK;
    gh_unlock_and_close(*making, GR_NAME_BYTE);
    *making = -1;
    return gh_fail_for_room(error, name, why, "the slots", nbytes);
}

/* ---- names go -------------------------------------------------------------------------------- */

int gh_remove_file(const char *path, uint32_t owner) {
    struct stat found;
    if (lstat(path, &found) != 0) return errno == ENOENT || errno == EACCES ? 0 : -1;
    if (!S_ISREG(found.st_mode) || found.st_uid != owner) return 0;
    if (unlink(path) == 0) return 1;
    return errno == ENOENT || errno == EACCES || errno == EPERM ? 0 : -1;
}

bool gh_has_durable(const struct gr_ring *ring) {
    for (uint32_t u = 0; u < ring->max_subscriptions; u++)
        if (policy_of(gr_load_acquire(&ring->sub[u].word)) & GR_DURABLE) return true;
    return false;
}

/* Removes a name of the header, if it is one. 1: it was. */
static int remove_name(const struct gr_ring *ring, const char *path) {
    const int has = gh_has_name(path, ring->lock_dev, ring->lock_ino);
    return has == 1 && unlink(path) != 0 && errno != ENOENT ? -1 : has;
}

/* A ring that has lost its name may have another one (debts.h). */
static int remove_aside(const char *name, const struct gr_ring *ring) {
    char begin[GH_PATH], path[2 * GH_PATH];
    const int n = snprintf(begin, sizeof begin, "gpuring.%s+", name);
    DIR *folder = opendir(GH_SHM);
    int removed = 0;
    if (!folder) return 0;
    for (struct dirent *entry; removed == 0 && (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, begin, (size_t)n) != 0) continue;
        snprintf(path, sizeof path, GH_SHM "/%s", entry->d_name);
        removed = remove_name(ring, path);
    }
    closedir(folder);
    return removed;
}

gpuring_status gh_remove_own(const char *name, const uint8_t epoch[16], struct gr_ring *ring,
                             gpuring_error *error) {
    char path[GH_PATH];
    struct stat ours;
    if (ring->lock_fd < 0 || fstat(ring->lock_fd, &ours) != 0) return GPURING_OK;
    gh_slots_path(name, epoch, path);
    if (gh_remove_file(path, ours.st_uid) < 0) return gh_fail_system(error, errno, path);
    GR_FAULT("close: slots removed");
    if (gh_has_durable(ring)) return GPURING_OK;
    gr_retire(ring);
    gh_lock_within(ring->lock_fd, GR_NAME_BYTE, GH_NAME_PATIENCE_NS);
    GR_FAULT("close: locked");
    gh_header_path(name, path);
    int removed = remove_name(ring, path);
    if (removed == 0) removed = remove_aside(name, ring);
    const int why = errno;
    GR_FAULT("close: removed");
    gh_unlock(ring->lock_fd, GR_NAME_BYTE);
    return removed < 0 ? gh_fail_system(error, why, path) : GPURING_OK;
}

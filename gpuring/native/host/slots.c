/* The slots of a ring in host memory. */
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../core/atomics.h"
#include "named.h"
#include "room.h"

void *gh_map(int fd, uint64_t nbytes) {
    struct stat now;
    if (fstat(fd, &now) != 0) return NULL;
    if ((uint64_t)now.st_size < nbytes) {
        errno = 0;
        return NULL;
    }
    void *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}

static gpuring_status checked(const char *name, const struct gh_named *named, uint32_t owner,
                              uint32_t slots, uint64_t slot_nbytes, gpuring_error *error) {
    char words[GH_WORDS];
    const char *odd = gh_odd(named, words);
    if (*odd)
        return gh_fail(error, GPURING_INCOMPATIBLE, "ring '%s': its slots %s are %s", name,
                       named->path, odd);
    if (named->stat.st_uid != owner)
        return gh_fail(error, GPURING_INCOMPATIBLE,
                       "ring '%s' belongs to user %u, its slots %s to user %u: somebody else put "
                       "them there",
                       name, owner, named->path, named->stat.st_uid);
    if ((uint64_t)named->stat.st_size != slots * slot_nbytes)
        return gh_fail(error, GPURING_INCOMPATIBLE,
                       "ring '%s': its slots %s have %lld bytes, not %u \xc3\x97 %llu", name,
                       named->path, (long long)named->stat.st_size, slots,
                       (unsigned long long)slot_nbytes);
    return GPURING_OK;
}

gpuring_status gh_open_slots(const char *name, const uint8_t epoch[16], uint32_t owner,
                             uint32_t slots, uint64_t slot_nbytes, void **base, int *fd,
                             gpuring_error *error) {
    const uint64_t nbytes = slots * slot_nbytes;
    char path[GH_PATH];
    struct gh_named named;
    gh_slots_path(name, epoch, path);
    if (gh_look(&named, path) != 0)
        return errno == ENOENT
                   ? gh_fail(error, GPURING_NOT_FOUND, "its slots %s are gone", path)
                   : gh_fail_for_room(error, name, errno, "its slots", nbytes);
    gpuring_status status = checked(name, &named, owner, slots, slot_nbytes, error);
    *fd = status == GPURING_OK ? gh_open(&named, O_RDWR, error) : -1;
    gh_look_away(&named);
    if (*fd < 0)
        return error->status == GPURING_SYSTEM
                   ? gh_fail_for_room(error, name, error->sys_errno, "its slots", nbytes)
                   : error->status;
    GR_FAULT("slots: opened");
    *base = gh_map(*fd, nbytes);
    if (*base) return GPURING_OK;
    const int why = errno;
    close(*fd);
    if (why == 0) /* the size is looked at once more */
        return gh_fail(error, GPURING_INCOMPATIBLE, "ring '%s': its slots %s became shorter", name, path);
    return gh_fail_for_room(error, name, why, "its slots", nbytes);
}

/* What to say when the system gives no memory, or no room in /dev/shm. */
#define _GNU_SOURCE
#include "room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "names.h"

enum { AMOUNT = 32 };

/* A size in the largest unit that is not larger than it. */
static const char *amount(char words[AMOUNT], uint64_t nbytes) {
    static const char *const units[] = {"GiB", "MiB", "KiB"};
    for (int k = 0; k < 3; k++) {
        const uint64_t most = UINT64_C(1) << (30 - 10 * k);
        if (nbytes < most) continue;
        snprintf(words, AMOUNT, "%.1f %s", (double)nbytes / (double)most, units[k]);
        return words;
    }
    snprintf(words, AMOUNT, "%llu bytes", (unsigned long long)nbytes);
    return words;
}

static bool limit_of(int resource, uint64_t *limit) {
    struct rlimit found;
    if (getrlimit((__rlimit_resource_t)resource, &found) != 0 || found.rlim_cur == RLIM_INFINITY)
        return false;
    *limit = found.rlim_cur;
    return true;
}

static gpuring_status no_space(gpuring_error *error, const char *name, const char *what,
                               uint64_t nbytes) {
    char needed[AMOUNT], free[AMOUNT];
    struct statvfs room = {0};
    const bool known = statvfs(GH_SHM, &room) == 0;
    if (known && room.f_files && !room.f_favail)
        return gh_fail(error, GPURING_NO_ROOM,
                       "ring '%s': no space in " GH_SHM " for %s: it has as many files as it can "
                       "hold. Remove what the dead have left (gpuring clean) or other files there, or "
                       "mount it with more (nr_inodes=)",
                       name, what);
    return gh_fail(error, GPURING_NO_ROOM,
                   "ring '%s': no space in " GH_SHM " for %s: %s are needed, %s are free. Use fewer "
                   "or smaller slots, remove what the dead have left (gpuring clean), or enlarge it "
                   "(mount -o remount,size=\xe2\x80\xa6 " GH_SHM ", or docker run --shm-size=\xe2\x80\xa6)",
                   name, what, amount(needed, nbytes),
                   amount(free, (uint64_t)room.f_bavail * room.f_frsize));
}

gpuring_status gh_fail_for_room(gpuring_error *error, const char *name, int sys_errno,
                                const char *what, uint64_t nbytes) {
    char size[AMOUNT], most[AMOUNT];
    uint64_t limit;
    gpuring_status status;
    if ((sys_errno == EACCES || sys_errno == EPERM) &&
        faccessat(AT_FDCWD, GH_SHM, W_OK | X_OK, AT_EACCESS) != 0)
        status = gh_fail(error, GPURING_NOT_PERMITTED,
                         "ring '%s': this process, of user %u, may make no files in " GH_SHM
                         ". As root: chmod 1777 " GH_SHM,
                         name, geteuid());
    else if (sys_errno == EROFS)
        status = gh_fail(error, GPURING_NO_ROOM,
                         "ring '%s': " GH_SHM " is read-only here, and all processes of a ring write",
                         name);
    else if (sys_errno == EFBIG && limit_of(RLIMIT_FSIZE, &limit))
        status = gh_fail(error, GPURING_NO_ROOM,
                         "ring '%s': %s, %s, cannot be made: files of this process have at most %s "
                         "(RLIMIT_FSIZE). Raise it with ulimit -f, or LimitFSIZE= of the service",
                         name, what, amount(size, nbytes), amount(most, limit));
    else if (sys_errno == ENOMEM && limit_of(RLIMIT_AS, &limit))
        status = gh_fail(error, GPURING_NO_ROOM,
                         "ring '%s': %s, %s, cannot be mapped: this process may have %s of address "
                         "space (RLIMIT_AS). Raise it with ulimit -v, or LimitAS= of the service",
                         name, what, amount(size, nbytes), amount(most, limit));
    else if (sys_errno == ENOMEM)
        status = gh_fail(error, GPURING_NO_ROOM,
                         "ring '%s': %s, %s, cannot be mapped: there is no memory left", name, what,
                         amount(size, nbytes));
    else if (sys_errno == ENOSPC || sys_errno == EFBIG) status = no_space(error, name, what, nbytes);
    else {
        char of[GH_MAX_NAME + 64];
        snprintf(of, sizeof of, "ring '%s', %s", name, what);
        return gh_fail_system(error, sys_errno, of);
    }
    error->sys_errno = sys_errno;
    return status;
}

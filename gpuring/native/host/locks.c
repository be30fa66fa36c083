/* Bytes of a ring's files that processes hold locked. */
#define _GNU_SOURCE
#include "locks.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "../core/bell.h"
#include "../core/lock.h"

int gh_lock(int fd, int byte) {
    if (gr_lock_byte(fd, F_WRLCK, byte) == 0) return 1;
    return errno == EAGAIN || errno == EACCES ? 0 : -1;
}

int gh_lock_within(int fd, int byte, int64_t patience_ns) {
    const int64_t deadline = gr_now_ns() + patience_ns;
    const struct timespec nap = {.tv_nsec = 1000000};
    int locked;
    while ((locked = gh_lock(fd, byte)) == 0 && gr_now_ns() < deadline) {
        GR_FAULT("lock: waits");
        nanosleep(&nap, NULL);
    }
    return locked;
}

int gh_unlock(int fd, int byte) { return gr_lock_byte(fd, F_UNLCK, byte); }

void gh_unlock_and_close(int fd, int byte) {
    gh_unlock(fd, byte);
    close(fd);
}

/* A lock that cannot be asked for counts as held, so nothing is taken away then. */
static bool is_locked(int fd, short like, int first, int n) {
    struct flock lock = {.l_type = like, .l_whence = SEEK_SET, .l_start = first, .l_len = n};
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* A tracer's lock lies behind that of the name, and does not count. */
bool gh_name_is_locked(int fd) { return is_locked(fd, F_RDLCK, GR_NAME_BYTE, 1); }
bool gh_is_in_use(int fd) { return is_locked(fd, F_WRLCK, 0, GR_NAME_BYTE); }

/* The file that has a name now. */
#define _GNU_SOURCE
#include "named.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int gh_look(struct gh_named *named, const char *path) {
    snprintf(named->path, sizeof named->path, "%s", path);
    do named->place = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    while (named->place < 0 && errno == EINTR);
    if (named->place < 0) return -1;
    if (fstat(named->place, &named->stat) == 0) return 0;
    const int error = errno;
    gh_look_away(named);
    errno = error;
    return -1;
}

void gh_look_away(struct gh_named *named) {
    if (named->place >= 0) close(named->place);
    named->place = -1;
}

const char *gh_odd(const struct gh_named *named, char words[GH_WORDS]) {
    switch (named->stat.st_mode & S_IFMT) {
    case S_IFDIR: return "a directory";
    case S_IFLNK: return "a symbolic link";
    case S_IFIFO: return "a fifo";
    case S_IFSOCK: return "a socket";
    case S_IFCHR:
    case S_IFBLK: return "a device";
    default: break;
    }
    if (named->stat.st_nlink <= 1) return "";
    snprintf(words, GH_WORDS, "a file with %llu names", (unsigned long long)named->stat.st_nlink);
    return words;
}

bool gh_is_own(const struct gh_named *named) {
    return S_ISREG(named->stat.st_mode) && named->stat.st_uid == geteuid();
}

const char *gh_owner(const struct gh_named *named, char words[GH_WORDS]) {
    snprintf(words, GH_WORDS, "user %u (mode %04o)", named->stat.st_uid,
             named->stat.st_mode & 07777u);
    return words;
}

int gh_has_name(const char *path, dev_t device, ino_t inode) {
    struct stat now;
    if (lstat(path, &now) != 0) return errno == ENOENT ? 0 : -1;
    return now.st_dev == device && now.st_ino == inode;
}

int gh_open(const struct gh_named *named, int flags, gpuring_error *error) {
    char at[64], owner[GH_WORDS];
    snprintf(at, sizeof at, "/proc/self/fd/%d", named->place);
    int fd;
    do fd = open(at, flags | O_NONBLOCK | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0) return fd;
    const int why = errno;
    if (why == EACCES || why == EPERM) {
        gh_fail(error, GPURING_NOT_PERMITTED,
                "%s belongs to %s. This process, of user %u, may not %s it. The user who creates a "
                "ring says with `mode` who may: 0660 lets that user's group in, and 0666 "
                "everybody",
                named->path, gh_owner(named, owner), geteuid(),
                (flags & O_ACCMODE) == O_RDONLY ? "read" : "read and write");
        error->sys_errno = why;
    } else gh_fail_system(error, why, named->path);
    return -1;
}

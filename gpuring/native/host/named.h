/* The file that has a name now. It stays this file, whatever becomes of the name.
 *
 * Anybody may put anything under any name in /dev/shm. So the type of a file is checked before it is
 * opened (O_PATH): no FIFO blocks, no device starts, no link is followed.
 */
#pragma once

#include <sys/stat.h>

#include "names.h"

struct gh_named {
    char path[GH_PATH];
    int place; /* -1: it was closed */
    struct stat stat;
};

/* 0, or -1: errno. ENOENT: nothing has the name. */
int gh_look(struct gh_named *named, const char *path);
void gh_look_away(struct gh_named *named);

enum { GH_WORDS = 64 };
/* Says what it is, if it is not a regular file with this name alone. Empty if it is such a file. */
const char *gh_odd(const struct gh_named *named, char words[GH_WORDS]);
/* Whether it is a file of this process's own user. Root, too, leaves those of others alone. */
bool gh_is_own(const struct gh_named *named);
/* The user id and the mode, in words. */
const char *gh_owner(const struct gh_named *named, char words[GH_WORDS]);
/* Whether a path means this file now. The caller has it open, so its inode is not a later one's.
 * -1: errno. */
int gh_has_name(const char *path, dev_t device, ino_t inode);
/* The same for the file that has been looked at, and its own name. */
static inline int gh_is_still(const struct gh_named *named) {
    return gh_has_name(named->path, named->stat.st_dev, named->stat.st_ino);
}

/* The file, close-on-exec. -1 with an error: GPURING_NOT_PERMITTED or GPURING_SYSTEM. */
int gh_open(const struct gh_named *named, int flags, gpuring_error *error);

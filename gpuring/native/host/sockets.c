/* Sockets that killed processes have left. */
#define _GNU_SOURCE
#include "sockets.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Whether nobody listens at a socket. This holds in any namespace. */
static bool is_stale(int folder, const char *name) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int n = snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof at.sun_path) return false;
    const int ours = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (ours < 0) return false;
    const bool refused =
        connect(ours, (const struct sockaddr *)&at, sizeof at) != 0 && errno == ECONNREFUSED;
    close(ours);
    return refused;
}

/* How many entries stay. */
static int tidy(DIR *folder, bool only_look) {
    const int at = dirfd(folder);
    int stay = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat found;
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (fstatat(at, name, &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(found.st_mode) ||
            !is_stale(at, name)) {
            stay++;
        } else if (!only_look && unlinkat(at, name, 0) != 0 && errno != ENOENT) stay++;
    }
    return stay;
}

bool gh_tidy_sockets(const char *path, bool only_look) {
    struct stat found;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    DIR *folder = fstat(fd, &found) == 0 && found.st_uid == geteuid() ? fdopendir(fd) : NULL;
    if (!folder) {
        close(fd);
        return false;
    }
    const int stay = tidy(folder, only_look);
    closedir(folder);
    return only_look ? stay == 0 : rmdir(path) == 0;
}

bool gh_tidy_sockets_of(const uint8_t epoch[16]) {
    char path[GH_PATH];
    int n = snprintf(path, sizeof path, GH_SHM "/gpuring+");
    for (int k = 0; k < 16; k++) n += snprintf(path + n, sizeof path - (size_t)n, "%02x", epoch[k]);
    return gh_tidy_sockets(path, false);
}

/* The files beside the header of a ring. */
#define _GNU_SOURCE
#include "beside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "locks.h"
#include "making.h"
#include "named.h"

#define ASIDE ".header"
enum { HEX = 32 };

static bool is_behind(const char *text) {
    return strspn(text, "0123456789abcdef") == HEX &&
           (!text[HEX] || strcmp(text + HEX, ASIDE) == 0);
}

static struct gh_beside_file *add(struct gh_beside *beside) {
    const size_t nbytes = (beside->n + 1) * sizeof *beside->file;
    struct gh_beside_file *file = realloc(beside->file, nbytes);
    if (!file) return NULL;
    beside->file = file;
    memset(&file[beside->n], 0, sizeof *file);
    return &file[beside->n++];
}

int gh_list_beside(const char *name, struct gh_beside *beside) {
    char begin[GH_PATH];
    const int n = snprintf(begin, sizeof begin, "gpuring.%s+", name);
    DIR *folder = opendir(GH_SHM);
    int why = 0;
    *beside = (struct gh_beside){0};
    if (!folder) return errno == ENOENT || errno == EACCES ? 0 : -1;
    for (struct dirent *entry; !why && (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, begin, (size_t)n) != 0 || !is_behind(entry->d_name + n)) continue;
        struct gh_beside_file *file = add(beside);
        if (file) snprintf(file->path, sizeof file->path, GH_SHM "/%.200s", entry->d_name);
        else why = ENOMEM;
    }
    closedir(folder);
    if (!why) return 0;
    gh_end_beside(beside);
    errno = why;
    return -1;
}

void gh_end_beside(struct gh_beside *beside) {
    free(beside->file);
    *beside = (struct gh_beside){0};
}

void gh_aside_path(const char *name, const uint8_t number[16], char path[GH_PATH]) {
    gh_slots_path(name, number, path);
    strcat(path, ASIDE);
}

bool gh_is_aside(const char *path) {
    const size_t n = strlen(path);
    return n > strlen(ASIDE) && strcmp(path + n - strlen(ASIDE), ASIDE) == 0;
}

int64_t gh_owner_of(const char *path) {
    struct stat found;
    if (lstat(path, &found) == 0) return found.st_uid;
    return errno == ENOENT ? -1 : -2;
}

bool gh_is_left(const char *path) {
    gpuring_error error;
    struct gh_named named;
    bool left = false;
    if (gh_look(&named, path) != 0) return false;
    if (gh_is_own(&named)) {
        const int fd = gh_open(&named, O_RDONLY, &error);
        left = fd >= 0 && !gh_name_is_locked(fd);
        if (fd >= 0) close(fd);
    }
    gh_look_away(&named);
    return left;
}

int gh_remove_slots(const char *path) { return gh_remove_file(path, geteuid()); }

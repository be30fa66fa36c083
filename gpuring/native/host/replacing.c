/* Which ring makes way for a new one of its name. */
#define _GNU_SOURCE
#include "replacing.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "../core/handles.h"
#include "../core/header.h"
#include "../core/lock.h"
#include "leftovers.h"
#include "locks.h"
#include "text.h"

/* What has the name, in words, if it can be opened. */
static void add_what(struct gh_text *text, const char *name, int fd, const char **step) {
    char why_text[256];
    const char *why = NULL;
    struct gr_ring *copy = gr_read(fd, &why, why_text, sizeof why_text);
    const int failed = errno;
    if (copy) {
        const uint32_t live = gh_live_peers(copy);
        if (gr_is_creator(copy))
            *step = "create it with `replace`, which closes it for all who use it, or close the one "
                    "that this process has";
        gh_add(text, "ring '%s' exists: created by pid %llu (%s), %u living peer%s", name,
               (unsigned long long)copy->head->creator_pid,
               gr_is_creator(copy)      ? "this process"
               : gr_creator_alive(copy) ? "alive"
                                        : "dead",
               live, live == 1 ? "" : "s");
        gr_detach(copy);
    } else if (why && failed == ESTALE) {
        gh_add(text, "ring '%s' existed a moment ago", name);
        *step = "or try again";
    } else if (why) {
        gh_add(text, "ring '%s' is in use, and this version of gpuring cannot read it: %s", name, why);
        *step = "or end the processes that use it";
    } else {
        gpuring_error error;
        gh_fail_system(&error, failed, "its header");
        gh_add(text, "ring '%s' exists and cannot be read: %s", name, error.text);
    }
}

gpuring_status gh_taken(const char *name, const struct gh_named *named, gpuring_error *error) {
    char room[sizeof error->text], words[GH_WORDS];
    struct gh_text text = gh_begin_text(room, sizeof room);
    const char *step = "create it with `replace`, which closes it for all who use it, or attach to it in a "
                       "program";
    const char *odd = gh_odd(named, words);
    if (*odd) {
        gh_add(&text, "%s is %s, and no ring", named->path, odd);
        step = "or remove that";
    } else if (!gh_is_own(named)) {
        gh_add(&text, "ring '%s' exists and belongs to %s", name, gh_owner(named, words));
        step = "or ask that user to remove it";
    } else {
        const int fd = gh_open(named, O_RDONLY, error);
        if (fd >= 0) add_what(&text, name, fd, &step);
        else gh_add(&text, "ring '%s' exists and cannot be read: %s", name, error->text);
        if (fd >= 0) close(fd);
    }
    return gh_fail(error, GPURING_EXISTS, "%s. Choose another name, %s", room, step);
}

/* Whether what has the name is a ring that its creator has closed. */
static bool was_closed(const struct gh_named *named) {
    gpuring_error error;
    char text[256];
    const char *why;
    const int fd = gh_open(named, O_RDONLY, &error);
    if (fd < 0) return false;
    struct gr_ring *copy = gr_read(fd, &why, text, sizeof text);
    close(fd);
    const bool closed = copy && gr_load_acquire(&copy->head->closed);
    if (copy) gr_detach(copy);
    return closed;
}

gpuring_status gh_may_replace(const char *name, const struct gh_named *named,
                              gpuring_replace replace, gpuring_error *error) {
    char words[GH_WORDS];
    const char *odd = gh_odd(named, words);
    if (replace != GPURING_REPLACE_ANY) {
        const bool fits = !*odd && gh_is_own(named) &&
                          (replace == GPURING_REPLACE_DEAD || was_closed(named));
        return fits ? GPURING_OK : gh_taken(name, named, error);
    }
    if (gh_is_own(named)) return GPURING_OK;
    if (*odd)
        return gh_fail(error, GPURING_INCOMPATIBLE, "%s is %s, and no ring", named->path, odd);
    return gh_fail(error, GPURING_NOT_PERMITTED,
                   "ring '%s' belongs to %s: only that user can replace or remove it", name,
                   gh_owner(named, words));
}

/* Whether the ring's creator is dead, or has closed it. If the header does not say who that is,
 * because it is damaged or of another version, the question is whether no process uses the ring.
 * -1: errno. */
static int is_abandoned(int fd) {
    char text[256];
    const char *why = NULL;
    struct gr_ring *copy = gr_read(fd, &why, text, sizeof text);
    if (!copy && !why) return -1;
    if (!copy) /* ESTALE: nobody can attach any more, and somebody was removing its name */
        return errno == ESTALE || !gh_is_in_use(fd);
    const bool kept = gh_is_kept(copy);
    gr_detach(copy);
    return !kept;
}

gpuring_status gh_check_abandoned(const char *name, const struct gh_named *named, int fd,
                                  gpuring_error *error) {
    const int abandoned = is_abandoned(fd);
    if (abandoned < 0) return gh_fail_system(error, errno, named->path);
    return abandoned ? GPURING_OK : gh_taken(name, named, error);
}

gpuring_status gh_make_way(const char *name, gpuring_replace replace, gpuring_error *error) {
    struct gh_named named;
    char path[GH_PATH];
    gh_header_path(name, path);
    if (gh_look(&named, path) != 0)
        return errno == ENOENT ? gh_make_room(name, error) : gh_fail_system(error, errno, path);
    gpuring_status status = gh_may_replace(name, &named, replace, error);
    if (status == GPURING_OK && replace == GPURING_REPLACE_DEAD) {
        const int fd = gh_open(&named, O_RDONLY, error);
        status = fd < 0 ? error->status : gh_check_abandoned(name, &named, fd, error);
        if (fd >= 0) close(fd);
    }
    gh_look_away(&named);
    return status == GPURING_OK ? gh_make_room(name, error) : status;
}

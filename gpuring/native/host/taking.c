/* The name of a ring: who gets it, and how it is taken away. */
#define _GNU_SOURCE
#include "taking.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../core/handles.h"
#include "../core/header.h"
#include "../core/lock.h"
#include "../core/members.h"
#include "beside.h"
#include "debts.h"
#include "leftovers.h"
#include "locks.h"
#include "making.h"
#include "named.h"
#include "replacing.h"
#include "sockets.h"

/* ---- from one file to another ---------------------------------------------------------------- */

/* The C library of old systems has no renameat2, and the kernel has had it since 3.15. */
enum { NO_REPLACE = 1, EXCHANGE = 2 };

/* 1: done. 0: the system does not have the call, as in a sandbox. -1: errno. */
static int renamed(const char *one, const char *other, unsigned how) {
    if (syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, how) == 0) return 1;
    return errno == EINVAL || errno == ENOSYS ? 0 : -1;
}

static gpuring_status tidied(const char *spare, const char *path, gpuring_error *error) {
    return gh_fail(error, GPURING_FAILED,
                   "%s was removed while this process was about to give it the name %s. Create the "
                   "ring again",
                   spare, path);
}

/* Gives the header with the spare name the ring's name in one step, whatever has that name now.
 * keep: the file that has it now gets the spare name. *done: false if no file has the spare name
 * any more. */
static gpuring_status rename_over(const char *spare, const char *path, bool keep, bool *done,
                                  gpuring_error *error) {
    int result = keep ? renamed(spare, path, EXCHANGE) : 0;
    if (result == 0) result = rename(spare, path) == 0 ? 1 : -1;
    *done = result > 0;
    if (*done) return GPURING_OK;
    if (errno != ENOENT) return gh_fail_system(error, errno, path);
    return gh_owner_of(spare) == -1 ? tidied(spare, path, error) : GPURING_OK;
}

/* The same if nothing has its name. */
static gpuring_status rename_if_free(const char *spare, const char *path, bool *done,
                                     gpuring_error *error) {
    int result = renamed(spare, path, NO_REPLACE);
    /* The system cannot exchange names, so the header has two until the spare one is removed. */
    if (result == 0) result = link(spare, path) == 0 ? 1 : -1;
    *done = result > 0;
    if (*done || errno == EEXIST) return GPURING_OK;
    return errno == ENOENT ? tidied(spare, path, error) : gh_fail_system(error, errno, path);
}

/* ---- names go -------------------------------------------------------------------------------- */

enum end { KEEP_OPEN, CLOSE, HAND_ON };

struct taking {
    const char *name;
    gpuring_replace replace;
    enum end end;
    struct gr_ring *ring; /* the new one, with HAND_ON */
    const char *spare;    /* its name so far, or NULL */
};

struct taken {
    bool is_read; /* `epoch` is that of the ring */
    uint8_t epoch[16];
    bool keep;    /* its header is to stay findable */
};

/* Makes sure that nobody attaches any more. */
static gpuring_status retire(int fd, const char *path, gpuring_error *error) {
    char text[256];
    const char *why = NULL;
    struct gr_ring *ring = gr_attach(fd, &why, text, sizeof text);
    if (!ring) return why ? GPURING_OK : gh_fail_system(error, errno, path);
    gr_retire(ring);
    gr_detach(ring);
    return GPURING_OK;
}

/* Closes the ring, unless it is to stay open. If this process is killed then, the next one goes on. */
static gpuring_status end(const struct taking *taking, int fd, const char *path,
                          struct taken *of, gpuring_error *error) {
    char text[256];
    const char *why = NULL;
    gpuring_status status = GPURING_OK;
    struct gr_ring *ring = gr_attach(fd, &why, text, sizeof text);
    if (!ring) return why ? GPURING_OK : gh_fail_system(error, errno, path);
    of->is_read = true;
    memcpy(of->epoch, ring->head->epoch, sizeof of->epoch);
    if (taking->end != KEEP_OPEN) gr_close(ring);
    GR_FAULT("take: closed");
    if (taking->end == HAND_ON)
        status = gh_carry_over(taking->name, ring, taking->ring, &of->keep, error);
    gr_detach(ring);
    return status;
}

/* Removes the slots of this epoch, and its sockets. If it is not known, removes all slots of the
 * name except those that somebody is making just now. */
static gpuring_status remove_slots(const char *name, const struct taken *of,
                                   gpuring_error *error) {
    struct gh_beside beside;
    char path[GH_PATH];
    if (of->is_read) {
        gh_slots_path(name, of->epoch, path);
        if (gh_remove_slots(path) < 0) return gh_fail_system(error, errno, path);
        gh_tidy_sockets_of(of->epoch);
        return GPURING_OK;
    }
    if (gh_list_beside(name, &beside) != 0) return gh_fail_system(error, errno, GH_SHM);
    gpuring_status status = GPURING_OK;
    for (uint32_t k = 0; status == GPURING_OK && k < beside.n; k++)
        if (gh_is_left(beside.file[k].path) && gh_remove_slots(beside.file[k].path) < 0)
            status = gh_fail_system(error, errno, beside.file[k].path);
    gh_end_beside(&beside);
    return status;
}

/* Gives the header with the spare name the ring's name. There is no moment in which the name is
 * free, so another ring that is made meanwhile finds this one. *done: false if all has to be looked
 * at again. */
static gpuring_status give_over(const struct taking *taking, const struct gh_named *named, int fd,
                                const struct taken *of, bool *done, gpuring_error *error) {
    gpuring_error unread;
    const int still = gh_is_still(named);
    /* If we were stopped, another process may have gone on, or tidied up. */
    if (still <= 0) return still ? gh_fail_system(error, errno, named->path) : GPURING_OK;
    const gpuring_status status = rename_over(taking->spare, named->path, of->keep, done, error);
    GR_FAULT("take: given over");
    /* Until here the next ring could read the old one. If this fails, the old ring is closed, so
     * nobody attaches anyway. */
    if (*done && of->is_read && !of->keep) retire(fd, named->path, &unread);
    return status;
}

static gpuring_status drop(const struct taking *taking, const struct gh_named *named,
                           gpuring_error *error) {
    const int still = gh_is_still(named);
    if (still <= 0) return still ? gh_fail_system(error, errno, named->path) : GPURING_OK;
    /* These go first, so that they never outlive the ring. */
    const gpuring_status status = gh_remove_asides(taking->name, error);
    GR_FAULT("take: asides removed");
    if (status == GPURING_OK && unlink(named->path) != 0 && errno != ENOENT)
        return gh_fail_system(error, errno, named->path);
    GR_FAULT("take: removed");
    return status;
}

/* Under the lock of the name. */
static gpuring_status take_locked(const struct taking *taking, const struct gh_named *named, int fd,
                                  bool *done, gpuring_error *error) {
    struct taken of = {0};
    char words[GH_WORDS];
    gpuring_status status = GPURING_OK;
    if (!*gh_odd(named, words)) status = end(taking, fd, named->path, &of, error);
    GR_FAULT("take: ended");
    if (status == GPURING_OK && of.is_read && !taking->spare)
        status = retire(fd, named->path, error);
    GR_FAULT("take: retired");
    if (status == GPURING_OK) status = remove_slots(taking->name, &of, error);
    GR_FAULT("take: slots removed");
    if (status != GPURING_OK) return status;
    if (taking->spare) return give_over(taking, named, fd, &of, done, error);
    *done = true;
    return drop(taking, named, error);
}

/* *done: false if all has to be looked at again. */
static gpuring_status take_from(const struct taking *taking, const struct gh_named *named,
                                bool *done, gpuring_error *error) {
    const int fd = gh_open(named, O_RDWR, error);
    if (fd < 0) return error->status;
    gpuring_status status = GPURING_OK;
    GR_FAULT("take: opened");
    /* 0 if its holder was stopped. */
    const int locked = gh_lock_within(fd, GR_NAME_BYTE, GH_NAME_PATIENCE_NS);
    const int still = locked < 0 ? -1 : gh_is_still(named);
    GR_FAULT("take: locked");
    if (still < 0) status = gh_fail_system(error, errno, named->path);
    /* Under the lock, so that of two processes that start at once, one finds the other's ring. */
    else if (still && taking->replace == GPURING_REPLACE_DEAD)
        status = locked ? gh_check_abandoned(taking->name, named, fd, error)
                        : gh_taken(taking->name, named, error);
    if (still > 0 && status == GPURING_OK) status = take_locked(taking, named, fd, done, error);
    gh_unlock_and_close(fd, GR_NAME_BYTE);
    return status;
}

/* Takes the name from its ring. *found: false if there was none. */
static gpuring_status take_away(const struct taking *taking, bool *found, gpuring_error *error) {
    char path[GH_PATH];
    struct gh_named named;
    gh_header_path(taking->name, path);
    *found = false;
    for (gpuring_status status = GPURING_OK; status == GPURING_OK && !*found;) {
        if (gh_look(&named, path) != 0)
            return errno == ENOENT ? GPURING_OK : gh_fail_system(error, errno, path);
        status = gh_may_replace(taking->name, &named, taking->replace, error);
        if (status == GPURING_OK) status = take_from(taking, &named, found, error);
        gh_look_away(&named);
        if (status != GPURING_OK) return status;
    }
    return GPURING_OK;
}

gpuring_status gh_remove_name(const char *name, bool close, bool *found, gpuring_error *error) {
    const struct taking taking = {.name = name,
                                  .replace = GPURING_REPLACE_ANY,
                                  .end = close ? CLOSE : KEEP_OPEN};
    return take_away(&taking, found, error);
}

/* ---- names come ------------------------------------------------------------------------------ */

static gpuring_status take(const struct taking *taking, gpuring_error *error) {
    char path[GH_PATH];
    bool done = false;
    gpuring_status status = GPURING_OK;
    gh_header_path(taking->name, path);
    while (status == GPURING_OK && !done) {
        status = take_away(taking, &done, error);
        if (status == GPURING_OK && !done)
            status = rename_if_free(taking->spare, path, &done, error);
    }
    return status;
}

/* A file that has lost its only name can get no other one. So the new header has a spare name until
 * it has the ring's. The spare name is locked as the name of slots that are being made. If its
 * maker is killed, `gpuring clean` finds it. */
gpuring_status gh_take_name(const char *name, int fd, gpuring_replace replace,
                            struct gr_ring *ring, gpuring_error *error) {
    char path[GH_PATH], spare[GH_PATH];
    uint8_t number[16];
    struct stat heir;
    gh_header_path(name, path);
    if (gh_give_name(fd, path) == 0) return GPURING_OK;
    if (errno != EEXIST) return gh_fail_system(error, errno, path);
    if (getrandom(number, sizeof number, 0) != sizeof number || fstat(fd, &heir) != 0)
        return gh_fail_system(error, errno, name);
    gh_aside_path(name, number, spare);
    gh_lock(fd, GR_NAME_BYTE);
    gpuring_status status = GPURING_OK;
    GR_FAULT("take: spare locked");
    /* Before anything is closed: there may be no room. */
    if (gh_give_name(fd, spare) != 0) status = gh_fail_system(error, errno, spare);
    else {
        GR_FAULT("take: spare named");
        const struct taking taking = {
            .name = name, .replace = replace, .end = HAND_ON, .ring = ring, .spare = spare};
        status = take(&taking, error);
        if (gh_has_name(spare, heir.st_dev, heir.st_ino) == 1) unlink(spare); /* it was not renamed */
    }
    gh_unlock(fd, GR_NAME_BYTE); /* the name is another's by now */
    return status;
}

/* ---- the next ring --------------------------------------------------------------------------- */

int gh_has_successor(const char *name, const struct gr_ring *ring) {
    gpuring_error error;
    struct gh_named named;
    struct stat ours;
    char path[GH_PATH], text[256];
    const char *why = NULL;
    gh_header_path(name, path);
    if (fstat(ring->lock_fd, &ours) != 0) return ring->lock_fd < 0 ? 0 : -1;
    const int same = gh_has_name(path, ours.st_dev, ours.st_ino);
    if (same != 0) return same < 0 ? -1 : 0; /* the next look copies a whole header */
    if (gh_look(&named, path) != 0) return errno == ENOENT ? 0 : -1;
    const bool odd = *gh_odd(&named, text);
    const int fd = odd ? -1 : gh_open(&named, O_RDONLY, &error);
    gh_look_away(&named);
    if (fd < 0) {
        errno = odd || error.status == GPURING_NOT_PERMITTED ? 0 : error.sys_errno;
        return errno ? -1 : 0;
    }
    struct gr_ring *copy = gr_read(fd, &why, text, sizeof text);
    const int failed = errno;
    close(fd);
    errno = failed;
    if (!copy) return why ? 0 : -1;
    const bool next = !gr_load_acquire(&copy->head->closed) &&
                      memcmp(copy->head->epoch, ring->head->epoch, sizeof copy->head->epoch) != 0;
    gr_detach(copy);
    return next;
}

/* The header of a ring by its name. */
#define _GNU_SOURCE
#include "opening.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "../core/handles.h"
#include "../core/header.h"
#include "../core/lock.h"
#include "locks.h"
#include "room.h"

gpuring_status gh_find(const char *name, struct gh_named *named, gpuring_error *error) {
    char path[GH_PATH], words[GH_WORDS];
    gh_header_path(name, path);
    if (gh_look(named, path) != 0)
        return errno == ENOENT ? gh_fail(error, GPURING_NOT_FOUND, "%s", "")
                               : gh_fail_system(error, errno, path);
    const char *odd = gh_odd(named, words);
    if (!*odd) return GPURING_OK;
    gh_look_away(named);
    return gh_fail(error, GPURING_INCOMPATIBLE, "%s is %s, and no ring", path, odd);
}

/* What gr_attach or gr_read has said. */
static gpuring_status refused(const char *name, const char *why, int sys_errno,
                              gpuring_error *error) {
    char path[GH_PATH];
    gh_header_path(name, path);
    if (!why) return gh_fail_system(error, sys_errno, path);
    if (sys_errno == ESTALE)
        return gh_fail(error, GPURING_NOT_FOUND, "the ring that has its name is about to go: %s", why);
    return gh_fail(error, GPURING_INCOMPATIBLE,
                   "%s is no ring that this version of gpuring can read: %s. If no process uses it, `gpuring clean "
                   "NAME` removes it",
                   path, why);
}

gpuring_status gh_read_header(const char *name, int fd, struct gr_ring **copy,
                              gpuring_error *error) {
    const char *why = NULL;
    char text[256];
    *copy = gr_read(fd, &why, text, sizeof text);
    return *copy ? GPURING_OK : refused(name, why, errno, error);
}

/* ---- joining --------------------------------------------------------------------------------- */

static gpuring_status check_owner(const char *name, const struct gh_named *named, int64_t owner,
                                  gpuring_error *error) {
    char words[GH_WORDS];
    const uid_t uid = named->stat.st_uid, own = geteuid();
    if (owner < 0 ? uid == 0 || uid == own : (int64_t)uid == owner) return GPURING_OK;
    return gh_fail(error, GPURING_NOT_PERMITTED,
                   "ring '%s' belongs to %s, not to user %lld. Its creator can write every slot, "
                   "and can end this process. If you trust that user, attach with `owner` %u, or "
                   "run this program as that user; the mode has to let you in, too",
                   name, gh_owner(named, words), owner < 0 ? (long long)own : (long long)owner,
                   uid);
}

/* The order matters. A process that takes the name away locks the name, and then looks whether
 * another process has the header. So it has seen us, or we see it, or the slots are gone. */
static gpuring_status attach(const char *name, int fd, struct gr_ring **ring,
                             gpuring_error *error) {
    const char *why = NULL;
    char text[256];
    *ring = gr_attach(fd, &why, text, sizeof text);
    if (!*ring) return refused(name, why, errno, error);
    GR_FAULT("attach: mapped");
    gpuring_status status = GPURING_OK;
    if (gr_load_acquire(&(*ring)->head->closed))
        status = gh_fail(error, GPURING_NOT_FOUND,
                         "it was closed, and has its name until the next ring takes it");
    else if (gh_name_is_locked(fd))
        status = gh_fail(error, GPURING_NOT_FOUND, "somebody is about to remove it");
    if (status == GPURING_OK) return status;
    gr_detach(*ring);
    *ring = NULL;
    return status;
}

gpuring_status gh_attach_header(const char *name, int64_t owner, struct gr_ring **ring,
                                gpuring_error *error) {
    struct gh_named named;
    gpuring_status status = gh_find(name, &named, error);
    if (status != GPURING_OK) return status;
    GR_FAULT("attach: found");
    const uint64_t nbytes = (uint64_t)named.stat.st_size;
    status = check_owner(name, &named, owner, error);
    const int fd = status == GPURING_OK ? gh_open(&named, O_RDWR, error) : -1;
    gh_look_away(&named);
    if (fd >= 0) {
        GR_FAULT("attach: opened");
        status = attach(name, fd, ring, error);
        close(fd);
    } else status = error->status;
    if (status != GPURING_SYSTEM) return status;
    return gh_fail_for_room(error, name, error->sys_errno, "its header", nbytes);
}

gpuring_status gh_check_living(const char *name, struct gr_ring *ring, gpuring_error *error) {
    if (gr_creator_alive(ring)) return GPURING_OK;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        const uint64_t word = gr_load_acquire(&ring->peer[p].word);
        if (state_of(word) != GR_FREE && role_of(word) == GR_PRODUCER && gr_peer_alive(ring, p))
            return GPURING_OK;
    }
    return gh_fail(error, GPURING_PEER_LOST,
                   "ring '%s' is there, but its creator (pid %llu) is dead and nobody publishes in "
                   "it. Start its creator again. Attach without a timeout to open it as it is, and "
                   "read what is left",
                   name, (unsigned long long)ring->head->creator_pid);
}

gpuring_status gh_fail_missing(const char *name, const char *detail, gpuring_error *error) {
    if (!*detail)
        return gh_fail(error, GPURING_NOT_FOUND,
                       "No ring or service named '%s' on this host. Processes see each other's "
                       "rings only if they share " GH_SHM " (in containers: --ipc)",
                       name);
    return gh_fail(error, GPURING_NOT_FOUND,
                   "ring '%s' is not there now: %s. If nobody is removing or replacing it, "
                   "`gpuring clean %s` takes away what is left, once its processes are gone",
                   name, detail, name);
}

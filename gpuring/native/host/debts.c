/* What rings that were replaced still owe to durable subscriptions. */
#define _GNU_SOURCE
#include "debts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../core/earlier.h"
#include "../core/handles.h"
#include "../core/header.h"
#include "../core/lock.h"
#include "../core/subscriptions.h"
#include "beside.h"
#include "diagnosis.h"
#include "locks.h"
#include "making.h"
#include "named.h"

/* How long to wait for a process that is settling. Only a stopped process takes so long, and the
 * next one that joins settles in its place. */
#define PATIENCE_NS INT64_C(500000000)

static bool is_durable(const struct gr_ring *ring, uint32_t u) {
    return policy_of(gr_load_acquire(&ring->sub[u].word)) & GR_DURABLE;
}

#define each_durable(u, ring)                                                                      \
    for (uint32_t u = 0; u < (ring)->max_subscriptions; u++)                                       \
        if (is_durable(ring, u))

static void copy_name(const struct gr_ring *ring, uint32_t u, char name[GH_SUBSCRIPTION]) {
    for (int k = 0; k < GR_NAME_WORDS; k++) {
        const uint64_t word = gr_load_acquire(&ring->sub[u].name[k]);
        memcpy(name + 8 * k, &word, 8);
    }
}

/* The number that names this ring in a later one: above 1, and a part of its epoch. */
static uint64_t number_of(const struct gr_ring *ring) {
    uint64_t number;
    memcpy(&number, ring->head->epoch, sizeof number);
    return number | 2;
}

bool gh_may_owe(const struct gr_ring *ring) {
    each_durable (u, ring)
        if (gr_load_acquire(&ring->sub[u].earlier)) return true;
    return false;
}

/* ---- the rings that had the name before ------------------------------------------------------ */

struct earlier {
    uint32_t n;
    struct {
        char path[GH_PATH];
        struct gr_ring *ring;
    } *at;
};

static void end_earlier(struct earlier *list) {
    for (uint32_t k = 0; k < list->n; k++) gr_detach(list->at[k].ring);
    free(list->at);
    *list = (struct earlier){0};
}

/* 1: *ring is mapped. 0: the file is no earlier ring. -1: errno. A file of another user is left
 * out, because its owner could crash this process. So is a ring that is not closed: it is about to
 * get its name, or its maker was killed before that. */
static int map(const char *path, uid_t owner, const struct gr_ring *later, struct gr_ring **ring) {
    gpuring_error error;
    struct gh_named named;
    char words[GH_WORDS], text[256];
    const char *why = NULL;
    if (gh_look(&named, path) != 0) return errno == ENOENT ? 0 : -1;
    const bool fits = !*gh_odd(&named, words) && named.stat.st_uid == owner;
    const int fd = fits ? gh_open(&named, O_RDWR, &error) : -1;
    gh_look_away(&named);
    if (!fits) return 0;
    if (fd < 0) {
        errno = error.sys_errno ? error.sys_errno : EACCES;
        return -1;
    }
    *ring = gr_attach(fd, &why, text, sizeof text);
    const int failed = errno;
    close(fd);
    errno = failed;
    if (!*ring) return why ? 0 : -1;
    if (gr_load_acquire(&(*ring)->head->closed) &&
        memcmp((*ring)->head->epoch, later->head->epoch, sizeof later->head->epoch) != 0)
        return 1;
    gr_detach(*ring);
    return 0;
}

/* Lists the closed rings that had the name before this one. If this ring has lost the name itself,
 * the list is empty, because some of these rings may be later ones. -1, errno: one of them cannot
 * be opened, for lack of rights or of descriptors, and must not count as settled. */
static int begin_earlier(const char *name, struct gr_ring *ring, struct earlier *list) {
    struct stat ours;
    struct gh_beside beside;
    char path[GH_PATH];
    *list = (struct earlier){0};
    if (fstat(ring->lock_fd, &ours) != 0 || gh_list_beside(name, &beside) != 0) return -1;
    gh_header_path(name, path);
    int found = gh_has_name(path, ours.st_dev, ours.st_ino);
    if (found == 1 && beside.n && !(list->at = calloc(beside.n, sizeof *list->at))) found = -1;
    for (uint32_t k = 0; found == 1 && k < beside.n; k++) {
        const char *aside = beside.file[k].path;
        if (!gh_is_aside(aside)) continue;
        const int mapped = map(aside, ours.st_uid, ring, &list->at[list->n].ring);
        if (mapped < 0) found = -1;
        else if (mapped) strcpy(list->at[list->n++].path, aside);
    }
    const int why = errno;
    gh_end_beside(&beside);
    if (found < 0) end_earlier(list);
    errno = why;
    return found < 0 ? -1 : 0;
}

/* 0, or -1: errno. */
static int remove_if_done(const char *path, const struct gr_ring *ring) {
    return gh_has_durable(ring) || gh_remove_slots(path) >= 0 ? 0 : -1;
}

/* ---- settling -------------------------------------------------------------------------------- */

/* Whether its membership lock is free. */
static bool is_unlocked(struct gr_ring *ring) {
    if (gr_lock(ring, 0) != GR_OK) return false;
    gr_unlock(ring);
    return true;
}

static uint32_t find_owed(const struct gr_ring *ring, const char name[GH_SUBSCRIPTION]) {
    char own[GH_SUBSCRIPTION];
    each_durable (u, ring) {
        copy_name(ring, u, own);
        if (gr_load_acquire(&ring->sub[u].earlier) && memcmp(own, name, sizeof own) == 0) return u;
    }
    return GR_NONE;
}

/* If a process was killed after it had counted what an earlier ring owes, has that ring forget it.
 * Not GR_OK: a membership lock cannot be taken. */
static enum gr_result forget_settled(const struct earlier *rings, struct gr_ring *ring) {
    char name[GH_SUBSCRIPTION];
    bool found;
    each_durable (u, ring) {
        const uint64_t settled = gr_being_settled(ring, u);
        if (!settled) continue;
        copy_name(ring, u, name);
        enum gr_result result = GR_OK;
        for (uint32_t k = 0; result == GR_OK && k < rings->n; k++)
            if (number_of(rings->at[k].ring) == settled)
                result = gr_unsubscribe(rings->at[k].ring, name, &found);
        GR_FAULT("settle: forgotten late");
        if (result == GR_OK) result = gr_settled(ring, u);
        if (result != GR_OK) return result;
    }
    return GR_OK;
}

/* Settles what an earlier ring owes to one subscription. */
static enum gr_result settle_one(struct gr_ring *one, uint32_t u, struct gr_ring *ring,
                                 uint32_t own) {
    char name[GH_SUBSCRIPTION];
    bool found;
    uint64_t owed;
    GR_FAULT("settle: begins");
    enum gr_result result = gr_owed(one, u, &owed);
    if (result == GR_OK) result = gr_settle(ring, own, number_of(one), owed);
    if (result != GR_OK) return result;
    GR_FAULT("settle: counted");
    /* If this fails, the next process that joins makes the earlier ring forget it. */
    copy_name(one, u, name);
    result = gr_unsubscribe(one, name, &found);
    GR_FAULT("settle: forgotten");
    if (result == GR_OK) result = gr_settled(ring, own);
    GR_FAULT("settle: settled");
    return result;
}

/* Settles what an earlier ring owes. still: the subscriptions to which it may still owe.
 * GR_LOCK_TIMEOUT: the rest of it was left. */
static enum gr_result settle_all(struct gr_ring *one, struct gr_ring *ring, bool still[]) {
    char name[GH_SUBSCRIPTION];
    bool found;
    each_durable (u, one) {
        copy_name(one, u, name);
        const uint32_t own = find_owed(ring, name);
        const enum gr_result result = own == GR_NONE ? gr_unsubscribe(one, name, &found)
                                                     : settle_one(one, u, ring, own);
        if (result == GR_LOCK_TIMEOUT) return result;
        if (own != GR_NONE && result != GR_OK) still[own] = true;
    }
    return GR_OK;
}

/* Waits for one membership lock only. If it cannot be taken, others are tried once, and the next
 * process that joins does the rest. */
static void settle(const struct earlier *rings, struct gr_ring *ring) {
    bool still[GR_MAX_SUBSCRIPTIONS] = {false}, late = false;
    if (forget_settled(rings, ring) != GR_OK) return;
    for (uint32_t k = 0; k < rings->n; k++) {
        struct gr_ring *one = rings->at[k].ring;
        if (!late || (is_unlocked(one) && is_unlocked(ring)))
            late |= settle_all(one, ring, still) == GR_LOCK_TIMEOUT;
    }
    if (late) return;
    for (uint32_t k = 0; k < rings->n; k++)
        if (remove_if_done(rings->at[k].path, rings->at[k].ring) != 0) return;
    GR_FAULT("settle: removed");
    each_durable (u, ring)
        if (!still[u] && gr_load_acquire(&ring->sub[u].earlier)) gr_all_settled(ring, u);
    GR_FAULT("settle: done");
}

void gh_settle(const char *name, struct gr_ring *ring) {
    struct earlier rings;
    if (!gh_may_owe(ring)) return;
    /* The lock is another descriptor's, so that it also keeps out the other threads. */
    const int alone = gr_again(ring->lock_fd, O_RDWR);
    if (alone < 0) return;
    if (gh_lock_within(alone, GR_SETTLING_BYTE, PATIENCE_NS) == 1 &&
        begin_earlier(name, ring, &rings) == 0) {
        settle(&rings, ring);
        end_earlier(&rings);
    }
    gh_unlock_and_close(alone, GR_SETTLING_BYTE);
}

/* Has earlier rings forget what was counted in this one, which was closed, before another ring takes
 * its place. */
static gpuring_status settle_up(const char *name, struct gr_ring *ring, gpuring_error *error) {
    struct earlier rings;
    bool any = false;
    each_durable (u, ring) any |= gr_being_settled(ring, u) != 0;
    if (!any) return GPURING_OK;
    if (begin_earlier(name, ring, &rings) != 0) return gh_fail_system(error, errno, name);
    const enum gr_result result = forget_settled(&rings, ring);
    const int why = errno;
    end_earlier(&rings);
    if (result == GR_SYSTEM) return gh_fail_system(error, why, name);
    if (result == GR_OK) return GPURING_OK;
    return gh_fail(error, GPURING_TIMEOUT,
                   "ring '%s': a membership lock of an earlier ring of that name cannot be taken. "
                   "Its holder was probably stopped",
                   name);
}

gpuring_status gh_forget(const char *name, struct gr_ring *ring,
                         const char subscription[GH_SUBSCRIPTION], gpuring_error *error) {
    struct earlier rings;
    if (begin_earlier(name, ring, &rings) != 0) return gh_fail_system(error, errno, name);
    gpuring_status status = GPURING_OK;
    for (uint32_t k = 0; status == GPURING_OK && k < rings.n; k++) {
        bool found;
        if (gr_unsubscribe(rings.at[k].ring, subscription, &found) == GR_SYSTEM ||
            remove_if_done(rings.at[k].path, rings.at[k].ring) != 0)
            status = gh_fail_system(error, errno, name);
    }
    end_earlier(&rings);
    return status;
}

/* ---- from a ring to the next one ------------------------------------------------------------- */

gpuring_status gh_carry_over(const char *name, struct gr_ring *old, struct gr_ring *ring,
                             bool *stays, gpuring_error *error) {
    char subscription[GH_SUBSCRIPTION];
    enum gr_result known = GR_OK;
    *stays = false;
    each_durable (u, old) {
        const uint64_t word = gr_load_acquire(&old->sub[u].word);
        struct gr_terms terms = {.mode = mode_of(word) == GR_LOSSY ? GR_LOSSY : GR_LOSSLESS,
                                 .policy = policy_of(word) & GR_DROP ? GR_DROP : GR_REDELIVER,
                                 .from = GR_START_OLDEST,
                                 .patience_ns = gr_load_acquire(&old->sub[u].patience_ns)};
        /* It waits for LOCK only once, because this wait cannot be interrupted. */
        if (known != GR_LOCK_TIMEOUT) known = gr_owed(old, u, &terms.owed);
        const bool lives = known != GR_OK; /* or nobody can tell */
        if (lives) terms.owed = 0;
        terms.earlier = lives ? 1 : number_of(old);
        copy_name(old, u, subscription);
        /* If the table of the new ring is too small, the subscription ends here. */
        const enum gr_result result = gr_subscribe(ring, subscription, &terms);
        if (result == GR_SYSTEM) return gh_fail_system(error, errno, name);
        *stays |= lives && result == GR_OK;
    }
    return settle_up(name, old, error); /* nobody settles anything there any more */
}

/* ---- what is left ---------------------------------------------------------------------------- */

bool gh_is_kept_aside(const char *name, const char *path) {
    gpuring_error error;
    struct gh_named named;
    char header[GH_PATH], text[256];
    const char *why;
    bool kept = false;
    gh_header_path(name, header);
    if (!gh_is_aside(path) || gh_owner_of(header) < 0 || gh_look(&named, path) != 0) return false;
    const int fd = gh_open(&named, O_RDONLY, &error);
    gh_look_away(&named);
    if (fd < 0) return false;
    struct gr_ring *copy = gr_read(fd, &why, text, sizeof text);
    close(fd);
    if (!copy) return false;
    kept = gr_load_acquire(&copy->head->closed) && gh_has_durable(copy);
    gr_detach(copy);
    return kept;
}

gpuring_status gh_remove_asides(const char *name, gpuring_error *error) {
    struct gh_beside beside;
    gpuring_status status = GPURING_OK;
    if (gh_list_beside(name, &beside) != 0) return gh_fail_system(error, errno, GH_SHM);
    for (uint32_t k = 0; status == GPURING_OK && k < beside.n; k++) {
        const char *path = beside.file[k].path;
        if (gh_is_aside(path) && gh_is_left(path) && gh_remove_slots(path) < 0)
            status = gh_fail_system(error, errno, path);
    }
    gh_end_beside(&beside);
    return status;
}

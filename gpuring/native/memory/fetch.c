#define _GNU_SOURCE
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>

#include "../core/bell.h"
#include "../core/handles.h"
#include "../core/lock.h"
#include "../host/diagnosis.h"

enum { SHOWN = 10 };

gpuring_status gm_check_creator(const char *name, struct gr_ring *ring, gpuring_error *error) {
    if (ring->config.memory != GR_MEMORY_IPC || gr_creator_alive(ring)) return GPURING_OK;
    return gh_fail(error, GPURING_PEER_LOST,
                   "ring '%s': the process that created it (pid %llu) is dead. Those inside may "
                   "finish, but nobody new can open its GPU memory. Create the ring again, with "
                   "`memory` vmm if others have to join it after such a death, or let `gpuring "
                   "keep` own it",
                   name, (unsigned long long)ring->head->creator_pid);
}

static bool met(const struct gr_asked *asked) { return asked->met; }
static bool away(const struct gr_asked *asked) { return !asked->met; }
static bool without(const struct gr_asked *asked) { return asked->without; }

/* Lists those for which `which` is true, after `before`. */
static void add_those(struct gh_text *text, const struct gr_fetch *fetch, const char *before,
                      bool (*which)(const struct gr_asked *)) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < fetch->n; k++) {
        if (!which(&fetch->asked[k])) continue;
        if (n == 0) gh_add(text, "%s", before);
        if (n < SHOWN)
            gh_add(text, "%spid %llu", n ? ", " : "", (unsigned long long)fetch->asked[k].who.pid);
        n++;
    }
    if (n > SHOWN) gh_add(text, " and %u more", n - SHOWN);
}

gpuring_status gm_fail_fetch(gpuring_error *error, const struct gr_fetch *fetch, bool gone,
                             double timeout_s) {
    char words[sizeof error->text];
    struct gh_text text = gh_begin_text(words, sizeof words);
    if (gone) {
        gh_add(&text, "nobody hands the ring's memory on: its creator and its peers are dead, or "
                      "have none");
        add_those(&text, fetch, ". Not there: ", away);
        add_those(&text, fetch, ". There, and without it: ", met);
    } else {
        /* Python writes 5.0 for a float. */
        const bool whole = timeout_s == (double)(int64_t)timeout_s;
        gh_add(&text, whole ? "nobody handed the ring's memory on in %.1f s."
                            : "nobody handed the ring's memory on in %g s.",
               timeout_s);
        add_those(&text, fetch, " Asked were ", met);
        gh_add(&text, ", which are stopped or have too much to do");
        add_those(&text, fetch, ". Answered without it: ", without);
        for (uint32_t k = 0; k < fetch->n; k++)
            if (fetch->asked[k].without) {
                gh_add(&text, ". Too many descriptors of that process's user are under way in "
                              "messages that nobody has read (ETOOMANYREFS)");
                break;
            }
    }
    return gh_fail(error, gone ? GPURING_PEER_LOST : GPURING_TIMEOUT, "%s", words);
}

static gpuring_status go_on(struct gr_fetch *fetch, const char *name, struct gr_ring *ring, int *fd,
                            gpuring_error *error) {
    const int64_t deadline = gr_now_ns() + GM_FETCH_S * INT64_C(1000000000);
    char words[sizeof error->text];
    do {
        struct gh_text text = gh_begin_text(words, sizeof words);
        if (gr_forked(ring))
            return gh_fail(error, gh_add_unusable(&text, name, GR_FORKED), "%s", words);
        const int64_t slice = gr_now_ns() + 50 * 1000 * 1000;
        *fd = gr_fetch_go_on(fetch, ring, slice < deadline ? slice : deadline);
    } while (*fd < 0 && errno == EAGAIN && gr_now_ns() < deadline);
    if (*fd >= 0) return GPURING_OK;
    if (errno != ENOENT && errno != EAGAIN) return gh_fail_system(error, errno, name);
    const gpuring_status status = gm_fail_fetch(error, fetch, errno == ENOENT, GM_FETCH_S);
    return gh_fail(error, status, "ring '%s': its GPU memory cannot be opened: %s", name,
                   error->text);
}

gpuring_status gm_fetch(const char *name, struct gr_ring *ring, int *fd, gpuring_error *error) {
    struct gr_fetch *fetch = malloc(sizeof *fetch);
    *fd = -1;
    if (!fetch) return gh_fail_system(error, ENOMEM, name);
    gr_fetch_begin(fetch, ring);
    const gpuring_status status = go_on(fetch, name, ring, fd, error);
    gr_fetch_end(fetch);
    free(fetch);
    return status;
}

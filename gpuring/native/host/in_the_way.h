/* Who is in the way of a verb, in words. */
#pragma once

#include "../core/peer.h"
#include "error.h"
#include "text.h"

/* Whether a claim has waited for a second for a subscription that it may wait for for ever. A reader
 * that was about to ask again has done so by then. *since_ns: 0 when the wait begins. */
bool gh_claims_in_vain(const struct gr_peer *me, int64_t *since_ns);

/* Whether a peer is of this process. A pid alone does not say so: in each of two containers it may
 * be 1. */
bool gh_is_of_this_process(const struct gr_ring *ring, uint32_t p);
/* Whether a peer's process is stopped, by a signal or a debugger. False also where it cannot be
 * looked up: it is of another pid namespace, or /proc hides it. */
bool gh_is_stopped(const struct gr_ring *ring, uint32_t p);

/* How it is found out whether a peer's process is stopped. NULL: by gh_is_stopped. */
struct gh_looks {
    bool (*is_stopped)(void *context, const struct gr_ring *ring, uint32_t p);
    void *context;
};

/* Who is in the way of a verb: who it is, which sequence it is about, and since when. */
void gh_add_in_the_way(struct gh_text *text, const struct gr_ring *ring,
                       const struct gr_culprit *culprit, const struct gh_looks *looks);
/* What can be done about it, as sentences behind those of gh_add_in_the_way. Often nothing. */
void gh_add_way_out(struct gh_text *text, const struct gr_ring *ring,
                    const struct gr_culprit *culprit);

enum { GH_SHOWN = 8 * 64 }; /* what 64 bytes may become */
/* "recorder.py, pid 4711" */
void gh_add_whose(struct gh_text *text, const gr_word *label, uint64_t pid);

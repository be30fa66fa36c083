/* Why a verb was refused, and who is in the way of it, in words. Each names the ring, the numbers,
 * the culprit and the next step.
 *
 * What is said goes into `text`, and the status that goes with it is returned. */
#pragma once

#include "../core/peer.h"
#include "error.h"
#include "text.h"

/* Whether each member of a subscription was told that the stream is over, does not wait for it to
 * go on, and has asked for nothing since. Who waits for the subscription may wait for ever. */
bool gh_waits_in_vain(const struct gr_ring *ring, uint32_t u);
/* Whether, for a second, a claim has waited for such a subscription. A reader that was about to ask
 * again has done so by then. *since_ns: 0 when the wait begins. */
bool gh_claims_in_vain(const struct gr_peer *me, int64_t *since_ns);

/* Whether a peer is of this process. A pid alone does not say so: in each of two containers it may
 * be 1. */
bool gh_is_of_this_process(const struct gr_ring *ring, uint32_t p);
/* Whether a peer's process is stopped, by a signal or a debugger. False also where it cannot be
 * looked up: it is of another pid namespace, or /proc hides it. */
bool gh_is_stopped(const struct gr_ring *ring, uint32_t p);

/* Who says whether a peer's process is stopped. NULL: gh_is_stopped. */
struct gh_looks {
    bool (*is_stopped)(void *context, const struct gr_ring *ring, uint32_t p);
    void *context;
};

/* Who is in the way of a verb: who it is, which sequence it is about, and since when. */
void gh_add_in_the_way(struct gh_text *text, const struct gr_ring *ring,
                       const struct gr_culprit *culprit, const struct gh_looks *looks);

enum gh_verb { GH_CLAIM, GH_ACQUIRE, GH_LATEST };
#define GH_NO_TIMEOUT (-1.0)

/* Of a frame verb. */
gpuring_status gh_add_refused(struct gh_text *text, const char *name, const struct gr_peer *peer,
                              enum gr_result result, enum gh_verb verb, double timeout_s,
                              const struct gh_looks *looks);
/* The same of a verb of a peer that waits for the stream to go on, and whose time is up. */
gpuring_status gh_add_resting(struct gh_text *text, const char *name, const struct gr_ring *ring,
                              enum gr_result result, enum gh_verb verb, double timeout_s);
/* Of a join. */
gpuring_status gh_add_cannot_join(struct gh_text *text, const char *name,
                                  const struct gr_ring *ring, enum gr_result result,
                                  const char subscription[64]);
/* Of any call. */
gpuring_status gh_add_unusable(struct gh_text *text, const char *name, enum gr_result result);

const char *gh_wanted(enum gh_verb verb);
/* What has come to its end by this result. */
const char *gh_over(enum gr_result result);
/* Torn frames. released: they turned out torn after their release. Sorts them. */
void gh_add_torn(struct gh_text *text, const char *name, uint64_t *seqs, size_t n, bool released);

/* Why a verb was refused, in words. Each names the ring, the numbers, the culprit and the next step.
 *
 * What is said goes into `text`, and the status that goes with it is returned. */
#pragma once

#include "../core/peer.h"
#include "in_the_way.h"

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

/* Torn frames. released: they turned out torn after their release. Sorts them. */
void gh_add_torn(struct gh_text *text, const char *name, uint64_t *seqs, size_t n, bool released);

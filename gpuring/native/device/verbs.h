/* The verbs of a ring as a program uses them: host order and device order in one call. */
#pragma once

#include "ends.h"

/* GR_OK: call->got slots are claimed, at least one, and the stream is ordered behind the peers
 * that used them before. It waits until there is one, then takes what else is free. The caller
 * says that they are `open`. Otherwise nothing is claimed, but sequences may have become void. */
enum gr_result gd_claim(struct gd_peer *peer, struct gd_call *call, unsigned how);
/* The same for frames. verb is gr_acquire or gr_latest. GR_TORN_BEHIND: nothing is held, and
 * peer->released.torn names frames, released earlier, that have turned out torn. */
enum gr_result gd_acquire(struct gd_peer *peer, struct gd_call *call, unsigned how, gr_verb verb);
/* The first try of one of the two for one slot, without a gd_call, by a peer that uses the slots by
 * the CPU. GR_OK: slot peer->core.last.index is claimed or held. GR_SIGNAL: there is more to it, so
 * the verb is to be called. *taken: the slot is this peer's already, so gd_call.ordering is true. */
enum gr_result gd_take_now(struct gd_peer *peer, int64_t deadline_ns, gr_verb verb, bool *taken);
/* After GR_SIGNAL of one of the first two, instead of calling it again. Nothing stays claimed or
 * held. */
void gd_cancel(struct gd_peer *peer, struct gd_call *call);

/* Undoes a claim or a hold. seen: of a frame that the user has seen; nothing of his is pending on it
 * any more. */
enum gr_result gd_put_back(struct gd_peer *peer, uint32_t index, bool seen);
/* To be called when all slots are ended. Waits until the GPU has done all that this peer has
 * promised, then leaves the ring. */
enum gr_result gd_leave(struct gd_peer *peer, struct gd_call *call, unsigned how);

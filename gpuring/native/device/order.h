/* Before a slot is used: whether and how to wait for other GPU work. For the verbs of a peer, in
 * the thread that is in one. */
#pragma once

#include "state.h"

enum gr_result gd_await_next(struct gd_peer *peer, struct gd_call *call, unsigned how);
enum gr_result gd_order(struct gd_peer *peer, struct gd_call *call, unsigned how);
/* Whether gd_acquire would have a frame now, and no stream would have to wait for it. This is only
 * a hint, which changes nothing. */
bool gd_is_whole(struct gd_peer *peer);

/* How a slot is ended: host order and device order in one call. For the thread that has the slot. */
#pragma once

#include "state.h"

/* These end slots, behind all work on the streams that used them and on call->stream, the current
 * one. A slot that is still `open` afterwards still belongs to this peer: the driver refused
 * during a capture, or the call was given up while it settled. Then the verb may be called again.
 * GR_DEVICE: what could be given up was given up, a claim as VOID. */
enum gr_result gd_publish(struct gd_peer *peer, struct gd_call *call, unsigned how);
enum gr_result gd_abandon(struct gd_peer *peer, struct gd_call *call, unsigned how);
/* GR_OK: call->torn names those of the frames that are known to be torn. */
enum gr_result gd_release(struct gd_peer *peer, struct gd_call *call, unsigned how);

enum gd_ending { GD_PUBLISH, GD_ABANDON, GD_RELEASE };
/* The same for one open slot, without a gd_call, if neither the driver nor a torn mark has to be
 * asked. GR_SIGNAL: one has, and nothing was done. */
enum gr_result gd_end_now(struct gd_peer *peer, uint32_t index, enum gd_ending end);

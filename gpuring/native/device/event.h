/* Device order by interprocess events: the synchroniser, and the events of each peer. For a ring
 * with sync "event" only. */
#pragma once

#include "state.h"

extern const struct gd_sync gd_events;

enum gr_result gd_take_events(struct gd_peer *peer, struct gd_trouble *trouble);
void gd_give_events(struct gd_peer *peer);
void gd_drop_rows(struct gd_device *device);
bool gd_event_done(struct gd_device *device, uint32_t owner, uint64_t owner_id, uint32_t index);

/* After a slot was used: promise, record, and what to do when the driver refuses. For the thread
 * that has the slot. */
#pragma once

#include "state.h"

/* Says that the slot will also be used on `stream`. That stream waits for all work on the slot so
 * far, and the slot's end will wait for that stream. */
enum gr_result gd_use_on(struct gd_peer *peer, uint32_t index, gd_stream stream,
                         struct gd_trouble *trouble);
/* Waits until the streams that used the slot are idle. To be called after a promise that may not
 * be reached, or before a frame is opened to other members again. GR_SIGNAL: call again. */
enum gr_result gd_settle(struct gd_peer *peer, struct gd_call *call, uint32_t index);

enum gr_result gd_record(struct gd_peer *peer, struct gd_call *call, uint32_t index,
                         uint64_t *value);
enum gr_result gd_record_all(struct gd_peer *peer, struct gd_call *call, uint64_t *values);
enum gr_result gd_drain(struct gd_peer *peer, struct gd_call *call, unsigned how);
void gd_enter_thread(struct gd_use *use);
void gd_leave_thread(struct gd_use *use);
bool gd_add_stream(struct gd_use *use, gd_stream stream);

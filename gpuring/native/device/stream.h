/* What a stream is asked, and what is put into it. From any thread that has a slot. */
#pragma once

#include "../core/bell.h"
#include "state.h"

/* Whether `stream` may be used for the ring now, in this thread. A thread without a context gets
 * the device's. */
enum gr_result gd_check_stream(struct gd_device *device, gd_stream stream,
                               struct gd_trouble *trouble);
/* Makes `stream` wait for all work so far on `others`. */
enum gr_result gd_follow(struct gd_device *device, gd_stream stream, const gd_stream *others,
                         uint32_t n, struct gd_trouble *trouble);
int gd_captured(const struct gd_device *device, gd_stream stream);
uint64_t gd_stream_id(const struct gd_device *device, gd_stream stream);
uint64_t gd_this_thread(void);

enum gr_result gd_submit(struct gd_peer *peer, struct gd_call *call);
/* Notes in the call what the driver refused. */
enum gr_result gd_refuse(struct gd_call *call, enum gd_where where, gd_stream stream, int status);

enum { GD_SPIN_NS = 200 * 1000 }; /* a hand-over between two contexts takes about 150 µs */
/* Between two looks, in a slice since `start` of a wait since call->since_ns: spins for spin_ns of
 * the wait, and then naps. GR_SIGNAL: the slice is over, or a signal has come. */
enum gr_result gd_rest(struct gd_peer *peer, const struct gd_call *call, int64_t start,
                       int64_t spin_ns);

static inline void gd_pause(void) { /* between two looks at what a GPU has done */
    for (int k = 0; k < 4; k++) gr_pause();
}

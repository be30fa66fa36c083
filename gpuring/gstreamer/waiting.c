#include "waiting.h"

#include <errno.h>

static const gint64 SLICE_NS = 100 * 1000 * 1000; /* after that a wait for a name looks up */
static const double LONGEST_S = 1e12; /* a longer timeout is none: its microseconds would not fit */

gboolean wait_for_fd(GstPoll *cancel, GstClockTime timeout) {
    gint n;
    do n = gst_poll_wait(cancel, timeout);
    while (n < 0 && (errno == EINTR || errno == EAGAIN));
    return n >= 0;
}

gpuring_status wait_for_ring(GstPoll *cancel, const char *name, double timeout_s,
                             gpuring_ring **ring, gpuring_error *error) {
    const gboolean ends = timeout_s >= 0 && timeout_s < LONGEST_S;
    const gint64 until =
        ends ? g_get_monotonic_time() + (gint64)(timeout_s * 1e6) : G_MAXINT64;
    for (;;) {
        gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
        options.device = GPURING_DEVICE_HOST;
        const gint64 left = (until - g_get_monotonic_time());
        options.timeout_ns = left > SLICE_NS / 1000 ? SLICE_NS : MAX(left, 1) * 1000;
        const gpuring_status status = gpuring_attach(name, &options, ring, error);
        const gboolean may_come = status == GPURING_NOT_FOUND || status == GPURING_PEER_LOST;
        if (!may_come || left <= SLICE_NS / 1000) return status;
        if (!wait_for_fd(cancel, 0)) return CANCELLED;
    }
}

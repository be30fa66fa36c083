#include "waiting.h"

#include <errno.h>

static const gint64 SLICE_NS = 100 * 1000 * 1000; /* how often a wait for a ring checks `cancel` */
/* Most copies are done within this time. A longer wait sleeps for NAP between two looks. */
static const gint64 SPIN_US = 50;
static const GstClockTime NAP = 100 * GST_USECOND;
static const double LONGEST_S = 1e12; /* a longer one has no end: its microseconds would overflow */

gboolean wait_for_fd(GstPoll *cancel, GstClockTime timeout) {
    gint n;
    do n = gst_poll_wait(cancel, timeout);
    while (n < 0 && (errno == EINTR || errno == EAGAIN));
    return n >= 0;
}

/* Sleeps for NAP, or until `cancel`. `watched` is left out of the poll: it is readable when a frame
 * or a slot is there, which would end the sleep at once. */
static gboolean nap(GstPoll *cancel, GstPollFD *watched) {
    if (watched->fd >= 0) gst_poll_fd_ctl_read(cancel, watched, FALSE);
    const gboolean goes_on = wait_for_fd(cancel, NAP);
    if (watched->fd >= 0) gst_poll_fd_ctl_read(cancel, watched, TRUE);
    return goes_on;
}

gpuring_status wait_for_copies(const Gpu *gpu, GstPoll *cancel, GstPollFD *watched,
                               gpuring_error *error) {
    const gint64 spins_until = g_get_monotonic_time() + SPIN_US;
    gpuring_status status;
    while ((status = gpu_look(gpu, error)) == GPURING_TIMEOUT)
        if (g_get_monotonic_time() >= spins_until && !nap(cancel, watched)) return CANCELLED;
    return status;
}

gpuring_status attach_ring(const char *name, gint64 timeout_ns, gint device, gint64 owner,
                           gpuring_ring **ring, gpuring_error *error) {
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    options.timeout_ns = timeout_ns;
    options.owner = owner;
    options.device = cuda_is_here() ? device : GPURING_DEVICE_HOST;
    gpuring_status status = gpuring_attach(name, &options, ring, error);
    if (status == GPURING_INVALID && device >= 0) { /* a ring in host memory is used under no GPU */
        options.device = GPURING_DEVICE_HOST;
        status = gpuring_attach(name, &options, ring, error);
    }
    if (status == GPURING_UNSUPPORTED)
        tell(error, status,
             "ring '%s' is in memory of a GPU. This needs a driver of CUDA and the library "
             "libgstcuda-1.0.so.0 of GStreamer, and one of them is not here",
             name);
    return status;
}

gpuring_status wait_for_ring(GstPoll *cancel, const char *name, double timeout_s, gint device,
                             gint64 owner, gpuring_ring **ring, gpuring_error *error) {
    const gboolean ends = timeout_s >= 0 && timeout_s < LONGEST_S;
    const gint64 until =
        ends ? g_get_monotonic_time() + (gint64)(timeout_s * 1e6) : G_MAXINT64;
    for (;;) {
        const gint64 left = (until - g_get_monotonic_time());
        const gint64 slice_ns = left > SLICE_NS / 1000 ? SLICE_NS : MAX(left, 1) * 1000;
        const gpuring_status status = attach_ring(name, slice_ns, device, owner, ring, error);
        const gboolean may_come = status == GPURING_NOT_FOUND || status == GPURING_PEER_LOST;
        if (may_come && left <= SLICE_NS / 1000 && timeout_s > 0) {
            gchar *said = g_strdup(error->text);
            tell(error, status, "%s. No living ring of that name came within %.3g s", said, timeout_s);
            g_free(said);
        }
        if (!may_come || left <= SLICE_NS / 1000) return status;
        if (!wait_for_fd(cancel, 0)) return CANCELLED;
    }
}

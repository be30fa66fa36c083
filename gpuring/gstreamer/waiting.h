/* Waits that an element's unlock() ends: by gst_poll_set_flushing. */
#pragma once

#include "cuda.h"

/* Attaches to a ring of any memory. device: the GPU under which it is used, or -1: the first one, and
 * the CPU for a pinned ring. */
gpuring_status attach_ring(const char *name, gint64 timeout_ns, gint device, gpuring_ring **ring,
                           gpuring_error *error);
/* Waits for the ring, forever if timeout_s is negative. */
gpuring_status wait_for_ring(GstPoll *cancel, const char *name, double timeout_s, gint device,
                             gpuring_ring **ring, gpuring_error *error);
/* Until a descriptor of the set is readable, or the time is over. FALSE: it is to stop. */
gboolean wait_for_fd(GstPoll *cancel, GstClockTime timeout);
/* Until everything in the stream of the GPU is done. CANCELLED: it is to stop. watched: of the set. */
gpuring_status wait_for_copies(const Gpu *gpu, GstPoll *cancel, GstPollFD *watched,
                               gpuring_error *error);

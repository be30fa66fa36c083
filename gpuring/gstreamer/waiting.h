/* Waits that an element's unlock() ends, by gst_poll_set_flushing. */
#pragma once

#include "cuda.h"

/* Attaches to a ring of any kind of memory. device: the GPU on which it is used. -1: the first GPU,
 * or the CPU for a pinned ring. owner: the id of the user whose ring it must be. -1: this process's
 * own user, or root. */
gpuring_status attach_ring(const char *name, gint64 timeout_ns, gint device, gint64 owner,
                           gpuring_ring **ring, gpuring_error *error);
/* Waits until it can attach to the ring, for ever if timeout_s is negative. */
gpuring_status wait_for_ring(GstPoll *cancel, const char *name, double timeout_s, gint device,
                             gint64 owner, gpuring_ring **ring, gpuring_error *error);
/* Waits until a descriptor of the set is readable, or the time is over. FALSE: unlock() was
 * called. */
gboolean wait_for_fd(GstPoll *cancel, GstClockTime timeout);
/* Waits until all work in the stream of the GPU is done. CANCELLED: unlock() was called. watched: a
 * descriptor of the set, which does not end this wait. */
gpuring_status wait_for_copies(const Gpu *gpu, GstPoll *cancel, GstPollFD *watched,
                               gpuring_error *error);

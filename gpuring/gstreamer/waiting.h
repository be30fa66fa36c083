/* Waits that an element's unlock() ends: by gst_poll_set_flushing. */
#pragma once

#include "words.h"

/* Waits for the ring, forever if timeout_s is negative. */
gpuring_status wait_for_ring(GstPoll *cancel, const char *name, double timeout_s,
                             gpuring_ring **ring, gpuring_error *error);
/* Until a descriptor of the set is readable, or the time is over. FALSE: it is to stop. */
gboolean wait_for_fd(GstPoll *cancel, GstClockTime timeout);

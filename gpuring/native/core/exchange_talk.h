/* Connections whose other side has not been heard yet, and the thread that hears them. For the
 * watchdog, under gr_lock_handles. None of it waits. */
#pragma once

#include <poll.h>

#include "process.h"
#include "ring.h"
#include "thread.h"

/* Starts the hearer, unless it runs. It wakes that thread when there is room for talks again. */
void gr_start_hearer(struct gr_thread *wakes);
/* Asks a process of the ring for its pidfd, unless it was asked and has time to answer. */
void gr_ask_for_pidfd(struct gr_ring *ring, const struct gr_who *who);
/* Lists the sockets at which to listen, at most `most` of them; returns how many. */
uint32_t gr_list_sockets(const struct gr_ring *handles, struct pollfd *polled, uint32_t most);
/* Answers whoever is there. False: not all can be answered now, so the sockets stay readable. */
bool gr_answer(struct gr_ring *handles);
void gr_end_talks(void);   /* has the hearer do that */
void gr_close_talks(void); /* in a forked child, whose parent has them, too; and ends the hearer */

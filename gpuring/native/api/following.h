/* At the end of a stream: waiting until it goes on, here or in the next ring of that name.
 *
 * An endpoint with `reattach` does not report the end of the stream, but waits until the stream
 * goes on. So does a consumer that has joined between two producers of a ring whose creator
 * lives. */
#pragma once

#include "opaque.h"

/* Keeps a copy of the options, to join the next ring with them. NULL: no memory. */
struct follower *follower_of_producer(const gpuring_producer_options *options);
struct follower *follower_of_consumer(const gpuring_consumer_options *options,
                                      const char name[GH_SUBSCRIPTION]);

/* Whether `result` of a verb is an end that this endpoint waits out. */
bool waits_out(const struct endpoint *end, enum gr_result result);
/* After such a result: waits until the verb is to be tried again, and moves to the next ring if
 * there is one. GPURING_TIMEOUT, without words: the deadline has come. */
gpuring_status wait_out(struct endpoint *end, int64_t deadline_ns, gpuring_error *error);
/* The same without a wait. *goes_on: the verb is to be tried again. */
gpuring_status look_on(struct endpoint *end, bool *goes_on, gpuring_error *error);
/* Whether the endpoint is at an end that it waits out. If so, this is noted. */
bool rests(struct endpoint *end);

/* The descriptor of an endpoint with a notifier. With `reattach` it also becomes readable when a
 * name comes that may be that of the next ring. -1: errno. */
int follower_fd(struct endpoint *end);
/* Called when a verb was refused: arms the descriptor to become readable when the verb may have an
 * answer. */
void arm_fd(struct endpoint *end, bool at_end);

/* Frees what was kept for the endpoint, when it has left its ring for good. */
void end_following(struct endpoint *end);

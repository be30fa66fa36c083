/* How producers and consumers join and leave a ring. Results of the core become statuses here. */
#pragma once

#include "../core/peer.h"
#include "../host/diagnosis.h"
#include "opaque.h"

/* Joins `end->ring` as the options say; the counterpart of endpoint_leave. */
gpuring_status join_as_producer(struct endpoint *end, const gpuring_producer_options *options,
                                gpuring_error *error);
gpuring_status join_as_consumer(struct endpoint *end, const gpuring_consumer_options *options,
                                const char name[GH_SUBSCRIPTION], gpuring_error *error);
/* How many producers have left the ring or died. */
static inline int64_t producers_gone(const struct gr_ring *header) {
    const uint64_t word = gr_load_acquire(&header->head->producers);
    return (int64_t)(left_of(word) + died_of(word));
}
/* Abandons or releases what is open, and leaves. If this fails, it is still open. */
gpuring_status endpoint_leave(struct endpoint *end, gpuring_error *error);
/* The error for what the core refuses to any call. */
gpuring_status endpoint_unusable(const struct endpoint *end, enum gr_result result,
                                 gpuring_error *error);

/* How producers and consumers join and leave a ring. Results of the core become statuses here. */
#pragma once

#include "../core/peer.h"
#include "../host/diagnosis.h"
#include "opaque.h"

/* How it waits, and on which stream. */
struct endpoint_options {
    const char *subscription; /* NULL of a producer */
    const char *label;
    int64_t spin_ns;
    void *stream;
    gpuring_gate gate;
};
/* After the core's join: its watchdog, its label, its slots, how it waits. result: that of the core.
 * If it is not GR_OK, the status says why, and there is nothing to leave. */
gpuring_status endpoint_begin(struct endpoint *end, enum gr_result result,
                              const struct endpoint_options *options, gpuring_error *error);
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

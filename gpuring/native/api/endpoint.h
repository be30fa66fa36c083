/* What producers and consumers have in common. Results of the core become statuses here. */
#pragma once

#include "../device/verbs.h"
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
/* After the core's join: its watchdog, its label, its slots, how it waits. result: that of the core. If
 * it is not GR_OK, the status says why, and there is nothing to leave. */
gpuring_status endpoint_begin(struct endpoint *end, enum gr_result result,
                              const struct endpoint_options *options, gpuring_error *error);
/* Abandons or releases what is open, and leaves. If this fails, it is still open. */
gpuring_status endpoint_leave(struct endpoint *end, gpuring_error *error);

/* Claims or acquires a slot, or up to `wanted` of them. */
gpuring_status endpoint_take(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                             gpuring_slot *slot, gpuring_error *error);
gpuring_status endpoint_take_many(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                                  gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                  gpuring_error *error);

enum end_verb { END_PUBLISH, END_ABANDON, END_RELEASE };
gpuring_status endpoint_end(struct endpoint *end, enum end_verb verb, gpuring_slot *slot,
                            gpuring_error *error);
gpuring_status endpoint_end_many(struct endpoint *end, enum end_verb verb, gpuring_slot *slots,
                                 uint32_t count, gpuring_error *error);

gpuring_status endpoint_use_on(struct endpoint *end, const gpuring_slot *slot, void *stream,
                               gpuring_error *error);

/* The error for what the core refuses to any call. */
gpuring_status endpoint_unusable(const struct endpoint *end, enum gr_result result,
                                 gpuring_error *error);
/* A slot of an array, whose elements have the caller's size. */
gpuring_slot *slot_at(gpuring_slot *slots, uint32_t k);
/* Whether a frame can have this shape: it is not empty, and fits into the only field. */
bool shape_fits(const struct gh_spec *spec, uint32_t dimensions, const uint64_t *shape);

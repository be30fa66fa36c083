/* What producers and consumers have in common. Results of the core become statuses here. */
#pragma once

#include "../device/verbs.h"
#include "following.h"
#include "left_behind.h"
#include "membership.h"

/* Leaves the ring, and the earlier rings that the endpoint has left behind. */
gpuring_status endpoint_close(struct endpoint *end, gpuring_error *error);

/* Claims or acquires a slot, or up to `wanted` of them. */
gpuring_status endpoint_take(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                             gpuring_slot *slot, gpuring_error *error);
gpuring_status endpoint_take_many(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                                  gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                  gpuring_error *error);

gpuring_status endpoint_end(struct endpoint *end, enum gd_ending verb, gpuring_slot *slot,
                            gpuring_error *error);
gpuring_status endpoint_end_many(struct endpoint *end, enum gd_ending verb, gpuring_slot *slots,
                                 uint32_t count, gpuring_error *error);

gpuring_status endpoint_use_on(struct endpoint *end, const gpuring_slot *slot, void *stream,
                               gpuring_error *error);

/* A slot of an array, whose elements have the caller's size. */
gpuring_slot *slot_at(gpuring_slot *slots, uint32_t k);
/* Whether a frame can have this shape: it is not empty, and fits into the only field. */
bool shape_fits(const struct gh_spec *spec, uint32_t dimensions, const uint64_t *shape);

/* The verbs of producers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../core/claim.h"
#include "../core/handles.h"
#include "endpoint.h"

gpuring_status gpuring_join_producer(gpuring_ring *ring, const gpuring_producer_options *given,
                                     gpuring_producer **producer, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED(producer, error);
    *producer = NULL;
    OPTIONS_OF(gpuring_producer_options, spin_ns, given, GPURING_PRODUCER_OPTIONS, error);
    NEED(ring, error);
    NEED_NS(&options, spin_ns, GPURING_SPIN_ADAPTIVE, error);
    NEED_GATE(&options, error);
    if (options.label) {
        const gpuring_status status = gh_check_label(options.label, strlen(options.label), error);
        if (status != GPURING_OK) return status;
    }
    gpuring_producer *made = calloc(1, sizeof *made);
    if (!made) return gh_fail_system(error, ENOMEM, ring->name);
    made->end.ring = ring;
    gpuring_status status = GPURING_OK;
    if (options.reattach && !ring->created &&
        !(made->end.follows = follower_of_producer(&options)))
        status = gh_fail_system(error, ENOMEM, ring->name);
    if (status == GPURING_OK) status = join_as_producer(&made->end, &options, error);
    if (status == GPURING_OK) *producer = made;
    else {
        free(made->end.follows);
        free(made);
    }
    return status;
}

gpuring_status gpuring_close_producer(gpuring_producer *producer, gpuring_error *error) {
    MIND_NO_ERROR(error);
    if (!producer) return GPURING_OK;
    const gpuring_status status = endpoint_close(&producer->end, error);
    if (status == GPURING_OK) free(producer);
    return status;
}

gpuring_ring *gpuring_producer_ring(const gpuring_producer *producer) {
    return producer ? ring_told(&producer->end) : NULL;
}

uint32_t gpuring_producer_number(const gpuring_producer *producer) {
    return producer ? producer->end.peer.core.self.number : UINT32_MAX;
}

gpuring_status gpuring_claim(gpuring_producer *producer, int64_t timeout_ns, gpuring_slot *slot,
                             gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return endpoint_take(&producer->end, GH_CLAIM, timeout_ns, slot, error);
}

gpuring_status gpuring_claim_many(gpuring_producer *producer, int64_t timeout_ns,
                                  gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                  gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return endpoint_take_many(&producer->end, GH_CLAIM, timeout_ns, slots, wanted, got,
                              error);
}

gpuring_status gpuring_try_claim(gpuring_producer *producer, gpuring_slot *slot,
                                 gpuring_error *error) {
    const gpuring_status status = gpuring_claim(producer, 0, slot, error);
    if (status == GPURING_FULL) gr_drop(&producer->end.peer.core);
    return status;
}

gpuring_status gpuring_set_shape(gpuring_producer *producer, gpuring_slot *slot,
                                 uint32_t dimensions, const uint64_t *shape,
                                 gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    NEED(slot, error);
    struct endpoint *end = where_open(&producer->end, slot);
    const gpuring_ring *ring = end->ring;
    const struct gh_field *field = &ring->spec.field[0];
    if (slot->number >= ring->header->slots ||
        end->peer.use[slot->number].seq != slot->seq || !end->peer.use[slot->number].open)
        return gh_fail(error, GPURING_INVALID, "ring '%s': sequence %llu is not claimed here",
                       ring->name, (unsigned long long)slot->seq);
    if (ring->spec.fields != 1)
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s' has several fields: a smaller shape is for one", ring->name);
    if (dimensions < 1 || dimensions > GPURING_MAX_DIMENSIONS)
        return gh_fail(error, GPURING_INVALID, "a smaller frame has 1 to %d dimensions, not %u",
                       GPURING_MAX_DIMENSIONS, dimensions);
    NEED(shape, error); /* that of no dimensions may be NULL, as in C++ */
    if (!shape_fits(&ring->spec, dimensions, shape))
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': a frame of that shape is empty or does not fit: the slot "
                       "has %llu bytes",
                       ring->name, (unsigned long long)field->nbytes);
    struct gd_use *use = &end->peer.use[slot->number];
    use->ndim = dimensions;
    memcpy(use->shape, shape, dimensions * sizeof *shape);
    if (HAS_SIZE(slot, shape)) {
        slot->dimensions = dimensions;
        memcpy(slot->shape, shape, dimensions * sizeof *shape);
    }
    return GPURING_OK;
}

gpuring_status gpuring_publish(gpuring_producer *producer, gpuring_slot *slot,
                               gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return endpoint_end(&producer->end, GD_PUBLISH, slot, error);
}

gpuring_status gpuring_publish_many(gpuring_producer *producer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return endpoint_end_many(&producer->end, GD_PUBLISH, slots, count, error);
}

gpuring_status gpuring_abandon(gpuring_producer *producer, gpuring_slot *slot,
                               gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return endpoint_end(&producer->end, GD_ABANDON, slot, error);
}

void gpuring_producer_stream(gpuring_producer *producer, void *stream) {
    if (producer) use_stream(&producer->end, stream);
}

gpuring_status gpuring_producer_use_on(gpuring_producer *producer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return endpoint_use_on(&producer->end, slot, stream, error);
}

/* The verbs of consumers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../core/acquire.h"
#include "../core/handles.h"
#include "../core/members.h"
#include "endpoint.h"
#include "durable.h"

static gpuring_status check(const gpuring_consumer_options *options, char name[GH_SUBSCRIPTION],
                            gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    if (options->label) status = gh_check_label(options->label, strlen(options->label), error);
    if (status != GPURING_OK) return status;
    if (options->durable && !options->subscription)
        return gh_fail(error, GPURING_INVALID,
                       "a durable subscription needs a name, by which it is found again");
    NEED_NS(options, spin_ns, GPURING_SPIN_ADAPTIVE, error);
    NEED_GATE(options, error);
    NEED_NS(options, patience_ns, GPURING_FOREVER, error);
    if (options->patience_ns && !options->durable)
        return gh_fail(error, GPURING_INVALID, "patience_ns is for a durable subscription");
    return options->subscription ? subscription_named(options->subscription, name, error)
                                 : gh_name_none(name, error);
}

/* If it has joined between two producers, it waits for the next one. */
static void note_late(struct endpoint *end) {
    const int64_t gone = producers_gone(end->ring->header); /* before the look */
    uint64_t seq;
    struct gr_culprit culprit;
    const enum gr_result result = gr_look(&end->peer.core, &seq, &culprit);
    if ((result == GR_ENDED || result == GR_PEER_LOST) && end->ring->header->producers_in_all == 1)
        end->late = gone;
}

gpuring_status gpuring_join_consumer(gpuring_ring *ring, const gpuring_consumer_options *given,
                                     gpuring_consumer **consumer, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED(consumer, error);
    *consumer = NULL;
    OPTIONS_OF(gpuring_consumer_options, spin_ns, given, GPURING_CONSUMER_OPTIONS, error);
    NEED(ring, error);
    if (gr_forked(ring->header)) {
        const struct endpoint end = {.ring = ring};
        return endpoint_unusable(&end, GR_FORKED, error);
    }
    char name[GH_SUBSCRIPTION];
    gpuring_status status = check(&options, name, error);
    if (status != GPURING_OK) return status;
    gpuring_consumer *made = calloc(1, sizeof *made);
    if (!made) return gh_fail_system(error, ENOMEM, ring->name);
    made->end.ring = ring;
    if (options.reattach && !(made->end.follows = follower_of_consumer(&options, name)))
        status = gh_fail_system(error, ENOMEM, ring->name);
    if (status == GPURING_OK) status = join_as_consumer(&made->end, &options, name, error);
    if (status != GPURING_OK) {
        free(made->end.follows);
        free(made);
        return status;
    }
    if (ring->spec.is_bridged) gr_count_since(&made->end.peer.core, ring->spec.lost_before);
    note_late(&made->end);
    *consumer = made;
    return GPURING_OK;
}

gpuring_status gpuring_close_consumer(gpuring_consumer *consumer, gpuring_error *error) {
    MIND_NO_ERROR(error);
    if (!consumer) return GPURING_OK;
    const gpuring_status status = endpoint_close(&consumer->end, error);
    if (status == GPURING_OK) free(consumer);
    return status;
}

gpuring_ring *gpuring_consumer_ring(const gpuring_consumer *consumer) {
    return consumer ? ring_told(&consumer->end) : NULL;
}

uint32_t gpuring_consumer_number(const gpuring_consumer *consumer) {
    return consumer ? consumer->end.peer.core.self.number : UINT32_MAX;
}

gpuring_status gpuring_acquire(gpuring_consumer *consumer, int64_t timeout_ns, gpuring_slot *slot,
                               gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_take(&consumer->end, GH_ACQUIRE, timeout_ns, slot, error);
}

gpuring_status gpuring_acquire_many(gpuring_consumer *consumer, int64_t timeout_ns,
                                    gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                    gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_take_many(&consumer->end, GH_ACQUIRE, timeout_ns, slots, wanted, got,
                              error);
}

gpuring_status gpuring_latest(gpuring_consumer *consumer, int64_t timeout_ns, gpuring_slot *slot,
                              gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    if (consumer->end.peer.core.self.mode == GR_LOSSLESS)
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': gpuring_latest skips frames, so it needs a lossy consumer",
                       consumer->end.ring->name);
    return endpoint_take(&consumer->end, GH_LATEST, timeout_ns, slot, error);
}

gpuring_status gpuring_release(gpuring_consumer *consumer, gpuring_slot *slot,
                               gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_end(&consumer->end, GD_RELEASE, slot, error);
}

gpuring_status gpuring_release_many(gpuring_consumer *consumer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_end_many(&consumer->end, GD_RELEASE, slots, count, error);
}

void gpuring_consumer_stream(gpuring_consumer *consumer, void *stream) {
    if (consumer) use_stream(&consumer->end, stream);
}

gpuring_status gpuring_consumer_use_on(gpuring_consumer *consumer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_use_on(&consumer->end, slot, stream, error);
}

/* The verbs of consumers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../core/acquire.h"
#include "../core/handles.h"
#include "../core/members.h"
#include "endpoint.h"

/* Python settles what earlier rings owe a durable subscription before it joins one. This library
 * does not, so it would not tell of those losses. */
static bool may_be_owed(const struct gr_ring *header, const char name[GH_SUBSCRIPTION]) {
    for (uint32_t u = 0; u < header->max_subscriptions; u++) {
        const struct gr_sub *sub = &header->sub[u];
        const uint64_t word = gr_load_acquire(&sub->word);
        if (mode_of(word) != GR_SUB_FREE && policy_of(word) & GR_DURABLE &&
            gr_load_acquire(&sub->earlier) && memcmp(sub->name, name, GH_SUBSCRIPTION) == 0)
            return true;
    }
    return false;
}

static gpuring_status check(const gpuring_ring *ring, const gpuring_consumer_options *options,
                            char name[GH_SUBSCRIPTION], gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    memset(name, 0, GH_SUBSCRIPTION);
    if (options->label) status = gh_check_label(options->label, strlen(options->label), error);
    if (status != GPURING_OK) return status;
    if (options->start < GPURING_START_OLDEST || options->start >= INT64_C(1) << 47)
        return gh_fail(error, GPURING_INVALID,
                       "start is GPURING_START_NEXT, GPURING_START_OLDEST or a sequence, not %lld",
                       (long long)options->start);
    if (!options->subscription) return gh_name_none(name, error);
    const size_t nbytes = strlen(options->subscription);
    status = gh_check_subscription(options->subscription, nbytes, error);
    if (status != GPURING_OK) return status;
    memcpy(name, options->subscription, nbytes);
    if (may_be_owed(ring->header, name))
        return gh_fail(error, GPURING_UNSUPPORTED,
                       "ring '%s': earlier rings of this name may owe frames to the durable "
                       "subscription '%s', and this library cannot tell of them. Join it from "
                       "Python first",
                       ring->name, options->subscription);
    return GPURING_OK;
}

static enum gr_result join(gpuring_consumer *made, const gpuring_consumer_options *options,
                           const char name[GH_SUBSCRIPTION]) {
    const enum gr_start from = options->start == GPURING_START_NEXT     ? GR_START_NEXT
                               : options->start == GPURING_START_OLDEST ? GR_START_OLDEST
                                                                        : GR_START_AT;
    return gr_join_consumer(made->end.ring->header, name, options->lossy ? GR_LOSSY : GR_LOSSLESS,
                            options->drop ? GR_DROP : GR_REDELIVER, from,
                            from == GR_START_AT ? (uint64_t)options->start : 0,
                            &made->end.peer.core);
}

gpuring_status gpuring_join_consumer(gpuring_ring *ring, const gpuring_consumer_options *given,
                                     gpuring_consumer **consumer, gpuring_error *error) {
    MIND_NO_ERROR(error);
    *consumer = NULL;
    OPTIONS_OF(gpuring_consumer_options, spin_ns, given, GPURING_CONSUMER_OPTIONS, error);
    NEED_HANDLE(ring, error);
    if (gr_forked(ring->header)) {
        const struct endpoint end = {.ring = ring};
        return endpoint_unusable(&end, GR_FORKED, error);
    }
    char name[GH_SUBSCRIPTION];
    gpuring_status status = check(ring, &options, name, error);
    if (status != GPURING_OK) return status;
    gpuring_consumer *made = calloc(1, sizeof *made);
    if (!made) return gh_fail_system(error, ENOMEM, ring->name);
    made->end.ring = ring;
    const enum gr_result result = join(made, &options, name);
    const struct endpoint_options more = {.subscription = name,
                                          .label = options.label,
                                          .spin_ns = options.spin_ns,
                                          .stream = options.stream,
                                          .gate = options.gate};
    status = endpoint_begin(&made->end, result, &more, error);
    if (status != GPURING_OK) {
        free(made);
        return status;
    }
    made->end.peer.core.cursor.told_deaths = options.deaths;
    if (ring->spec.is_bridged) gr_count_since(&made->end.peer.core, ring->spec.lost_before);
    *consumer = made;
    return GPURING_OK;
}

gpuring_status gpuring_close_consumer(gpuring_consumer *consumer, gpuring_error *error) {
    MIND_NO_ERROR(error);
    if (!consumer) return GPURING_OK;
    const gpuring_status status = endpoint_leave(&consumer->end, error);
    if (status == GPURING_OK) free(consumer);
    return status;
}

uint32_t gpuring_consumer_number(const gpuring_consumer *consumer) {
    return consumer->end.peer.core.self.number;
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
    return endpoint_end(&consumer->end, END_RELEASE, slot, error);
}

gpuring_status gpuring_release_many(gpuring_consumer *consumer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_end_many(&consumer->end, END_RELEASE, slots, count, error);
}

void gpuring_consumer_stream(gpuring_consumer *consumer, void *stream) {
    consumer->end.stream = stream;
}

gpuring_status gpuring_consumer_use_on(gpuring_consumer *consumer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return endpoint_use_on(&consumer->end, slot, stream, error);
}

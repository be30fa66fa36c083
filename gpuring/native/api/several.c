/* Waiting for several producers and consumers, and descriptors. */
#include <errno.h>
#include <string.h>

#include "../core/bell.h"
#include "../core/handles.h"
#include "../core/notify.h"
#include "../core/wait.h"
#include "../device/released.h"
#include "endpoint.h"

static gpuring_waited *waited_at(gpuring_waited *waited, uint32_t k) {
    return (gpuring_waited *)((char *)waited + k * waited[0].size);
}

static struct endpoint *endpoint_of(const gpuring_waited *waited) {
    if (waited->producer) return &waited->producer->end;
    return waited->consumer ? &waited->consumer->end : NULL;
}

gpuring_status gpuring_select(gpuring_waited *waited, uint32_t count, int64_t timeout_ns,
                              gpuring_error *error) {
    struct gr_peer *peers[GR_MAX_WAITED];
    bool ready[GR_MAX_WAITED] = {false}, torn[GR_MAX_WAITED] = {false};
    const int64_t begun = gr_now_ns();
    int64_t deadline = deadline_of(timeout_ns);
    MIND_NO_ERROR(error);
    if (count < 1 || count > GR_MAX_WAITED)
        return gh_fail(error, GPURING_INVALID, "1 to %d can be waited for, not %u", GR_MAX_WAITED,
                       count);
    NEED_SIZE(&waited[0], ready, error);
    for (uint32_t k = 0; k < count; k++) {
        struct endpoint *end = endpoint_of(waited_at(waited, k));
        if (!end || (waited_at(waited, k)->producer && waited_at(waited, k)->consumer))
            return gh_fail(error, GPURING_INVALID, "number %u is not one producer or consumer", k);
        if (gr_forked(end->ring->header)) return endpoint_unusable(end, GR_FORKED, error);
        peers[k] = &end->peer.core;
        torn[k] = gd_would_report(&end->peer);
        if (torn[k]) deadline = 0;
    }
    while (gr_select(peers, count, begun, deadline, ready) == GR_SIGNAL) continue;
    bool any = false;
    for (uint32_t k = 0; k < count; k++)
        any |= waited_at(waited, k)->ready = ready[k] || torn[k];
    if (any) return GPURING_OK;
    return gh_fail(error, GPURING_TIMEOUT, "none of %u had an answer within %g s", count,
                   (double)timeout_ns / 1e9);
}

/* The descriptor is armed once, and then by each call that times out. */
static gpuring_status descriptor(struct endpoint *end, int *fd, gpuring_error *error) {
    *fd = -1;
    if (gr_forked(end->ring->header)) return endpoint_unusable(end, GR_FORKED, error);
    if (!end->notifier) {
        end->notifier = gr_notifier_open();
        if (!end->notifier) return gh_fail_system(error, errno, end->ring->name);
        gr_notifier_arm(end->notifier, &end->peer.core, false);
    }
    *fd = gr_notifier_fd(end->notifier);
    return GPURING_OK;
}

gpuring_status gpuring_producer_fd(gpuring_producer *producer, int *fd, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(producer, error);
    return descriptor(&producer->end, fd, error);
}

gpuring_status gpuring_consumer_fd(gpuring_consumer *consumer, int *fd, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED_HANDLE(consumer, error);
    return descriptor(&consumer->end, fd, error);
}

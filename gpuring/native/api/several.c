/* Waiting for several producers and consumers, and descriptors. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "../core/bell.h"
#include "../core/handles.h"
#include "../core/notify.h"
#include "../core/wait.h"
#include "../device/released.h"
#include "descriptor.h"
#include "endpoint.h"

static gpuring_waited *waited_at(gpuring_waited *waited, uint32_t k) {
    return (gpuring_waited *)((char *)waited + k * waited[0].size);
}

static struct endpoint *endpoint_of(const gpuring_waited *waited) {
    if (waited->producer) return &waited->producer->end;
    return waited->consumer ? &waited->consumer->end : NULL;
}

struct several {
    struct endpoint *end[GR_MAX_WAITED];
    bool ready[GR_MAX_WAITED];
    uint32_t n;
};

/* Moves on the endpoints whose next ring is there. Returns how many still wait for theirs, which are
 * in `resting`; `peers` has the others. */
static uint32_t look_at_all(struct several *several, struct gr_peer **resting,
                            struct gr_peer **peers, uint32_t *number, uint32_t *n, bool *any) {
    uint32_t rest_n = 0;
    *n = 0;
    for (uint32_t k = 0; k < several->n; k++) {
        struct endpoint *end = several->end[k];
        gpuring_error error;
        bool rest = rests(end), goes_on;
        several->ready[k] = gd_would_report(&end->peer);
        if (rest && look_on(end, &goes_on, &error) != GPURING_OK) several->ready[k] = true;
        else if (rest) rest = !goes_on;
        *any |= several->ready[k];
        if (rest) resting[rest_n++] = &end->peer.core;
        else {
            number[*n] = k;
            peers[(*n)++] = &end->peer.core;
        }
    }
    return rest_n;
}

static bool wait_for_any(struct several *several, int64_t deadline) {
    struct gr_peer *peers[GR_MAX_WAITED], *resting[GR_MAX_WAITED];
    uint32_t number[GR_MAX_WAITED], n;
    const int64_t begun = gr_now_ns();
    for (;;) {
        bool found[GR_MAX_WAITED] = {false}, any = false;
        const uint32_t rest_n = look_at_all(several, resting, peers, number, &n, &any);
        const int64_t now = gr_now_ns(), again = rest_n ? now + LOOK_AGAIN_NS : INT64_MAX;
        const int64_t until = any ? 0 : again < deadline ? again : deadline;
        /* They sleep at no bell of theirs, and others are to see that they wait. */
        for (uint32_t k = 0; k < rest_n; k++) gr_announce(resting[k], GR_SLEEPING);
        if (n) {
            while (gr_select(peers, n, begun, until, found) == GR_SIGNAL) continue;
        } else if (until > now) {
            const struct timespec nap = {.tv_nsec = until - now};
            nanosleep(&nap, NULL);
        }
        for (uint32_t k = 0; k < rest_n; k++) gr_withdraw(resting[k], GR_SLEEPING);
        for (uint32_t k = 0; k < n; k++) /* one that has come to its end meanwhile rests */
            if (found[k] && !rests(several->end[number[k]])) several->ready[number[k]] = any = true;
        if (any || gr_now_ns() >= deadline) return any;
    }
}

gpuring_status gpuring_select(gpuring_waited *waited, uint32_t count, int64_t timeout_ns,
                              gpuring_error *error) {
    struct several several = {.n = count};
    const int64_t deadline = deadline_of(timeout_ns);
    MIND_NO_ERROR(error);
    if (count < 1 || count > GR_MAX_WAITED)
        return gh_fail(error, GPURING_INVALID, "1 to %d can be waited for, not %u", GR_MAX_WAITED,
                       count);
    NEED_SIZE(waited, ready, "GPURING_WAITED", error);
    NEED_TIMEOUT(timeout_ns, error);
    for (uint32_t k = 0; k < count; k++) {
        struct endpoint *end = endpoint_of(waited_at(waited, k));
        if (!end || (waited_at(waited, k)->producer && waited_at(waited, k)->consumer))
            return gh_fail(error, GPURING_INVALID, "number %u is not one producer or one consumer", k);
        if (gr_forked(end->ring->header)) return endpoint_unusable(end, GR_FORKED, error);
        several.end[k] = end;
    }
    const bool any = wait_for_any(&several, deadline);
    for (uint32_t k = 0; k < count; k++) waited_at(waited, k)->ready = several.ready[k];
    if (any) return GPURING_OK;
    return gh_fail(error, GPURING_TIMEOUT, "none of %u had an answer within %g s", count,
                   (double)timeout_ns / 1e9);
}

/* The descriptor is armed once, and then by each call that times out. */
static gpuring_status descriptor(struct endpoint *end, int *fd, gpuring_error *error) {
    NEED(fd, error);
    *fd = -1;
    if (gr_forked(end->ring->header)) return endpoint_unusable(end, GR_FORKED, error);
    if (!end->notifier) {
        end->notifier = gr_notifier_open();
        if (!end->notifier) return gh_fail_system(error, errno, end->ring->name);
        gr_notifier_arm(end->notifier, &end->peer.core, false);
    }
    *fd = follower_fd(end);
    return *fd < 0 ? gh_fail_system(error, errno, end->ring->name) : GPURING_OK;
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

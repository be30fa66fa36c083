/* Over restarts: the end of a stream, and the next ring. */
#include "following.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../core/acquire.h"
#include "../core/annex.h"
#include "../core/bell.h"
#include "../core/handles.h"
#include "../core/lock.h"
#include "../core/notify.h"
#include "../host/arrivals.h"
#include "../host/taking.h"
#include "descriptor.h"
#include "left_behind.h"
#include "membership.h"

struct follower {
    struct descriptor descriptor;
    gpuring_producer_options producer;
    gpuring_consumer_options consumer;
    char name[GH_SUBSCRIPTION], label[GH_LABEL + 1], subscription[GH_SUBSCRIPTION + 1];
};

static struct follower *follower_named(const char *label) {
    struct follower *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->descriptor = (struct descriptor)NO_DESCRIPTOR;
    if (label) strcpy(made->label, label); /* it was checked */
    return made;
}

/* The options are kept for the joins after a restart, and what they point to may be gone by then.
 * So each option that is a pointer gets a copy of its own here, for producers and for consumers.
 * `stream` is a handle, which is only passed on. */
struct follower *follower_of_producer(const gpuring_producer_options *options) {
    struct follower *made = follower_named(options->label);
    if (!made) return NULL;
    made->producer = *options;
    if (options->label) made->producer.label = made->label;
    return made;
}

struct follower *follower_of_consumer(const gpuring_consumer_options *options,
                                      const char name[GH_SUBSCRIPTION]) {
    struct follower *made = follower_named(options->label);
    if (!made) return NULL;
    made->consumer = *options;
    made->consumer.start = GPURING_START_OLDEST;
    memcpy(made->name, name, GH_SUBSCRIPTION);
    memcpy(made->subscription, name, GH_SUBSCRIPTION);
    if (options->label) made->consumer.label = made->label;
    if (options->subscription) made->consumer.subscription = made->subscription;
    return made;
}

/* ---- at the end ------------------------------------------------------------------------------ */

static bool is_consumer(const struct endpoint *end) {
    return end->peer.core.self.role == GR_CONSUMER;
}

static bool is_end(const struct endpoint *end, enum gr_result result) {
    return is_consumer(end) ? result == GR_ENDED || result == GR_PEER_LOST : result == GR_CLOSED;
}

bool waits_out(const struct endpoint *end, enum gr_result result) {
    struct gr_ring *header = end->ring->header;
    if (!is_end(end, result)) return false;
    return end->follows ||
           (end->late >= 0 && end->late == producers_gone(header) && gr_creator_alive(header) &&
            !gr_load_acquire(&header->head->closed));
}

/* Notes that the stream has ended. For an endpoint that joined after the end, it has not begun yet. */
static void begin_rest(struct endpoint *end) {
    end->restarted |= end->late != producers_gone(end->ring->header);
}

bool rests(struct endpoint *end) {
    uint64_t seq;
    struct gr_culprit culprit;
    if (!end->follows && end->late < 0) return false; /* most of them: without a look */
    if (!waits_out(end, gr_look(&end->peer.core, &seq, &culprit))) return false;
    begin_rest(end);
    return true;
}

/* ---- its descriptor -------------------------------------------------------------------------- */

int follower_fd(struct endpoint *end) {
    const int bell = gr_notifier_fd(end->notifier);
    return end->follows ? descriptor_fd(&end->follows->descriptor, bell) : bell;
}

void arm_fd(struct endpoint *end, bool at_end) {
    if (!at_end && end->follows) hear_no_names(&end->follows->descriptor);
    if (!at_end || is_consumer(end)) gr_notifier_arm(end->notifier, &end->peer.core, at_end);
    else gr_notifier_clear(end->notifier); /* no bell tells of another ring, but names do */
}

/* ---- the next ring --------------------------------------------------------------------------- */

/* Losses on the way into the next ring count from our last frame. */
static void count_on(const struct endpoint *end, struct endpoint *next) {
    struct gr_watermark mark = {.lost = 0};
    struct gr_cursor *cursor = &next->peer.core.cursor;
    const struct gh_spec *spec = &next->ring->spec;
    const int64_t begun = spec->is_bridged ? spec->lost_before : 0;
    gr_link(end->ring->header, &mark);
    gr_count_before(&next->peer.core);
    cursor->counts_on = end->peer.core.cursor.counts_on;
    cursor->lost_before = begun >= (int64_t)mark.lost ? end->peer.core.cursor.lost_before
                                                      : (uint32_t)begun;
}

/* The next ring is used under the same GPU, or without one if it is in host memory. */
static gpuring_status attach_to_next(const gpuring_ring *ring, gpuring_ring **next,
                                     gpuring_error *error) {
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    options.owner = ring->owner;
    options.device = ring->gpu < 0 ? ring->device : ring->gpu;
    return try_to_attach(ring->name, &options, false, next, error);
}

/* Whether another try cannot change the error. */
static bool is_for_good(gpuring_status status) {
    return status == GPURING_INVALID || status == GPURING_FORKED || status == GPURING_DEVICE ||
           status == GPURING_UNSUPPORTED;
}

/* *moved: false if the next ring cannot be joined, because it was closed or is full. There may be
 * another one soon. */
static gpuring_status move(struct endpoint *end, bool *moved, gpuring_error *error) {
    gpuring_ring *ring;
    *moved = false;
    gpuring_status status = attach_to_next(end->ring, &ring, error);
    if (status != GPURING_OK) return is_for_good(status) ? status : GPURING_OK;
    ring->is_followed = true;
    struct endpoint next = {.ring = ring, .late = -1};
    const struct follower *as = end->follows;
    status = is_consumer(end) ? join_as_consumer(&next, &as->consumer, as->name, error)
                              : join_as_producer(&next, &as->producer, error);
    if (status != GPURING_OK) {
        gpuring_detach(ring, NULL);
        return is_for_good(status) ? status : GPURING_OK;
    }
    if (is_consumer(end)) count_on(end, &next);
    status = leave_behind(end, &next, error);
    if (status != GPURING_OK) {
        next.notifier = NULL;
        next.peer.core.self.dropped = true; /* nobody could leave the next ring later */
        endpoint_leave(&next, NULL);
        gpuring_detach(ring, NULL);
        return status;
    }
    end->ring = ring;
    end->data = next.data;
    end->host = next.host;
    end->peer = next.peer; /* nobody has its mutex, as above */
    pthread_mutex_init(&end->peer.released.mutex, NULL);
    pthread_mutex_destroy(&next.peer.released.mutex);
    end->notifier = next.notifier;
    end->restarted = true;
    end->late = -1;
    *moved = true;
    return GPURING_OK;
}

gpuring_status look_on(struct endpoint *end, bool *goes_on, gpuring_error *error) {
    uint64_t seq;
    struct gr_culprit culprit;
    if (end->follows) listen_to_names(&end->follows->descriptor);
    const enum gr_result result = gr_look(&end->peer.core, &seq, &culprit);
    *goes_on = false;
    /* The stream is over, but another member holds a frame, and may give it back. */
    if (result == GR_BLOCKED && culprit.reason == GR_BY_HOLDER) return GPURING_OK;
    if (!waits_out(end, result)) {
        if (!is_end(end, result)) end->late = -1;
        *goes_on = true;
        return GPURING_OK;
    }
    if (!end->follows) return GPURING_OK;
    const int next = gh_has_successor(end->ring->name, end->ring->header);
    if (next > 0) return move(end, goes_on, error);
    if (next == 0 || errno == EMFILE || errno == ENFILE) return GPURING_OK;
    return gh_fail_system(error, errno, end->ring->name);
}

gpuring_status wait_out(struct endpoint *end, int64_t deadline_ns, gpuring_error *error) {
    struct gh_arrivals arrivals = {0};
    gpuring_status status;
    bool goes_on;
    begin_rest(end);
    /* NULL if there is no descriptor or thread left. Then the wait looks now and then. */
    struct gr_notifier *joins = deadline_ns && is_consumer(end) ? gr_notifier_open() : NULL;
    end->joins = joins;
    for (;;) {
        if (joins) gr_notifier_arm(joins, &end->peer.core, true); /* before the look */
        status = look_on(end, &goes_on, error);
        if (status != GPURING_OK || goes_on) break;
        const int64_t left =
            deadline_ns == INT64_MAX ? INT64_MAX : deadline_ns - (deadline_ns ? gr_now_ns() : 0);
        if (left <= 0) {
            status = GPURING_TIMEOUT;
            break;
        }
        gh_await_name(&arrivals, false, joins ? gr_notifier_fd(joins) : -1, left);
    }
    gh_end_arrivals(&arrivals);
    if (joins) gr_notifier_close(joins);
    end->joins = NULL;
    return status;
}

void end_following(struct endpoint *end) {
    if (end->follows) end_descriptor(&end->follows->descriptor, gr_forked(end->ring->header));
    let_go_of_rings(end);
    free(end->follows);
}

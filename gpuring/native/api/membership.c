/* How producers and consumers join and leave a ring. */
#define _GNU_SOURCE
#include "membership.h"

#include <errno.h>
#include <string.h>

#include "../core/bell.h"
#include "../core/handles.h"
#include "../core/members.h"
#include "../core/notify.h"
#include "../core/wait.h"
#include "../core/watchdog.h"
#include "../device/device.h"
#include "../device/verbs.h"
#include "../host/debts.h"
#include "../host/environment.h"
#include "../memory/trouble.h"
#include "durable.h"

gpuring_status endpoint_unusable(const struct endpoint *end, enum gr_result result,
                                 gpuring_error *error) {
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    if (result == GR_SYSTEM) return gh_fail_system(error, errno, end->ring->name);
    return gh_fail(error, gh_add_unusable(&words, end->ring->name, result), "%s", text);
}

/* ---- join and leave -------------------------------------------------------------------------- */

/* NULL: the label is the name of the program. */
static void set_label(struct gr_peer *peer, const char *label) {
    char padded[GH_LABEL] = {0};
    if (!label) label = program_invocation_short_name;
    memcpy(padded, label, strnlen(label, sizeof padded));
    gr_set_label(peer, padded);
}

/* Finds the address of the slots. Virtual memory may have to be mapped first, for reading only or
 * also for writing. */
static gpuring_status find_slots(struct endpoint *end, gpuring_error *error) {
    const gpuring_ring *ring = end->ring;
    uint64_t at = ring->registered;
    gpuring_status status = GPURING_OK;
    if (ring->slab)
        status = gm_view(ring->slab, end->peer.core.self.role == GR_PRODUCER, &at, error);
    end->host = ring->slots;
    end->data = at ? (char *)at : end->host;
    return status;
}

static gpuring_status prepare(struct endpoint *end, gpuring_gate gate, gpuring_error *error) {
    gpuring_ring *ring = end->ring;
    struct gd_trouble trouble = {.where = GD_NOWHERE};
    const bool host = gate == GPURING_GATE_AUTO ? ring->header->config.gate == GR_GATE_HOST
                                                : gate == GPURING_GATE_HOST;
    struct gd_device *device = ring->order.driver ? &ring->order : NULL;
    const enum gr_result result = gd_prepare(&end->peer, device, host, &trouble);
    if (result == GR_OK) return GPURING_OK;
    if (result == GR_DEVICE) return gm_fail_trouble(error, device, &trouble);
    return gh_fail_system(error, ENOMEM, ring->name);
}

/* After a join of which its caller gets no handle, so that nobody could leave later. */
static void undo_join(struct gr_peer *peer) {
    peer->self.dropped = true;
    gr_leave(peer);
    if (gr_leaves_late(peer)) gr_watch(peer->ring);
}

/* How it waits, and on which stream. */
struct endpoint_options {
    const char *subscription; /* NULL of a producer */
    const char *label;
    int64_t spin_ns;
    void *stream;
    gpuring_gate gate;
};

/* Does what follows the core's join: starts the watchdog, finds the slots, and sets how the peer waits
 * and its label. result: what the core's join has returned. If this fails, the peer has left. */
static gpuring_status begin(struct endpoint *end, enum gr_result result,
                            const struct endpoint_options *options, gpuring_error *error) {
    int64_t spin_ns = options->spin_ns;
    gpuring_status status = GPURING_OK;
    if (result != GR_OK) return cannot_join(end->ring, result, options->subscription, error);
    if (spin_ns < 0) status = gh_spin_ns(&spin_ns, error);
    if (status == GPURING_OK) {
        gr_watch(end->ring->header);
        status = find_slots(end, error);
    }
    if (status == GPURING_OK) status = prepare(end, options->gate, error);
    if (status != GPURING_OK) {
        undo_join(&end->peer.core);
        return status;
    }
    end->stream = options->stream;
    set_label(&end->peer.core, options->label);
    gr_set_spin(&end->peer.core, spin_ns);
    end->late = -1;
    atomic_fetch_add(&end->ring->endpoints, 1);
    return GPURING_OK;
}

gpuring_status join_as_producer(struct endpoint *end, const gpuring_producer_options *options,
                                gpuring_error *error) {
    const enum gr_result result = gr_join_producer(end->ring->header, &end->peer.core);
    const struct endpoint_options more = {.label = options->label,
                                          .spin_ns = options->spin_ns,
                                          .stream = options->stream,
                                          .gate = options->gate};
    return begin(end, result, &more, error);
}

/* A durable subscription is made, and what earlier rings owe it is settled, before it is joined. */
gpuring_status join_as_consumer(struct endpoint *end, const gpuring_consumer_options *options,
                                const char name[GH_SUBSCRIPTION], gpuring_error *error) {
    gpuring_ring *ring = end->ring;
    enum gr_start from;
    uint64_t at;
    gpuring_status status = start_at(options->start, &from, &at, error);
    if (status == GPURING_OK && options->durable) {
        gpuring_subscribe_options durable = GPURING_SUBSCRIBE_OPTIONS;
        durable.start = options->start;
        durable.lossy = options->lossy;
        durable.drop = options->drop;
        durable.patience_ns = options->patience_ns;
        status = subscribe(ring, options->subscription, &durable, error);
    }
    if (status != GPURING_OK) return status;
    if (options->subscription) gh_settle(ring->name, ring->header);
    const enum gr_result result = gr_join_consumer(
        ring->header, name, options->lossy ? GR_LOSSY : GR_LOSSLESS,
        options->drop ? GR_DROP : GR_REDELIVER, from, at, &end->peer.core);
    const struct endpoint_options more = {.subscription = name,
                                          .label = options->label,
                                          .spin_ns = options->spin_ns,
                                          .stream = options->stream,
                                          .gate = options->gate};
    status = begin(end, result, &more, error);
    end->peer.core.cursor.told_deaths = options->deaths;
    end->peer.core.cursor.follows = options->reattach;
    return status;
}

/* Ends what is open. The errors of single slots do not matter: nobody has them afterwards. */
static void end_all(struct endpoint *end) {
    struct gd_call call;
    uint32_t open[GR_MAX_SLOTS], n = 0;
    for (uint32_t i = 0; i < end->ring->header->slots; i++)
        if (end->peer.use[i].open) open[n++] = i;
    if (!n) return;
    gd_begin(&call, (gd_stream)end->stream, 0, n, open);
    if (end->peer.core.self.role == GR_PRODUCER) gd_abandon(&end->peer, &call, GD_WAIT);
    else gd_release(&end->peer, &call, GD_WAIT);
}

gpuring_status endpoint_leave(struct endpoint *end, gpuring_error *error) {
    MIND_NO_ERROR(error);
    if (!gr_forked(end->ring->header)) {
        struct gd_call call;
        enum gr_result result = GR_SIGNAL;
        end_all(end);
        gd_begin(&call, (gd_stream)end->stream, INT64_MAX, 0, NULL);
        for (unsigned how = GD_WAIT; result == GR_SIGNAL; how = GD_WAIT | GD_AGAIN)
            result = gd_leave(&end->peer, &call, how);
        if (result == GR_DEVICE) return gm_fail_trouble(error, end->peer.device, &call.trouble);
        if (result != GR_OK && result != GR_REAPED) return endpoint_unusable(end, result, error);
    }
    if (end->notifier) gr_notifier_close(end->notifier);
    gd_dispose(&end->peer);
    atomic_fetch_sub(&end->ring->endpoints, 1);
    return GPURING_OK;
}

/* Rings that an endpoint has left over a restart, and still uses. */
#include "left_behind.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "../core/notify.h"
#include "membership.h"

struct left_behind {
    struct endpoint end;
    struct left_behind *next;
};

void hold(gpuring_ring *ring) { atomic_fetch_add(&ring->endpoints, 1); }

/* The endpoint that came here over a restart may have gone long before, and the ring may have other
 * owners, which join it again. So the last owner gives up its share, and only once. */
void let_go(gpuring_ring *ring) {
    if (atomic_fetch_sub(&ring->endpoints, 1) == 1 && atomic_exchange(&ring->is_followed, false))
        gpuring_detach(ring, NULL);
}

gpuring_ring *ring_told(const struct endpoint *end) { return end->told ? end->told : end->ring; }

gpuring_status leave_behind(struct endpoint *end, struct endpoint *next, gpuring_error *error) {
    bool open = false;
    for (uint32_t i = 0; i < end->ring->header->slots; i++) open |= end->peer.use[i].open;
    struct left_behind *left = open ? calloc(1, sizeof *left) : NULL;
    if (open && !left) return gh_fail_system(error, ENOMEM, end->ring->name);
    next->notifier = end->notifier;
    /* Those who poll its descriptor have to look at the other ring from now on. */
    if (end->notifier) gr_notifier_raise(end->notifier);
    if (end->joins) gr_notifier_raise(end->joins);
    end->notifier = NULL;
    gpuring_ring *before = end->ring;
    hold(before);
    if (!open) {
        const gpuring_status status = endpoint_leave(end, error);
        if (status != GPURING_OK) {
            let_go(before);
            end->notifier = next->notifier;
            return status;
        }
    } else {
        /* No thread holds its mutex, so the copy may have a new one. */
        left->end = (struct endpoint){.ring = end->ring,
                                      .data = end->data,
                                      .host = end->host,
                                      .stream = end->stream,
                                      .peer = end->peer,
                                      .late = -1};
        pthread_mutex_init(&left->end.peer.released.mutex, NULL);
        pthread_mutex_destroy(&end->peer.released.mutex);
        left->next = end->left;
        end->left = left;
    }
    if (!end->told) hold(end->told = before);
    if (!end->home) hold(end->home = before); /* as long as this endpoint is open */
    let_go(before);
    return GPURING_OK;
}

static bool has(const struct endpoint *end, const gpuring_slot *slot) {
    const struct gr_ring *header = end->ring->header;
    const char *at = slot->data;
    return at >= end->data && at < end->data + header->slots * header->config.slot_nbytes;
}

void use_stream(struct endpoint *end, void *stream) {
    end->stream = stream;
    for (struct left_behind *left = end->left; left; left = left->next) left->end.stream = stream;
}

struct endpoint *where_open(struct endpoint *end, const gpuring_slot *slot) {
    if (!end->left || !HAS_SIZE(slot, data) || has(end, slot)) return end;
    for (struct left_behind *left = end->left; left; left = left->next)
        if (has(&left->end, slot)) return &left->end;
    return end;
}

/* If it cannot be left, it stays listed. */
static gpuring_status leave(struct left_behind **at, gpuring_error *error) {
    struct left_behind *left = *at;
    gpuring_ring *ring = left->end.ring;
    hold(ring);
    const gpuring_status status = endpoint_leave(&left->end, error);
    let_go(ring);
    if (status != GPURING_OK) return status;
    *at = left->next;
    free(left);
    return GPURING_OK;
}

void leave_if_done(struct endpoint *end, struct endpoint *owner) {
    if (owner == end) return;
    for (uint32_t i = 0; i < owner->ring->header->slots; i++)
        if (owner->peer.use[i].open) return;
    struct left_behind **at = &end->left;
    while (&(*at)->end != owner) at = &(*at)->next;
    leave(at, NULL); /* else with leave_all_behind */
}

gpuring_status leave_all_behind(struct endpoint *end, gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    while (end->left && status == GPURING_OK) status = leave(&end->left, error);
    return status;
}

void let_go_of_rings(struct endpoint *end) {
    if (end->told) let_go(end->told);
    if (end->home) let_go(end->home);
}

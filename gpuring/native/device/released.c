/* Frames that may still turn out torn after their release: a consumer releases while its GPU still
 * waits for the producer's, and then the producer dies. docs/decisions/0003 has the reasons.
 *
 * With a timeline the fence word is enough, because the GPU stores it. With events no stream stores
 * the fence word. So three events are asked: this peer's own event of the slot, which came later; the
 * producer's event, even after its death; and a checkpoint, one more event of this peer, which says
 * that everything before it is done. The checkpoint is needed where the CPU runs farther ahead than
 * the ring is long, so that each event is recorded again before anybody sees it complete.
 */
#include "released.h"

#include <stdlib.h>
#include <string.h>

#include "../core/handles.h"
#include "event.h"
#include "own_event.h"
#include "stream.h"

bool gd_released_prepare(struct gd_peer *peer) {
    struct gd_released *released = &peer->released;
    *released = (struct gd_released){.limit = 2 * peer->core.ring->slots,
                                     .reaps = gr_load_acquire(&peer->core.ring->head->reaps)};
    pthread_mutex_init(&released->mutex, NULL);
    released->done = calloc(peer->core.ring->slots, sizeof *released->done);
    return released->done != NULL;
}

/* To be called while the device is open. Afterwards no event can be asked: frames that are still
 * remembered are known by other means, or not at all. */
void gd_drop_checkpoint(struct gd_peer *peer) {
    struct gd_released *released = &peer->released;
    pthread_mutex_lock(&released->mutex);
    if (released->checkpoint && !released->setting) {
        gd_give_spare(peer->device, released->checkpoint);
        released->checkpoint = NULL;
        released->checkpoint_set = false;
    }
    pthread_mutex_unlock(&released->mutex);
}

void gd_released_dispose(struct gd_peer *peer) {
    struct gd_released *released = &peer->released;
    if (released->checkpoint && peer->device->driver && !gr_forked(peer->core.ring))
        gd_give_spare(peer->device, released->checkpoint);
    else free(released->checkpoint);
    released->checkpoint = NULL;
    free(released->frames);
    free(released->torn);
    free(released->done);
    released->frames = NULL;
    released->torn = NULL;
    pthread_mutex_destroy(&released->mutex);
}

/* Makes room for one more frame in both lists. It is called before a release, which cannot be
 * undone; the room is kept until gd_remember, gd_report_later or gd_unreserve. Other threads may
 * release meanwhile, and even the same slot again. False: errno. */
bool gd_reserve(struct gd_released *released) {
    bool enough = true;
    pthread_mutex_lock(&released->mutex);
    size_t frames = released->n + released->reserved + 1, torn = released->torns + frames;
    if (frames > released->room) {
        struct gd_frame *more = realloc(released->frames, 2 * frames * sizeof *more);
        enough = more != NULL;
        if (more) released->frames = more, released->room = 2 * frames;
    }
    if (enough && torn > released->torn_room) {
        uint64_t *more = realloc(released->torn, 2 * torn * sizeof *more);
        enough = more != NULL;
        if (more) released->torn = more, released->torn_room = 2 * torn;
    }
    released->reserved += enough;
    pthread_mutex_unlock(&released->mutex);
    return enough;
}

void gd_unreserve(struct gd_released *released, size_t n) {
    pthread_mutex_lock(&released->mutex);
    released->reserved -= n;
    pthread_mutex_unlock(&released->mutex);
}

/* ---- what is known of one -------------------------------------------------------------------- */

/* Whether this peer's own GPU work on the frame is done, as far as its event tells. */
static bool own_is_done(struct gd_peer *peer, const struct gd_frame *frame) {
    if (!is_mine(&peer->core)) return false; /* a reaper may have raised its fence */
    if (gd_is_reached(peer, peer->core.self.number, frame->index, frame->own)) return true;
    return peer->own && peer->device->driver->event_query(peer->own[frame->index]->event) == CU_OK;
}

static enum gd_end how_it_ended(struct gd_peer *peer, const struct gd_frame *frame, bool ask) {
    struct gr_ring *ring = peer->core.ring;
    struct gd_device *device = peer->device;
    const bool events = peer->sync == &gd_events;
    if (gd_is_reached(peer, frame->producer, frame->index, frame->value)) {
        if (!gr_torn(ring, frame->index, frame->producer, frame->producer_id, frame->value))
            return GD_WHOLE;
        if (!events) return GD_TORN;
        /* The reaper could not know: with events a fence rises only when a process asks the event. */
        bool done = own_is_done(peer, frame) ||
                    gd_event_done(device, frame->producer, frame->producer_id, frame->index);
        return done ? GD_WHOLE : GD_TORN;
    }
    if (!events || !ask) return GD_OPEN;
    if (!own_is_done(peer, frame)) return GD_OPEN;
    /* Exactly this peer's own promise of that time: a later one may not be recorded yet, and its
     * event then says "complete" of this one. */
    gr_raise_to(fence_of(ring, frame->index, peer->core.self.number), frame->own);
    gr_raise_to(fence_of(ring, frame->index, frame->producer), frame->value);
    return GD_WHOLE;
}

/* Own events are asked after two laps of frames (gd_is_due). From then on, frames are remembered
 * with their stream. If the list grows even so, a checkpoint is recorded, which costs as much as
 * each frame's record. */
enum { IDENTIFY_LAPS = 2, CHECKPOINT_LAPS = 3 };

/* ---- the checkpoint -------------------------------------------------------------------------- */

static bool is_covered(const struct gd_released *released, const struct gd_frame *frame) {
    return frame->stream == released->checkpoint_on && frame->number < released->checkpoint_at;
}

/* Under the mutex. If the checkpoint is complete, all earlier work on its stream is done. That is
 * true of earlier frames of the same slots, too, because a peer uses a slot again only behind its
 * own earlier work on it (G12: a fence could fall). Drops all those frames. */
static void pass_checkpoint(struct gd_peer *peer) {
    struct gd_released *released = &peer->released;
    if (!released->checkpoint_set) return;
    if (peer->device->driver->event_query(released->checkpoint->event) != CU_OK) return;
    memset(released->done, 0, peer->core.ring->slots * sizeof *released->done);
    for (size_t k = 0; k < released->n; k++) {
        const struct gd_frame *frame = &released->frames[k];
        uint64_t *done = &released->done[frame->index];
        if (is_covered(released, frame) && *done < frame->seq) *done = frame->seq;
    }
    size_t still = 0;
    for (size_t k = 0; k < released->n; k++)
        if (released->frames[k].seq > released->done[released->frames[k].index])
            released->frames[still++] = released->frames[k];
    released->n = still;
    released->checkpoint_set = false;
}

/* Called after a release on `stream`, whose frame was the last to be remembered. The driver is
 * called without the mutex: it would block on a full stream, which another thread of this peer may
 * have to empty. */
static void set_checkpoint(struct gd_peer *peer, gd_stream stream, uint64_t id) {
    struct gd_released *released = &peer->released;
    pthread_mutex_lock(&released->mutex);
    pass_checkpoint(peer);
    bool wanted = released->n > CHECKPOINT_LAPS * peer->core.ring->slots &&
                  !released->checkpoint_set && !released->setting && id != 0;
    if (wanted) released->setting = true;
    uint64_t at = released->remembered;
    pthread_mutex_unlock(&released->mutex);
    if (!wanted) return;
    bool set = released->checkpoint || gd_take_spare(peer->device, &released->checkpoint) == CU_OK;
    if (set)
        set =
            gd_captured(peer->device, stream) == CU_OK &&
            peer->device->driver->event_record(released->checkpoint->event, (void *)stream) ==
                CU_OK;
    pthread_mutex_lock(&released->mutex);
    released->setting = false;
    released->checkpoint_set = set;
    released->checkpoint_at = at;
    released->checkpoint_on = id;
    pthread_mutex_unlock(&released->mutex);
}

/* ---- the list -------------------------------------------------------------------------------- */

static void add_torn(struct gd_released *released, uint64_t seq) {
    released->torn[released->torns++] = seq;
}

/* An id that no other stream has; 0 if CUDA does not say. It is asked for each time, because a
 * checkpoint must not take one stream for another one that had the same handle. */
static uint64_t identity_of(const struct gd_device *device, gd_stream stream) {
    return stream == GD_PER_THREAD ? UINT64_C(1) << 63 | gd_this_thread()
                                   : gd_stream_id(device, stream);
}

/* gd_reserve has made room. stream: where the frame's release was recorded. */
void gd_remember(struct gd_peer *peer, const struct gd_frame *frame, gd_stream stream) {
    struct gd_released *released = &peer->released;
    const bool events = peer->sync == &gd_events;
    const bool behind = events && released->n >= IDENTIFY_LAPS * peer->core.ring->slots;
    const uint64_t identity = behind ? identity_of(peer->device, stream) : 0;
    pthread_mutex_lock(&released->mutex);
    released->reserved--;
    struct gd_frame *last = &released->frames[released->n++];
    *last = *frame;
    last->stream = identity;
    last->number = released->remembered++;
    pthread_mutex_unlock(&released->mutex);
    if (behind) set_checkpoint(peer, stream, identity);
}

/* Keeps a frame that is known to be torn, because something else has to be said now. gd_reserve
 * has made room. */
void gd_report_later(struct gd_peer *peer, uint64_t seq) {
    pthread_mutex_lock(&peer->released.mutex);
    peer->released.reserved--;
    add_torn(&peer->released, seq);
    pthread_mutex_unlock(&peer->released.mutex);
}

/* Moves up to `room` sequences of torn frames to `seqs`, and returns how many. */
size_t gd_take_torn(struct gd_peer *peer, uint64_t *seqs, size_t room) {
    struct gd_released *released = &peer->released;
    pthread_mutex_lock(&released->mutex);
    size_t n = released->torns < room ? released->torns : room;
    if (n > 0) { /* else the list may not exist */
        memcpy(seqs, released->torn, n * sizeof *seqs);
        memmove(released->torn, released->torn + n, (released->torns - n) * sizeof *seqs);
    }
    released->torns -= n;
    pthread_mutex_unlock(&released->mutex);
    return n;
}

static bool somebody_died(const struct gd_peer *peer) {
    return gr_load_acquire(&peer->core.ring->head->reaps) != peer->released.reaps;
}

bool gd_look_at_released(struct gd_peer *peer) {
    struct gd_released *released = &peer->released;
    pthread_mutex_lock(&released->mutex);
    /* Before the look, so that who dies later is seen later. Acquire: partner clear_dead, whose
     * store of `reaps` comes after its marks. */
    released->reaps = gr_load_acquire(&peer->core.ring->head->reaps);
    if (peer->sync == &gd_events) pass_checkpoint(peer);
    size_t still = 0;
    for (size_t k = 0; k < released->n; k++) {
        struct gd_frame frame = released->frames[k];
        enum gd_end end = how_it_ended(peer, &frame, true);
        if (end == GD_TORN) add_torn(released, frame.seq);
        if (end == GD_OPEN) released->frames[still++] = frame;
    }
    released->n = still;
    released->limit = 2 * (still > peer->core.ring->slots ? still : peer->core.ring->slots);
    bool any = released->torns > 0;
    pthread_mutex_unlock(&released->mutex);
    return any;
}

bool gd_is_due(struct gd_peer *peer) {
    const struct gd_released *released = &peer->released;
    return released->torns || released->n > released->limit || (released->n && somebody_died(peer));
}

bool gd_would_report(struct gd_peer *peer) {
    struct gd_released *released = &peer->released;
    if (released->torns) return true;
    if (released->n == 0 || gr_forked(peer->core.ring) || !somebody_died(peer)) return false;
    bool any = false;
    pthread_mutex_lock(&released->mutex);
    for (size_t k = 0; k < released->n && !any; k++)
        any = how_it_ended(peer, &released->frames[k], false) == GD_TORN;
    pthread_mutex_unlock(&released->mutex);
    return any;
}

/* For a frame whose fence is reached. With events a mark says only that no process had asked the
 * event, so it is asked now. */
static bool is_torn(struct gd_peer *peer, const struct gd_use *use, uint32_t index) {
    if (!gr_torn(peer->core.ring, index, use->producer, use->producer_id, use->value)) return false;
    return !(peer->sync == &gd_events &&
             gd_event_done(peer->device, use->producer, use->producer_id, index));
}

bool gd_is_torn(struct gd_peer *peer, uint32_t index) {
    const struct gd_use *use = &peer->use[index];
    return gd_is_reached(peer, use->producer, index, use->value) && is_torn(peer, use, index);
}

enum gd_end gd_end_of(struct gd_peer *peer, uint32_t index) {
    const struct gd_use *use = &peer->use[index];
    struct gd_trouble unused;
    if (peer->sync->paid(peer, use->producer, index, use->value, &unused) != CU_OK) return GD_OPEN;
    return is_torn(peer, use, index) ? GD_TORN : GD_WHOLE;
}

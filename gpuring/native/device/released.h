/* Frames that may still turn out torn after their release. From any thread that has the peer. */
#pragma once

#include "../core/tear.h"
#include "state.h"

/* What is known of a frame. GD_OPEN: its producer's GPU work may still be pending. */
enum gd_end { GD_OPEN, GD_WHOLE, GD_TORN };

/* How the frame in slot `index` ended, which this consumer holds. */
enum gd_end gd_end_of(struct gd_peer *peer, uint32_t index);
/* Whether it is known to be torn, without asking the driver. The answer is final once this
 * consumer's own GPU work is done. */
bool gd_is_torn(struct gd_peer *peer, uint32_t index);

/* About frames that turned out torn after their release. In this order: whether the next acquire
 * will say GR_TORN_BEHIND; a look that finds such frames; taking their sequences, to report
 * them; and keeping one for a later report, because something else has to be said now. */
bool gd_would_report(struct gd_peer *peer);
bool gd_look_at_released(struct gd_peer *peer);
size_t gd_take_torn(struct gd_peer *peer, uint64_t *seqs, size_t room);
void gd_report_later(struct gd_peer *peer, uint64_t seq);
bool gd_released_prepare(struct gd_peer *peer);
void gd_released_dispose(struct gd_peer *peer);
void gd_drop_checkpoint(struct gd_peer *peer);
bool gd_reserve(struct gd_released *released);
void gd_unreserve(struct gd_released *released, size_t n);
void gd_remember(struct gd_peer *peer, const struct gd_frame *frame, gd_stream stream);
/* Whether to look at the list: a peer died, the list is long, or torn frames have to be reported. */
bool gd_is_due(struct gd_peer *peer);
/* Whether the frame of the last acquire may be torn, because its producer has died. */
static inline bool gd_may_be_torn(const struct gd_peer *peer) {
    const struct gr_delivery *frame = &peer->core.last;
    return frame->value && gd_is_reached(peer, frame->producer, frame->index, frame->value) &&
           gr_torn(peer->core.ring, frame->index, frame->producer, frame->producer_id,
                   frame->value);
}

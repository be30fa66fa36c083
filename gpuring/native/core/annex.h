/* The annex: what services and bridges keep in the header. The core carries it, and decides
 * nothing by it: who may claim, who has a frame and who is dead are the same whatever these words
 * say.
 *
 *   where           what                                       writer            reader
 *   slot.origin_*   where a frame comes from                   the importer      readers of the frame
 *   head.links      how far an importer has come               the importer      the next importer
 *   head.clocks     how the clocks of its two hosts differ     the importer      people, tracers
 *   sub.far         who keeps the far ring from taking more    the exporter      people
 *   peer.asked_ns   when the peer last asked for frames        the peer          people, services
 *
 * The functions of the first part are for services and bridges. Those of the second are called by
 * the core, at the moments at which these words must be kept or cleared; it has no other use for
 * them. layout.h says where the words lie, and annex.c how a link survives a kill.
 */
#pragma once

#include "peer.h"

/* ---- for services and bridges ---------------------------------------------------------------- */

struct gr_origin {
    uint64_t seq, time_ns;
    uint32_t lost;
};
/* How far a link has come: everything up to `seq` of the near ring was published or skipped. */
struct gr_watermark {
    uint8_t epoch[16];
    uint64_t seq, lost;
};
enum gr_result gr_set_origin(struct gr_peer *me, uint32_t index, uint64_t seq,
                             const struct gr_origin *origin);
bool gr_origin(const struct gr_slot *slot, struct gr_origin *origin);
void gr_set_link(struct gr_ring *ring, const struct gr_watermark *mark);
bool gr_link(const struct gr_ring *ring, struct gr_watermark *mark);

/* How far the near host's CLOCK_MONOTONIC was ahead of this host's at `time_ns`, and by how much
 * that may be wrong. */
struct gr_ahead {
    int64_t ahead_ns, error_ns, time_ns;
};
void gr_set_clock(struct gr_ring *ring, const struct gr_ahead *clock);
bool gr_clock(const struct gr_ring *ring, struct gr_ahead *clock);

/* A member of subscription u says who keeps the far ring of a bridge from taking more. */
void gr_set_far(struct gr_ring *ring, uint32_t u, const char far[8 * GR_FAR_WORDS]);
/* For people: notes that the peer is about to ask for frames, or asks for them still. */
void gr_ask(const struct gr_peer *me);

/* ---- for the core ---------------------------------------------------------------------------- */

void gr_keep_origin(struct gr_ring *ring, const struct gr_slot *slot, uint64_t seq);

/* Before a claim takes the published frame `seq` out of the table. */
static inline void gr_annex_overwrites(struct gr_ring *ring, struct gr_slot *slot, uint64_t seq) {
    if (gr_load_relaxed(&slot->origin_seq) != 0) gr_keep_origin(ring, slot, seq);
}

/* In a slot that was just claimed: it has no origin until gr_set_origin. */
static inline void gr_annex_clear_slot(struct gr_slot *slot) {
    gr_store_relaxed(&slot->origin_seq, 0);
}

/* In a new subscription, before its word; in a new peer's entry, before its word. */
static inline void gr_annex_clear_sub(struct gr_sub *sub) {
    gr_write_text(sub->far, (const char[8 * GR_FAR_WORDS]){0}, GR_FAR_WORDS);
}
static inline void gr_annex_clear_peer(struct gr_peer_entry *entry) {
    gr_store_relaxed(&entry->asked_ns, 0);
}

/* How many frames were lost before they could come into this ring, since the last frame that this
 * peer had: upstream if a bridge has brought it, else those that producers had no slot for. A
 * frame that is older than that one, because it came back, brings nothing new. Relaxed: edge P has
 * carried the record. */
static inline uint32_t gr_annex_lost(struct gr_cursor *cursor, const struct gr_slot *slot) {
    const bool brought = gr_load_relaxed((gr_word *)&slot->origin_seq) != 0;
    const uint32_t lost = gr_load_relaxed((gr_word32 *)&slot->lost_before);
    if (!brought && lost == cursor->dropped) return 0;
    uint32_t *last = brought ? &cursor->lost_before : &cursor->dropped;
    const uint32_t more = brought && !cursor->counts_on ? 0 : lost - *last;
    if (more > INT32_MAX) return 0;
    *last = lost;
    cursor->counts_on |= brought;
    return more;
}

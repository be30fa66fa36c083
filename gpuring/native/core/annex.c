/* What services and bridges keep in the header (annex.h), and how a link survives a kill: "Frames
 * from another host" in docs/protocol.md has that step by step.
 *
 * The importer publishes a frame first, and raises the watermark second. So a kill may leave the
 * watermark too low. Then gr_link takes the last frame of this link that the slot table shows as
 * READY, or that `passed` notes. Frames of an older link are those below `first`. epoch, seq, lost
 * and first are there twice: the importer writes the copy that is not valid, and then raises
 * link_turn, which makes it valid.
 */
#include "annex.h"

#include <string.h>

#include "bell.h"

/* Says where the frame comes from. Call it between claim and publish. An abandoned claim takes it
 * along, and so does the next claim of the slot. */
enum gr_result gr_set_origin(struct gr_peer *me, uint32_t index, uint64_t seq,
                             const struct gr_origin *origin) {
    struct gr_slot *slot = &me->ring->slot[index];
    enum gr_result result = gr_begin(me);
    if (result != GR_OK) return result;
    if (gr_load_sc(&slot->word) == claim_word(seq, me->self.number, GR_WRITING)) {
        gr_store_relaxed(&slot->lost_before, origin->lost);
        gr_store_relaxed(&slot->origin_time_ns, origin->time_ns);
        /* Release: whoever sees it in a look at the whole table sees the claim, too; partner:
         * shown. For readers of the frame, edge P carries it. */
        gr_store_release(&slot->origin_seq, origin->seq);
        GR_FAULT("origin: written");
    } else result = GR_REAPED;
    gr_end(me);
    return result;
}

/* Of a frame that the caller holds. False: nobody has brought it. */
bool gr_origin(const struct gr_slot *slot, struct gr_origin *origin) {
    struct gr_slot *of = (struct gr_slot *)slot; /* C11 loads from no const */
    origin->seq = gr_load_acquire(&of->origin_seq);
    origin->time_ns = gr_load_relaxed(&of->origin_time_ns);
    origin->lost = gr_load_relaxed(&of->lost_before);
    return origin->seq != 0;
}

/* Whether the slot shows a published frame with an origin. *seq is its sequence in this ring. The
 * word is looked at twice: if it has changed, the record may be that of a later claim. Then the
 * frame is gone, and is left out. */
static bool shown(const struct gr_slot *slot, uint64_t *seq, struct gr_origin *origin) {
    struct gr_slot *of = (struct gr_slot *)slot;
    uint64_t w = gr_load_acquire(&of->word);
    *seq = seq_of(w);
    return phase_of(w) == GR_READY && gr_origin(slot, origin) && gr_load_acquire(&of->word) == w;
}

static struct gr_link *link_of(const struct gr_ring *ring, uint64_t turn) {
    return &ring->head->links[turn % 2];
}

static void lift(struct gr_watermark *mark, const struct gr_origin *origin) {
    if (origin->seq <= mark->seq) return;
    mark->seq = origin->seq;
    mark->lost += (uint32_t)(origin->lost - (uint32_t)mark->lost);
}

/* Before a claim takes the published frame `seq` out of the table: notes that it was there. (A new
 * importer was killed after its first claim and before it had set the link. The watermark was that
 * of before the frame, which came twice.)
 *
 * passed_lost comes first. After a kill in between it is that of this frame, which is still in the
 * table then, so it is looked at there. */
void gr_keep_origin(struct gr_ring *ring, const struct gr_slot *slot, uint64_t seq) {
    struct gr_link *link = link_of(ring, gr_load_acquire(&ring->head->link_turn));
    struct gr_origin origin;
    if (!gr_origin(slot, &origin) || seq < gr_load_acquire(&link->first)) return;
    if (origin.seq <= gr_load_acquire(&link->passed)) return;
    gr_store_release(&link->passed_lost, origin.lost);
    GR_FAULT("link: passing");
    gr_raise_to(&link->passed, origin.seq);
    GR_FAULT("link: passed");
}

/* A copy with its watermark raised to what was taken out of the table. */
static void read_copy(struct gr_link *link, struct gr_watermark *mark, uint64_t *first) {
    uint64_t epoch[2] = {gr_load_acquire(&link->epoch[0]), gr_load_acquire(&link->epoch[1])};
    uint64_t passed = gr_load_acquire(&link->passed);
    struct gr_origin last = {.seq = passed, .lost = (uint32_t)gr_load_acquire(&link->passed_lost)};
    memcpy(mark->epoch, epoch, sizeof mark->epoch);
    mark->seq = gr_load_acquire(&link->seq);
    mark->lost = gr_load_acquire(&link->lost);
    *first = gr_load_acquire(&link->first);
    lift(mark, &last);
}

/* The importer says how far it has come. If the epoch differs from that of the last call, a new link
 * begins. Then call it before the first frame of that link is published. */
void gr_set_link(struct gr_ring *ring, const struct gr_watermark *mark) {
    struct gr_head *head = ring->head;
    const uint64_t turn = gr_load_relaxed(&head->link_turn);
    struct gr_link *last = link_of(ring, turn);
    struct gr_watermark before;
    struct gr_origin origin;
    uint64_t first, seq, epoch[2];
    read_copy(last, &before, &first);
    uint64_t passed = gr_load_relaxed(&last->passed);
    uint64_t passed_lost = gr_load_relaxed(&last->passed_lost);
    if (turn == 0 || memcmp(before.epoch, mark->epoch, sizeof before.epoch) != 0) {
        first = passed = passed_lost = 0;
        for (uint32_t i = 0; i < ring->slots; i++)
            if (shown(&ring->slot[i], &seq, &origin) && seq >= first) first = seq + 1;
    }
    struct gr_link *link = link_of(ring, turn + 1);
    memcpy(epoch, mark->epoch, sizeof epoch);
    /* Release: whoever sees one of these sees the turn before it, too; partner: gr_link. */
    gr_store_release(&link->epoch[0], epoch[0]);
    GR_FAULT("link: half an epoch");
    gr_store_release(&link->epoch[1], epoch[1]);
    GR_FAULT("link: epoch");
    gr_store_release(&link->seq, mark->seq);
    gr_store_release(&link->lost, mark->lost);
    gr_store_release(&link->first, first);
    gr_store_release(&link->passed, passed);
    gr_store_release(&link->passed_lost, passed_lost);
    GR_FAULT("link: written");
    gr_store_release(&head->link_turn, turn + 1);
    GR_FAULT("link: turned");
}

/* How far the link has come. False: there is none. An importer calls it after its join, which
 * clears a dead importer. Others may call it at any time, and see one that was valid. */
bool gr_link(const struct gr_ring *ring, struct gr_watermark *mark) {
    struct gr_head *head = ring->head;
    uint64_t turn = gr_load_acquire(&head->link_turn), first, seq;
    /* The valid copy is written again only after a turn. If the turn changes in each of 1000 tries,
     * the header is damaged, and it does not matter what is returned. */
    for (int tries = 0; turn != 0 && tries < 1000; tries++) {
        read_copy(link_of(ring, turn), mark, &first);
        uint64_t now = gr_load_acquire(&head->link_turn);
        if (now == turn) break;
        turn = now;
    }
    if (turn == 0) return false;
    for (uint32_t i = 0; i < ring->slots; i++) {
        struct gr_origin origin;
        if (shown(&ring->slot[i], &seq, &origin) && seq >= first) lift(mark, &origin);
    }
    return true;
}

/* The importer says what it has measured. A kill before the turn leaves the last one valid. */
void gr_set_clock(struct gr_ring *ring, const struct gr_ahead *clock) {
    struct gr_head *head = ring->head;
    const uint64_t turn = gr_load_relaxed(&head->clock_turn) + 1;
    struct gr_clock *to = &head->clocks[turn % 2];
    /* Release: whoever sees one of these sees the turn before it, too; partner: gr_clock. */
    gr_store_release(&to->ahead_ns, (uint64_t)clock->ahead_ns);
    gr_store_release(&to->error_ns, (uint64_t)clock->error_ns);
    gr_store_release(&to->time_ns, (uint64_t)clock->time_ns);
    gr_store_release(&head->clock_turn, turn);
}

/* What was measured last. False: nothing yet. Its three words are of one measurement: the valid copy
 * is written again only after a turn. */
bool gr_clock(const struct gr_ring *ring, struct gr_ahead *clock) {
    struct gr_head *head = ring->head;
    uint64_t turn = gr_load_acquire(&head->clock_turn);
    /* As in gr_link. */
    for (int tries = 0; turn != 0 && tries < 1000; tries++) {
        struct gr_clock *of = &head->clocks[turn % 2];
        clock->ahead_ns = (int64_t)gr_load_acquire(&of->ahead_ns);
        clock->error_ns = (int64_t)gr_load_acquire(&of->error_ns);
        clock->time_ns = (int64_t)gr_load_acquire(&of->time_ns);
        const uint64_t now = gr_load_acquire(&head->clock_turn);
        if (now == turn) break;
        turn = now;
    }
    return turn != 0;
}

/* Relaxed: any reader may see a mixture of two texts. */
void gr_set_far(struct gr_ring *ring, uint32_t u, const char far[8 * GR_FAR_WORDS]) {
    gr_write_text(ring->sub[u].far, far, GR_FAR_WORDS);
}

/* Relaxed: it orders nothing. Within gr_begin, because the entry may be another peer's by now. A
 * reader that sees a stale value takes an engine for idle that has just come back. */
void gr_ask(const struct gr_peer *me) {
    if (gr_begin(me) != GR_OK) return;
    gr_store_relaxed(&me->ring->peer[me->self.number].asked_ns, (uint64_t)gr_now_coarse_ns());
    gr_end(me);
}

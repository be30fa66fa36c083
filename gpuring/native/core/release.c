/* How a consumer ends what it has: release, give back; and a torn frame that nobody has seen. */
#include "release.h"

#include "bell.h"
#include "subscriptions.h"
#include "trace.h"
#include "transition.h"

/* Call it between gr_begin and gr_end. Otherwise the number's next owner may hold the same frame,
 * and this would take that hold away. */
static enum gr_result leave_held(struct gr_peer *me, uint32_t index, uint64_t seq, uint64_t to) {
    struct gr_take *take = take_of(me->ring, index, me->self.u);
    /* [edge R, reader] carries the reads of the frame and work; partner: gate. If the claim sees a
     * stale HELD, it waits once more, until the bell. */
    return gr_cas(&take->word, claim_word(seq, me->self.number, GR_HELD), to) ? GR_OK : GR_REAPED;
}

/* The frame is given back, so a later frame has to report what is owed. */
static void does_not_tell(struct gr_peer *me, uint64_t seq) {
    if (gr_load_relaxed(&me->cursor.due_with) == seq) gr_store_relaxed(&me->cursor.due_with, 0);
}

/* Call it after gr_promise, and after its fence operation behind every stream that read the
 * frame. If only a CPU has read it, skip both. */
enum gr_result gr_release(struct gr_peer *me, uint32_t index, uint64_t seq) {
    enum gr_result result = gr_begin(me);
    if (result != GR_OK) return result;
    if (gr_load_relaxed(&me->cursor.due_with) == seq) gr_pay(me);
    /* Before the swap: the claim that follows is later. */
    const int64_t now = gr_traced(me->ring) ? gr_now_ns() : 0;
    result = leave_held(me, index, seq, claim_word(seq, me->self.number, GR_DONE));
    GR_FAULT("release: done");
    if (result == GR_OK) gr_ring_bell(me->ring);
    if (result == GR_OK && now)
        gr_trace(me, now, GR_DID_RELEASE, seq, gr_promised(me, index), 0);
    gr_end(me);
    return result;
}

/* The walk will come to this frame again, and to what it has met behind it. It counts as lost only
 * what is not below `high`, so `high` goes back to the frame, and what was counted behind it is
 * taken back: it is counted again then, and the frame itself, too, if a producer has passed it by
 * that time.
 *
 * That is right only if nothing but losses was met behind the frame. They are the ones that were
 * not handed out with a frame yet, unless frames are given back forwards: then those lie before
 * this one. */
static void meet_again(struct gr_peer *me, uint64_t seq) {
    const bool went_on = !me->last.reported && me->cursor.pos > seq;
    const uint64_t lost_behind = went_on ? me->last.lost : 0;
    me->last.reported = false; /* what was lost before the frame has still to be reported */
    /* Else another frame was met there: one that this peer had, a torn one, or another member's. */
    if (me->cursor.high != seq + 1 + lost_behind) return;
    me->cursor.high = seq;
    me->last.lost -= lost_behind;
    count_lost_of(me, -lost_behind);
}

/* Opens a frame that this peer holds. Every member may take it again, this one first. */
static enum gr_result reopen(struct gr_peer *me, uint32_t index, uint64_t seq, unsigned owner) {
    enum gr_result result = gr_begin(me);
    if (result != GR_OK) return result;
    result = leave_held(me, index, seq, claim_word(seq, owner, GR_OPEN));
    if (result == GR_OK) {
        GR_FAULT("give back: open");
        does_not_tell(me, seq);
        meet_again(me, seq);
        if (me->cursor.pos > seq) me->cursor.pos = seq;
        atomic_fetch_add_explicit(&me->ring->sub[me->self.u].redo, 1, memory_order_seq_cst);
        GR_FAULT("give back: redo bumped");
        count(&me->ring->peer[me->self.number].frames, (uint64_t)-1);
        gr_ring_bell(me->ring);
        if (gr_traced(me->ring)) gr_trace(me, 0, GR_DID_RETURN, seq, 0, 0);
    }
    gr_end(me);
    return result;
}

/* Undoes an acquire whose frame was never handed out, because its stream could not be ordered in
 * time. This peer's number stays in the word, which says that nobody died. */
enum gr_result gr_give_back(struct gr_peer *me, uint32_t index, uint64_t seq) {
    return reopen(me, index, seq, me->self.number);
}

/* Gives back a frame that its user has seen, and that was not released before the program was
 * ended. The word names no peer, as after a death, so to the member that takes it the frame is
 * redelivered. */
enum gr_result gr_return(struct gr_peer *me, uint32_t index, uint64_t seq) {
    return reopen(me, index, seq, GR_NONE);
}

/* Releases the frame of the last acquire, which turned out torn before the user saw it. This peer
 * has no work of its own on the slot, so it promises nothing. */
void gr_skip_torn(struct gr_peer *me) {
    struct gr_peer_entry *entry = &me->ring->peer[me->self.number];
    count(&entry->frames, (uint64_t)-1);
    count(&entry->torn, 1);
    me->last.reported = false;
    does_not_tell(me, me->last.seq);
    if (gr_traced(me->ring)) gr_trace(me, 0, GR_DID_TEAR, 1, 0, 0);
    gr_release(me, me->last.index, me->last.seq);
}

bool gr_holds(struct gr_peer *me, uint32_t index, uint64_t *seq) {
    const bool producer = me->self.role == GR_PRODUCER;
    uint64_t word = gr_load_sc(producer ? &me->ring->slot[index].word
                                        : &take_of(me->ring, index, me->self.u)->word);
    unsigned phase = producer ? (unsigned)GR_WRITING : (unsigned)GR_HELD;
    *seq = seq_of(word);
    return is_mine(me) && owner_of(word) == me->self.number && phase_of(word) == phase;
}

/* How a slot is ended: publish, abandon, release. After the record the frame is published or
 * released, and nothing is undone any more. ends.h has the contract of each.
 */
#include "ends.h"

#include "../core/bell.h"
#include "../core/claim.h"
#include "../core/handles.h"
#include "../core/release.h"
#include "record.h"
#include "released.h"
#include "stream.h"

/* Names a frame that was just released and is torn. gd_reserve has made room. */
static void tell_of_torn(struct gd_peer *peer, struct gd_call *call, uint64_t seq) {
    if (call->torns == GD_MAX_OPS) gd_report_later(peer, seq);
    else call->torn[call->torns++] = seq; /* the room is given up with the call */
}

/* The end of a slot in host order. value: what is promised for a frame that is published. From
 * here on `use` may belong to another thread that has got the slot again. */
static inline enum gr_result let_go(struct gd_peer *peer, uint32_t index, uint64_t value,
                                    enum gd_ending end) {
    struct gd_use *use = &peer->use[index];
    use->open = false;
    if (end == GD_RELEASE) return gr_release(&peer->core, index, use->seq);
    if (end == GD_ABANDON) return gr_abandon(&peer->core, index, use->seq);
    return gr_publish(&peer->core, index, use->seq, value, use->ndim, use->shape);
}

/* own: what this peer has promised for its own work on the frame, or 0. */
static enum gr_result release(struct gd_peer *peer, struct gd_call *call, uint32_t index,
                              uint64_t own) {
    struct gd_use *use = &peer->use[index];
    const uint64_t seq = use->seq;
    const enum gd_end how = gd_end_of(peer, index);
    if (how == GD_WHOLE) return let_go(peer, index, own, GD_RELEASE);
    const struct gd_frame frame = {.index = index,
                                   .producer = use->producer,
                                   .producer_id = use->producer_id,
                                   .seq = seq,
                                   .value = use->value,
                                   .own = own};
    const gd_stream stream = use->stream[0];
    if (!gd_reserve(&peer->released)) return GR_SYSTEM;
    enum gr_result result = let_go(peer, index, own, GD_RELEASE);
    if (result != GR_OK) gd_unreserve(&peer->released, 1);
    else if (how == GD_OPEN) gd_remember(peer, &frame, stream);
    else tell_of_torn(peer, call, seq);
    return result;
}

/* The fence operation for `value` is enqueued, or nothing is promised (0): lets others see the end
 * of the slot. */
static inline enum gr_result finish(struct gd_peer *peer, struct gd_call *call, uint32_t index,
                                    uint64_t value, enum gd_ending end) {
    if (end == GD_RELEASE && peer->use[index].value) return release(peer, call, index, value);
    return let_go(peer, index, value, end);
}

/* Whether one record can serve all slots: each was used on the current stream only. */
static bool on_one_stream(struct gd_peer *peer, const struct gd_call *call) {
    if (call->n == 1 || call->n > GD_MAX_OPS || !peer->sync->record_many) return false;
    for (uint32_t k = 0; k < call->n; k++) {
        struct gd_use *use = &peer->use[call->indices[k]];
        if (!use->open) return false;
        if (use->streams != 1 || use->stream[0] != call->stream) return false;
    }
    return true;
}

static void note(struct gd_call *call, enum gr_result result) {
    if (call->refused == GR_OK) call->refused = result; /* the first of several is reported */
}

static void end_together(struct gd_peer *peer, struct gd_call *call, enum gd_ending end) {
    uint64_t values[GD_MAX_OPS];
    if (gd_record_all(peer, call, values) != GR_OK) call->failed = call->ordering = true;
    for (; call->at < call->n && !call->failed; call->at++)
        note(call, finish(peer, call, call->indices[call->at], values[call->at], end));
}

/* Ends one slot. If the driver refuses the record, this waits for the slot's streams (GR_SIGNAL:
 * call again), and then gives the slot up without a frame. While one of the streams is being
 * captured, nobody can tell when its work is done. Then the peer keeps the slot. */
static enum gr_result end_one(struct gd_peer *peer, struct gd_call *call, uint32_t index,
                              enum gd_ending end) {
    const bool another = call->failed && !call->ordering;
    struct gd_trouble first;
    if (another) first = call->trouble;
    uint64_t value;
    if (!call->ordering) { /* else its record has failed, and it is to be settled */
        if (gd_record(peer, call, index, &value) == GR_OK) {
            note(call, finish(peer, call, index, value, end));
            return GR_OK;
        }
        call->failed = call->ordering = true;
    }
    bool captured = call->trouble.where == GD_CAPTURED && !peer->use[index].unpaid;
    enum gr_result result = captured ? GR_DEVICE : gd_settle(peer, call, index);
    if (another) call->trouble = first; /* the first of several errors is reported */
    if (result == GR_SIGNAL) return result;
    if (result == GR_OK) {
        value = gr_load_relaxed(work_of(peer->core.ring, index, peer->core.self.number));
        finish(peer, call, index, value, end == GD_RELEASE ? GD_RELEASE : GD_ABANDON);
    }
    call->ordering = false;
    return GR_OK;
}

/* Keeps torn frames of this call for later, if it has to report something else now, or may be given
 * up. */
static void report_all_later(struct gd_peer *peer, struct gd_call *call) {
    for (uint32_t k = 0; k < call->torns; k++) gd_report_later(peer, call->torn[k]);
    call->torns = 0;
}

/* The torn frames that it names are the caller's now. */
static inline enum gr_result ended(struct gd_peer *peer, struct gd_call *call) {
    if (call->failed || call->refused != GR_OK) report_all_later(peer, call);
    else if (call->torns) gd_unreserve(&peer->released, call->torns);
    return call->failed ? GR_DEVICE : call->refused;
}

/* The end for a peer that uses the slots by the CPU. Its work is done, so it promises nothing. */
static inline enum gr_result end_by_cpu(struct gd_peer *peer, struct gd_call *call,
                                        enum gd_ending end) {
    for (uint32_t k = 0; k < call->n; k++) {
        const uint32_t index = call->indices[k];
        if (peer->use[index].open) note(call, finish(peer, call, index, 0, end));
    }
    return ended(peer, call);
}

/* Takes slots from their last use on streams to their end. If one slot of a batch is refused, the
 * call goes on with the others; but the frames after one that could not be published are
 * abandoned. */
static enum gr_result end_on_streams(struct gd_peer *peer, struct gd_call *call, unsigned how,
                                     enum gd_ending end) {
    /* Checked before any call of the driver: a child may not touch CUDA. */
    if (gr_forked(peer->core.ring)) {
        for (uint32_t k = 0; k < call->n; k++) peer->use[call->indices[k]].open = false;
        return GR_FORKED;
    }
    if (!(how & GD_AGAIN)) {
        /* There may be work on the current stream, too. */
        for (uint32_t k = 0; k < call->n; k++) {
            struct gd_use *use = &peer->use[call->indices[k]];
            gd_leave_thread(use);
            if (!gd_add_stream(use, call->stream))
                return gd_refuse(call, GD_NO_MEMORY, call->stream, CU_OUT_OF_MEMORY);
            if (call->stream == GD_PER_THREAD) gd_enter_thread(use);
        }
        if (on_one_stream(peer, call)) end_together(peer, call, end);
    }
    for (; call->at < call->n; call->at++) {
        const uint32_t index = call->indices[call->at];
        if (!peer->use[index].open) continue;
        /* It was recorded together with the one that failed. */
        if (call->failed && peer->use[index].unpaid) call->ordering = true;
        const enum gd_ending how_it_ends = end == GD_PUBLISH && call->failed ? GD_ABANDON : end;
        if (end_one(peer, call, index, how_it_ends) == GR_SIGNAL) {
            report_all_later(peer, call);
            return GR_SIGNAL;
        }
    }
    return ended(peer, call);
}

enum gr_result gd_end_now(struct gd_peer *peer, uint32_t index, enum gd_ending end) {
    if (peer->device || (end == GD_RELEASE && peer->use[index].value)) return GR_SIGNAL;
    return let_go(peer, index, 0, end);
}

enum gr_result gd_publish(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    if (!peer->device) return end_by_cpu(peer, call, GD_PUBLISH);
    return end_on_streams(peer, call, how, GD_PUBLISH);
}
enum gr_result gd_abandon(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    if (!peer->device) return end_by_cpu(peer, call, GD_ABANDON);
    return end_on_streams(peer, call, how, GD_ABANDON);
}
enum gr_result gd_release(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    if (!peer->device) return end_by_cpu(peer, call, GD_RELEASE);
    return end_on_streams(peer, call, how, GD_RELEASE);
}

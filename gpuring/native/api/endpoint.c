/* What producers and consumers have in common: take, end, close. */
#define _GNU_SOURCE
#include "endpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../core/acquire.h"
#include "../core/claim.h"
#include "../core/handles.h"
#include "../device/record.h"
#include "../device/released.h"
#include "../memory/trouble.h"

static gpuring_status said(gpuring_error *error, gpuring_status status, const char *text) {
    return gh_fail(error, status, "%s", text);
}

static void begin_call(const struct endpoint *end, struct gd_call *call, int64_t deadline_ns,
                       uint32_t n, uint32_t *indices) {
    gd_begin(call, (gd_stream)end->stream, deadline_ns, n, indices);
}

gpuring_status endpoint_close(struct endpoint *end, gpuring_error *error) {
    gpuring_ring *ring = end->ring;
    gpuring_status status = leave_all_behind(end, error);
    hold(ring);
    if (status == GPURING_OK) status = endpoint_leave(end, error);
    if (status == GPURING_OK) end_following(end);
    let_go(ring);
    return status;
}

/* ---- claim and acquire ----------------------------------------------------------------------- */

gpuring_slot *slot_at(gpuring_slot *slots, uint32_t k) {
    return (gpuring_slot *)((char *)slots + k * slots[0].size);
}

bool shape_fits(const struct gh_spec *spec, uint32_t dimensions, const uint64_t *shape) {
    const struct gh_field *field = &spec->field[0];
    uint64_t nbytes = field->itemsize;
    if (dimensions && spec->fields != 1) return false; /* it would be unclear which one is smaller */
    for (uint32_t k = 0; k < dimensions; k++)
        if (!shape[k] || __builtin_mul_overflow(nbytes, shape[k], &nbytes) ||
            nbytes > field->nbytes)
            return false;
    return true;
}

/* false: its shape is damaged. Any peer can write it, so the copy is checked. */
static bool describe_frame(const struct endpoint *end, uint32_t index, gpuring_slot *slot) {
    const struct gd_use *use = &end->peer.use[index];
    const struct gr_slot *record = &end->ring->header->slot[index];
    const uint32_t n = gr_load_acquire((gr_word32 *)&record->ndim);
    slot->dimensions = n <= GR_MAX_NDIM ? n : 0; /* gd_acquire has refused more */
    for (uint32_t k = 0; k < slot->dimensions; k++)
        slot->shape[k] = gr_load_relaxed(&record->shape[k]);
    slot->lost = use->lost + use->upstream;
    slot->producer = use->producer;
    slot->redelivered = use->redelivered;
    slot->published_ns = (int64_t)gr_load_relaxed(&record->time_ns);
    return shape_fits(&end->ring->spec, slot->dimensions, slot->shape);
}

static bool describe_slot(const struct endpoint *end, uint32_t index, gpuring_slot *slot) {
    const struct gr_ring *header = end->ring->header;
    slot->seq = end->peer.use[index].seq;
    slot->number = index;
    slot->data = end->data + index * header->config.slot_nbytes;
    slot->host = end->host ? end->host + index * header->config.slot_nbytes : NULL;
    slot->mapped = end->peer.device != NULL;
    slot->meta = NULL;
    if (header->config.meta_nbytes) slot->meta = header->meta + index * header->layout.meta_stride;
    slot->dimensions = 0;
    slot->restarted = end->restarted;
    return end->peer.core.self.role != GR_CONSUMER || describe_frame(end, index, slot);
}

/* For a caller that knows an earlier form of the structure. */
__attribute__((noinline)) static bool fill_partly(const struct endpoint *end, uint32_t index,
                                                  gpuring_slot *slot, size_t size) {
    gpuring_slot found = GPURING_SLOT;
    const bool sound = describe_slot(end, index, &found);
    found.size = size;
    memcpy(slot, &found, size);
    return sound;
}

static bool fill(const struct endpoint *end, uint32_t index, gpuring_slot *slot, size_t size) {
    if (size < sizeof *slot) return fill_partly(end, index, slot, size);
    slot->size = size;
    return describe_slot(end, index, slot);
}

static gr_verb core_verb_of(enum gh_verb verb) {
    if (verb == GH_CLAIM) return gr_claim;
    return verb == GH_ACQUIRE ? gr_acquire : gr_latest;
}

static enum gr_result verb_of(struct endpoint *end, struct gd_call *call, enum gh_verb verb,
                              unsigned how) {
    if (verb == GH_CLAIM) return gd_claim(&end->peer, call, how);
    return gd_acquire(&end->peer, call, how, core_verb_of(verb));
}

/* Whether a claim waits for a slot that its own producer has claimed. Nobody can end that claim
 * meanwhile, because only one thread at a time may use a producer. */
static bool waits_for_itself(const struct endpoint *end) {
    const struct gr_culprit *culprit = &end->peer.core.last.culprit;
    return culprit->reason == GR_BY_PRODUCER && culprit->peer == end->peer.core.self.number;
}

/* A wait is repeated slice by slice. One that can have no end is given up. */
static enum gr_result go_on(struct endpoint *end, struct gd_call *call, enum gh_verb verb) {
    int64_t vain_ns = 0;
    enum gr_result result = GR_SIGNAL;
    while (result == GR_SIGNAL) {
        if (verb == GH_CLAIM && call->deadline_ns == INT64_MAX &&
            (waits_for_itself(end) || gh_claims_in_vain(&end->peer.core, &vain_ns))) {
            gd_cancel(&end->peer, call);
            return GR_BLOCKED;
        }
        result = verb_of(end, call, verb, GD_WAIT | GD_AGAIN);
    }
    return result;
}

static gpuring_status refused_torn(struct endpoint *end, gpuring_error *error) {
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    uint64_t seqs[256];
    const size_t n = gd_take_torn(&end->peer, seqs, 256);
    gh_add_torn(&words, end->ring->name, seqs, n, true);
    return said(error, GPURING_FRAME_TORN, text);
}

static gpuring_status refused_resting(struct endpoint *end, enum gr_result result,
                                      enum gh_verb verb, int64_t timeout_ns,
                                      gpuring_error *error) {
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    if (end->notifier) arm_fd(end, true);
    const gpuring_status status =
        gh_add_resting(&words, end->ring->name, end->ring->header, result, verb,
                       timeout_ns < 0 ? GH_NO_TIMEOUT : (double)timeout_ns / 1e9);
    return said(error, status, text);
}

static gpuring_status refused(struct endpoint *end, enum gr_result result, enum gh_verb verb,
                              int64_t timeout_ns, const struct gd_call *call,
                              gpuring_error *error) {
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    if (waits_out(end, result)) return refused_resting(end, result, verb, timeout_ns, error);
    if (result == GR_TORN_BEHIND) return refused_torn(end, error);
    if (result == GR_DEVICE) return gm_fail_trouble(error, end->peer.device, &call->trouble);
    if (result == GR_SYSTEM) return gh_fail_system(error, errno, end->ring->name);
    if (result == GR_BLOCKED && end->notifier) arm_fd(end, false);
    if (result == GR_BLOCKED && timeout_ns < 0 && verb == GH_CLAIM && waits_for_itself(end))
        return gh_fail(error, GPURING_INVALID,
                       "ring '%s': this claim would wait for ever, because the same producer has "
                       "claimed sequence %llu. Publish or abandon that one first",
                       end->ring->name, (unsigned long long)end->peer.core.last.culprit.seq);
    const double timeout_s = timeout_ns < 0 ? GH_NO_TIMEOUT : (double)timeout_ns / 1e9;
    const gpuring_status status = gh_add_refused(&words, end->ring->name, &end->peer.core, result,
                                                 verb, timeout_s, NULL);
    return said(error, status, text);
}

/* `result`: what the first call of the verb has said. */
static gpuring_status take_on(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                              struct gd_call *call, enum gr_result result, gpuring_error *error) {
    for (;; result = verb_of(end, call, verb, GD_WAIT)) {
        if (result == GR_SIGNAL) result = go_on(end, call, verb);
        if (result == GR_OK) return GPURING_OK;
        if (result == GR_BLOCKED) end->late = -1; /* there is a producer */
        if (!waits_out(end, result)) return refused(end, result, verb, timeout_ns, call, error);
        const gpuring_status status = wait_out(end, call->deadline_ns, error);
        if (status == GPURING_TIMEOUT) return refused(end, result, verb, timeout_ns, call, error);
        if (status != GPURING_OK) return status;
        begin_call(end, call, call->deadline_ns, call->n, call->indices);
    }
}

static inline gpuring_status take(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                                  struct gd_call *call, gpuring_error *error) {
    const enum gr_result result = verb_of(end, call, verb, GD_WAIT);
    return result == GR_OK ? GPURING_OK : take_on(end, verb, timeout_ns, call, result, error);
}

/* The error for a frame whose shape is damaged. The frame is released, so that the next call gets
 * beyond it. */
static gpuring_status refused_damaged(struct endpoint *end, uint32_t index, gpuring_error *error) {
    struct gd_call call;
    begin_call(end, &call, 0, 1, &index);
    gd_release(&end->peer, &call, GD_WAIT);
    return endpoint_unusable(end, GR_DAMAGED, error);
}

/* `result`: what gd_take_now has said. */
static gpuring_status take_one(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                               int64_t deadline_ns, enum gr_result result, bool taken,
                               uint32_t *index, gpuring_error *error) {
    struct gd_call call;
    begin_call(end, &call, deadline_ns, 1, index);
    call.ordering = taken;
    return result == GR_SIGNAL ? take(end, verb, timeout_ns, &call, error)
                               : take_on(end, verb, timeout_ns, &call, result, error);
}

gpuring_status endpoint_take(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                             gpuring_slot *slot, gpuring_error *error) {
    NEED_SIZE(slot, number, "GPURING_SLOT", error); /* without these members it cannot be ended */
    NEED_TIMEOUT(timeout_ns, error);
    const int64_t deadline_ns = deadline_of(timeout_ns);
    bool taken = false;
    const enum gr_result result =
        gd_take_now(&end->peer, deadline_ns, core_verb_of(verb), &taken);
    uint32_t index = end->peer.core.last.index;
    if (result != GR_OK) {
        const gpuring_status status =
            take_one(end, verb, timeout_ns, deadline_ns, result, taken, &index, error);
        if (status != GPURING_OK) return status;
    }
    end->peer.use[index].open = true;
    if (!fill(end, index, slot, slot->size)) return refused_damaged(end, index, error);
    tell_ring(end);
    return GPURING_OK;
}

gpuring_status endpoint_take_many(struct endpoint *end, enum gh_verb verb, int64_t timeout_ns,
                                  gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                  gpuring_error *error) {
    struct gd_call call;
    uint32_t indices[GR_MAX_SLOTS];
    const uint32_t most = end->ring->header->slots;
    NEED(got, error);
    *got = 0;
    if (!wanted)
        return gh_fail(error, GPURING_INVALID, "at least one slot can be asked for, not 0");
    NEED_SIZE(slots, number, "GPURING_SLOT", error);
    NEED_TIMEOUT(timeout_ns, error);
    begin_call(end, &call, deadline_of(timeout_ns), wanted < most ? wanted : most, indices);
    const gpuring_status status = take(end, verb, timeout_ns, &call, error);
    if (status != GPURING_OK) return status;
    uint32_t k = 0;
    for (const size_t size = slots[0].size; k < call.got; k++) {
        end->peer.use[indices[k]].open = true;
        if (!fill(end, indices[k], slot_at(slots, k), size)) break;
        tell_ring(end);
    }
    *got = k;
    if (k == call.got) return GPURING_OK;
    /* A damaged frame ends the batch, and the frames behind it are given back. If frames come
     * before it, it is given back as well: the next call begins with it, and reports the damage. */
    const uint32_t first = k ? k : 1;
    struct gd_call rest;
    begin_call(end, &rest, 0, call.got - first, indices + first);
    rest.got = call.got - first;
    gd_cancel(&end->peer, &rest);
    return k ? GPURING_OK : refused_damaged(end, indices[0], error);
}

/* ---- publish, abandon, release --------------------------------------------------------------- */

static gpuring_status not_ours(const struct endpoint *end, const gpuring_slot *slot,
                               gpuring_error *error) {
    return gh_fail(error, GPURING_INVALID,
                   "ring '%s': sequence %llu is not open here: it was ended before, or belongs to "
                   "another producer or consumer",
                   end->ring->name, (unsigned long long)slot->seq);
}

static bool is_open(const struct endpoint *end, const gpuring_slot *slot) {
    return slot->number < end->ring->header->slots && end->peer.use[slot->number].open &&
           end->peer.use[slot->number].seq == slot->seq;
}

static enum gr_result ended(struct endpoint *end, enum gd_ending verb, struct gd_call *call) {
    if (verb == GD_PUBLISH) return gd_publish(&end->peer, call, GD_WAIT);
    if (verb == GD_RELEASE) return gd_release(&end->peer, call, GD_WAIT);
    return gd_abandon(&end->peer, call, GD_WAIT);
}

/* The error that the end of a slot has met, if any. */
static gpuring_status ended_badly(struct endpoint *end, enum gr_result result,
                                  struct gd_call *call, gpuring_error *error) {
    if (result != GR_OK) return refused(end, result, GH_CLAIM, GPURING_FOREVER, call, error);
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    gh_add_torn(&words, end->ring->name, call->torn, call->torns, false);
    return said(error, GPURING_FRAME_TORN, text);
}

/* `result`: what gd_end_now has said. */
static gpuring_status end_on(struct endpoint *end, enum gd_ending verb, uint32_t index,
                             enum gr_result result, gpuring_error *error) {
    struct gd_call call;
    begin_call(end, &call, 0, 1, &index);
    if (result == GR_SIGNAL) result = ended(end, verb, &call);
    return result != GR_OK || call.torns ? ended_badly(end, result, &call, error) : GPURING_OK;
}

gpuring_status endpoint_end(struct endpoint *end, enum gd_ending verb, gpuring_slot *slot,
                            gpuring_error *error) {
    NEED_SIZE(slot, number, "GPURING_SLOT", error);
    struct endpoint *owner = end->left ? where_open(end, slot) : end;
    if (!is_open(owner, slot)) return not_ours(owner, slot, error);
    const enum gr_result result = gd_end_now(&owner->peer, slot->number, verb);
    gpuring_status status = GPURING_OK;
    if (result != GR_OK) status = end_on(owner, verb, slot->number, result, error);
    if (owner != end) leave_if_done(end, owner);
    return status;
}

gpuring_status endpoint_end_many(struct endpoint *end, enum gd_ending verb, gpuring_slot *slots,
                                 uint32_t count, gpuring_error *error) {
    struct gd_call call;
    uint32_t indices[GR_MAX_SLOTS];
    uint64_t seen[GR_MAX_SLOTS / 64] = {0};
    if (count) {
        NEED_SIZE(slots, number, "GPURING_SLOT", error);
    }
    struct endpoint *home = end; /* a batch is of one ring */
    if (count) end = where_open(end, slots);
    for (uint32_t k = 0; k < count; k++) {
        const gpuring_slot *slot = slot_at(slots, k);
        if (k == GR_MAX_SLOTS || !is_open(end, slot)) return not_ours(end, slot, error);
        const uint32_t index = indices[k] = slot->number;
        if (seen[index / 64] >> index % 64 & 1)
            return gh_fail(error, GPURING_INVALID, "ring '%s': sequence %llu is given twice",
                           end->ring->name, (unsigned long long)slot->seq);
        seen[index / 64] |= UINT64_C(1) << index % 64;
    }
    begin_call(end, &call, 0, count, indices);
    const enum gr_result result = ended(end, verb, &call);
    gpuring_status status = GPURING_OK;
    if (result != GR_OK || call.torns) status = ended_badly(end, result, &call, error);
    if (end != home) leave_if_done(home, end);
    return status;
}

/* ---- streams --------------------------------------------------------------------------------- */

gpuring_status endpoint_use_on(struct endpoint *end, const gpuring_slot *slot, void *stream,
                               gpuring_error *error) {
    struct gd_trouble trouble;
    NEED_SIZE(slot, number, "GPURING_SLOT", error);
    end = where_open(end, slot);
    if (!is_open(end, slot)) return not_ours(end, slot, error);
    if (gr_forked(end->ring->header)) return endpoint_unusable(end, GR_FORKED, error);
    if (end->ring->gpu < 0)
        return gh_fail(error, GPURING_INVALID, "ring '%s' is in host memory: it takes no stream",
                       end->ring->name);
    /* If no GPU reaches the slot, nothing is ordered on it. */
    if (!end->peer.device ||
        gd_use_on(&end->peer, slot->number, (gd_stream)stream, &trouble) == GR_OK)
        return GPURING_OK;
    return gm_fail_trouble(error, end->peer.device, &trouble);
}

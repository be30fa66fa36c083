/* Before a slot is used: the stream, or this thread, waits for whoever's GPU is still at work on it.
 *
 * The core lists what is pending (gr_peer.pending): a claim has to wait for everybody's work on the slot, its own too
 * (G12: a stream of an earlier lap could otherwise pay late, and the fence would fall), an acquire for its own
 * and for the frame's producer.  Gate "stream" puts a wait into the stream; gate "host" waits here.
 */
#include "device.h"

#include <time.h>

/* How long a call looks, at the most, whether fences come soon: for all of its fences, and of that at our own work if we
 * are a lap ahead of it.  In a row of calls that are, GD_LAPS_NS are spent before the looks are given up for a while. */
#ifndef GD_LAP_NS
#define GD_LAP_NS (INT64_C(30) * 1000)
#endif
#ifndef GD_LAPS_NS
#define GD_LAPS_NS (INT64_C(4) * 1000 * 1000)
#endif
enum {
    GD_PATIENCE_NS = 20 * 1000,
    GD_SPIN_NS = 200 * 1000, /* host gate: a hop between two contexts takes about 150 µs */
    GD_NAP_NS = 20 * 1000
};

void gd_pause(void) {
#if defined(__x86_64__)
    for (int k = 0; k < 4; k++) __builtin_ia32_pause();
#elif defined(__aarch64__)
    for (int k = 0; k < 4; k++) __asm__ volatile("yield");
#endif
}

enum gr_result gd_refuse(struct gd_call *call, enum gd_where where, gd_stream stream, int status) {
    if (where == GD_ON_STREAM && gd_is_capture(status)) where = GD_CAPTURED;
    call->trouble = (struct gd_trouble){.where = where, .stream = stream, .status = status};
    return GR_DEVICE;
}

static inline const gr_word *fence_word(const struct gd_peer *me, uint32_t peer, uint32_t index) {
    return fence_of(me->me.ring, index, peer);
}
static inline bool is_reached(const struct gd_peer *me, uint32_t peer, uint32_t index, uint64_t value) {
    return gr_load_acquire((gr_word *)fence_word(me, peer, index)) >= value;
}

/* CU_OK, CU_NOT_READY or an error.  On host memory somebody is about to store the word, or it is a dead peer's. */
static int paid(struct gd_peer *me, struct gd_call *call, uint32_t peer, uint32_t index, uint64_t value) {
    if (me->device) return me->device->sync->paid(me, peer, index, value, &call->trouble);
    return is_reached(me, peer, index, value) ? CU_OK : CU_NOT_READY;
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */

/* Until the fence is there.  The word is written by a GPU, or by whoever saw an event complete, so there is nothing to
 * sleep on: spin, then nap.  ours: the slot is, so that whatever was promised in it is recorded. */
static enum gr_result await(struct gd_peer *me, struct gd_call *call, uint32_t peer, uint32_t index, uint64_t value,
                            bool ours) {
    const int64_t spin_ns = me->me.spin_fixed && me->me.spin_ns > GD_SPIN_NS ? me->me.spin_ns : GD_SPIN_NS;
    int64_t start = gr_now_ns(), now = start;
    if (call->since_ns == 0) call->since_ns = start;
    for (;;) {
        int status = ours ? paid(me, call, peer, index, value)
                   : me->device->sync->hint(me, peer, index, value) ? CU_OK : CU_NOT_READY;
        if (status == CU_OK) break;
        if (status != CU_NOT_READY) return GR_DEVICE; /* `paid` has said which */
        now = gr_now_ns();
        if (now >= call->deadline_ns) {
            me->me.culprit = (struct gr_culprit){GR_BY_FENCE, peer, GR_NONE, me->me.seq,
                                                 gr_load_relaxed(&me->me.ring->slot[index].time_ns)};
            return GR_BLOCKED;
        }
        if (now - start > GR_SLICE_NS) {
            gr_reap_dead(me->me.ring, NULL); /* whose fence it is may be dead */
            return GR_SIGNAL;
        }
        if (now - call->since_ns < spin_ns) gd_pause();
        else if (nanosleep(&(struct timespec){.tv_nsec = GD_NAP_NS}, NULL) != 0) return GR_SIGNAL;
    }
    call->since_ns = 0;
    return GR_OK;
}

/* Gate "host", before a claim: waits for the fences of the slot that comes next, so that a call whose time is up has
 * (almost always) claimed nothing; else it would leave a void sequence each time.  Only a hint: that slot is not ours,
 * a promise in it may not be recorded yet, and an event then says "done" of an older record.  So nothing is raised
 * from here, and the claim itself lists anew what is pending. */
enum gr_result gd_await_next(struct gd_peer *me, struct gd_call *call, unsigned how) {
    struct gr_culprit culprit;
    uint64_t seq, tried = 0;
    for (;;) {
        if (gr_look(&me->me, &seq, &culprit) != GR_OK || seq == tried) return GR_OK; /* the claim knows better */
        const uint32_t index = (uint32_t)(seq % me->me.ring->slots);
        gr_list_pending(&me->me, index);
        tried = seq;
        for (uint32_t k = 0; k < me->me.pendings; k++) {
            const struct gr_pending *pending = &me->me.pending[k];
            if (is_reached(me, pending->peer, index, pending->value)) continue;
            if (!(how & GD_WAIT)) return GR_SIGNAL;
            if (!me->device->sync->hint(me, pending->peer, index, pending->value)) {
                me->me.seq = seq;
                enum gr_result result = await(me, call, pending->peer, index, pending->value, false);
                if (result != GR_OK) return result;
            }
        }
        if (me->me.pendings == 0) return GR_OK;
    }
}

/* ---- or on the stream --------------------------------------------------------------------------------------------- */

/* Whether the last fence operation of ours on the slot is on this very stream, which then keeps the order by itself.
 * If the id that was noted with it is the stream's now, the stream was there when the id was asked for and is there
 * still, so that its handle has meant this stream all the time. */
static bool is_on_stream(struct gd_peer *me, struct gd_call *call, uint32_t index) {
    struct gd_use *use = &me->use[index];
    if (use->recorded_on == 0 || use->unpaid || call->stream == GD_PER_THREAD) return false;
    if (call->stream_id == 0) call->stream_id = gd_stream_id(me->device, call->stream);
    use->asked = call->stream;
    use->asked_id = call->stream_id;
    return use->recorded_on == call->stream_id;
}

/* A look in vain makes blind for a while: the fences take a switch of contexts, or real work. */
static bool not_soon(struct gd_peer *me) {
    me->backoff = me->backoff < 128 ? 2 * me->backoff + 1 : me->backoff;
    me->blind = me->backoff;
    me->lap_ns = 0;
    return false;
}

/* Whether the fence comes in a moment, so that no wait need be put into the stream.  A GPU that finds a wait pending
 * takes longer to go on than a host that sees the word change.
 *
 * It looks only while our own last work is still to be done: then the stream has no use for the wait yet, and nothing
 * is later for it.  If not even our work of the last lap on this slot is done, the host is farther ahead than the ring
 * is long, every fence is far, and it would stay so.  So each call lets the GPU catch up by a little: it does several
 * small frames meanwhile, and the host claims one. */
static bool comes_soon(struct gd_peer *me, struct gd_call *call, uint32_t peer, uint32_t index, uint64_t value) {
    if (me->blind > 0) {
        me->blind--;
        return false;
    }
    const struct gd_sync *sync = me->device->sync;
    const uint32_t mine = me->me.number;
    const uint64_t last = gr_load_relaxed(&me->last_value), lap = gr_load_relaxed(work_of(me->me.ring, index, mine));
    const uint32_t last_index = (uint32_t)((last >> 16) % me->me.ring->slots);
    const int64_t start = gr_now_ns();
    int64_t now = start;
    if (call->look_until_ns == 0) call->look_until_ns = start + GD_LAP_NS + GD_PATIENCE_NS;
    while (!sync->hint(me, mine, index, lap)) { /* a hint, as below: another thread may be recording that slot */
        if (now >= start + GD_LAP_NS || now >= call->look_until_ns) {
            me->lap_ns += now - start;
            return me->lap_ns < GD_LAPS_NS ? false : not_soon(me);
        }
        gd_pause();
        now = gr_now_ns();
    }
    me->lap_ns = 0;
    int64_t until = now + GD_PATIENCE_NS;
    if (until > call->look_until_ns) until = call->look_until_ns;
    do {
        if (paid(me, call, peer, index, value) == CU_OK) {
            me->backoff = 0;
            return true;
        }
        if (sync->hint(me, mine, last_index, last)) return false;
        gd_pause();
    } while (gr_now_ns() < until);
    return not_soon(me);
}

/* What was collected for the stream, in one call of the driver.  GR_DEVICE because of a capture: nothing was. */
enum gr_result gd_submit(struct gd_peer *me, struct gd_call *call) {
    const struct gd_device *device = me->device;
    const unsigned n = call->ops;
    if (n == 0) return GR_OK;
    call->ops = 0;
    void *stream = (void *)call->stream;
    int status = gd_captured(device, call->stream);
    if (status != CU_OK) return gd_refuse(call, GD_CAPTURED, call->stream, status);
    if (n > 1) status = device->driver->stream_batch(stream, n, call->op, 0);
    else status = device->driver->stream_wait_value(stream, call->op->address, call->op->value, 0);
    return status == CU_OK ? GR_OK : gd_refuse(call, GD_ON_STREAM, call->stream, status);
}

/* GR_OK: call->stream is ordered behind everything that is pending on the slot of the peer's last claim or acquire, once
 * what is left in call->op is submitted.  GR_BLOCKED: the deadline came first. */
enum gr_result gd_order(struct gd_peer *me, struct gd_call *call, unsigned how) {
    const uint32_t index = me->me.index;
    GR_FAULT("device: ordering");
    for (; call->at < me->me.pendings; call->at++) {
        const uint32_t peer = me->me.pending[call->at].peer;
        const uint64_t value = me->me.pending[call->at].value;
        if (is_reached(me, peer, index, value)) continue;
        if (me->device && me->device->sync->seen && me->device->sync->seen(me, peer, index, value)) continue;
        if (!(how & GD_WAIT)) return GR_SIGNAL;
        if (me->device) {
            if (!call->checked) {
                enum gr_result result = gd_check_stream(me->device, call->stream, &call->trouble);
                if (result != GR_OK) return result;
                call->checked = true;
            }
            if (peer == me->me.number && is_on_stream(me, call, index)) continue;
        }
        if (!me->device || me->gate_host) {
            enum gr_result result = await(me, call, peer, index, value, true);
            if (result != GR_OK) return result;
            continue;
        }
        int status = paid(me, call, peer, index, value);
        if (status == CU_OK) continue;
        if (status != CU_NOT_READY) return GR_DEVICE;
        if (call->deadline_ns != 0 && comes_soon(me, call, peer, index, value)) continue;
        status = me->device->sync->wait(me, call, peer, index, value);
        if (status != CU_OK) return gd_refuse(call, GD_ON_STREAM, call->stream, status);
    }
    return GR_OK;
}

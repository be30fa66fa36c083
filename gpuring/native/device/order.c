/* Before a slot is used: the stream, or this thread, waits for the peers whose GPU work on it is
 * pending.
 *
 * The core lists what is pending in gr_peer.last. A claim waits for the work of every peer on
 * the slot, its own included (G12: a stream of an earlier lap could come late, and the fence would
 * fall). An acquire waits for its own work and for that of the frame's producer. With gate
 * "stream" a wait is put into the stream; with gate "host" this thread waits.
 */
#include "order.h"

#include "../core/acquire.h"
#include "../core/bell.h"
#include "../core/claim.h"
#include "../core/watchdog.h"
#include "stream.h"

/* A call looks for at most GD_LAP_NS + GD_PATIENCE_NS whether fences come soon, in all. For one
 * fence, GD_LAP_NS are for looking at its own work, if that is a lap behind, and GD_PATIENCE_NS
 * for the fence itself. When a row of calls that are a lap ahead has spent GD_LAPS_NS, they stop
 * looking for a while. */
#ifndef GD_LAP_NS
#define GD_LAP_NS (INT64_C(30) * 1000)
#endif
#ifndef GD_LAPS_NS
#define GD_LAPS_NS (INT64_C(4) * 1000 * 1000)
#endif
enum {
    GD_PATIENCE_NS = 20 * 1000,
};

/* CU_OK, CU_NOT_READY or an error. If a word that a CPU stores is behind, it will be stored in a
 * moment, or by a reaper if its owner is dead. */
static int paid(struct gd_peer *peer, struct gd_call *call, uint32_t owner, uint32_t index,
                uint64_t value) {
    return peer->sync->paid(peer, owner, index, value, &call->trouble);
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* Waits until the fence is reached. A GPU writes the word, or a process that saw an event
 * complete, so there is no bell to sleep at: this spins, then naps. ours: this peer has the slot,
 * so whatever was promised on it is recorded. */
static enum gr_result await(struct gd_peer *peer, struct gd_call *call, uint32_t owner,
                            uint32_t index, uint64_t value, bool ours) {
    const struct gr_patience *patience = &peer->core.wait;
    const int64_t spin_ns =
        patience->spin_fixed && patience->spin_ns > GD_SPIN_NS ? patience->spin_ns : GD_SPIN_NS;
    const int64_t start = gr_now_ns();
    if (call->since_ns == 0) call->since_ns = start;
    gr_tell_of_joins(peer->core.ring); /* as below, in gd_order */
    for (;;) {
        int status = ours ? paid(peer, call, owner, index, value)
                   : peer->sync->hint(peer, owner, index, value) ? CU_OK : CU_NOT_READY;
        if (status == CU_OK) break;
        if (status != CU_NOT_READY) return GR_DEVICE; /* `paid` has filled in call->trouble */
        if (gr_now_ns() >= call->deadline_ns) {
            peer->core.last.culprit =
                (struct gr_culprit){GR_BY_FENCE, owner, GR_NONE, peer->core.last.seq,
                                    gr_load_relaxed(&peer->core.ring->slot[index].time_ns)};
            return GR_BLOCKED;
        }
        if (gd_rest(peer, call, start, spin_ns) != GR_OK) return GR_SIGNAL;
    }
    call->since_ns = 0;
    return GR_OK;
}

/* Gate "host", before a claim. Waits for the fences of the slot that comes next. So a call whose
 * time is up has almost always claimed nothing; otherwise it would leave a void sequence each
 * time. This is only a hint (G13): the slot is not this peer's, so a promise on it may not be
 * recorded yet, and an event then says "complete" of an older record. No fence is raised here, and
 * the claim makes its own list. */
enum gr_result gd_await_next(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    struct gr_culprit culprit;
    uint64_t seq, tried = 0;
    for (;;) {
        if (gr_look(&peer->core, &seq, &culprit) != GR_OK || seq == tried) return GR_OK;
        const uint32_t index = (uint32_t)(seq % peer->core.ring->slots);
        gr_list_pending(&peer->core, index);
        tried = seq;
        for (uint32_t k = 0; k < peer->core.last.pendings; k++) {
            const struct gr_pending *pending = &peer->core.last.pending[k];
            if (gd_is_reached(peer, pending->peer, index, pending->value)) continue;
            if (!(how & GD_WAIT)) return GR_SIGNAL;
            if (!peer->sync->hint(peer, pending->peer, index, pending->value)) {
                peer->core.last.seq = seq;
                enum gr_result result =
                    await(peer, call, pending->peer, index, pending->value, false);
                if (result != GR_OK) return result;
            }
        }
        if (peer->core.last.pendings == 0) return GR_OK;
    }
}

bool gd_is_whole(struct gd_peer *peer) {
    struct gr_culprit culprit;
    uint64_t seq;
    if (gr_look(&peer->core, &seq, &culprit) != GR_OK) return false;
    const struct gr_ring *ring = peer->core.ring;
    const uint32_t index = (uint32_t)(seq % ring->slots), mine = peer->core.self.number,
                   producer = owner_of(gr_load_acquire(&ring->slot[index].word));
    if (producer >= ring->max_peers) return false; /* acquire says what is damaged */
    /* The core lists both as pending. A promise that came after the frame costs a wrong "no". */
    const uint64_t written = gr_load_acquire(work_of(ring, index, producer)),
                   read = gr_load_acquire(work_of(ring, index, mine));
    const struct gd_sync *sync = peer->sync;
    return sync->hint(peer, producer, index, written) &&
           (gd_is_reached(peer, mine, index, read) || sync->hint(peer, mine, index, read));
}

/* ---- or on the stream ------------------------------------------------------------------------ */

/* Whether the last fence operation of this peer on the slot is on this very stream, which then
 * keeps the order by itself. The id that was noted with the operation is compared with the
 * stream's id now. If they are equal, the same stream had this handle all the time. */
static bool is_on_stream(struct gd_peer *peer, struct gd_call *call, uint32_t index) {
    struct gd_use *use = &peer->use[index];
    if (use->recorded_on == 0 || use->unpaid || call->stream == GD_PER_THREAD) return false;
    if (call->stream_id == 0) call->stream_id = gd_stream_id(peer->device, call->stream);
    use->asked = call->stream;
    use->asked_id = call->stream_id;
    return use->recorded_on == call->stream_id;
}

/* After looking in vain, do not look for a while: these fences wait for a switch of contexts, or
 * for real work. */
static bool not_soon(struct gd_peer *peer) {
    peer->backoff = peer->backoff < 128 ? 2 * peer->backoff + 1 : peer->backoff;
    peer->blind = peer->backoff;
    peer->lap_ns = 0;
    return false;
}

/* Whether the fence will be reached in a moment, so that no wait has to be put into the stream. A
 * GPU that finds a pending wait takes longer to go on than a host that sees the word change.
 *
 * It looks only while this peer's own last work is pending. Until then its stream cannot use the
 * slot anyway, so looking delays nothing. If not even its work of the last lap on this slot is
 * done, the host is a whole lap ahead of the GPU: every fence is far, and it would stay so. Then
 * each call lets the GPU catch up by a little, in which it does several small frames while the
 * host claims one. */
static bool comes_soon(struct gd_peer *peer, struct gd_call *call, uint32_t owner, uint32_t index,
                       uint64_t value) {
    if (peer->blind > 0) {
        peer->blind--;
        return false;
    }
    const struct gd_sync *sync = peer->sync;
    const uint32_t mine = peer->core.self.number;
    const uint64_t last = gr_load_relaxed(&peer->last_value),
                   lap = gr_load_relaxed(work_of(peer->core.ring, index, mine));
    const uint32_t last_index = (uint32_t)((last >> 16) % peer->core.ring->slots);
    const int64_t start = gr_now_ns();
    int64_t now = start;
    if (call->look_until_ns == 0) call->look_until_ns = start + GD_LAP_NS + GD_PATIENCE_NS;
    /* A hint, as below: another thread may be recording that slot. */
    while (!sync->hint(peer, mine, index, lap)) {
        if (now >= start + GD_LAP_NS || now >= call->look_until_ns) {
            peer->lap_ns += now - start;
            return peer->lap_ns < GD_LAPS_NS ? false : not_soon(peer);
        }
        gd_pause();
        now = gr_now_ns();
    }
    peer->lap_ns = 0;
    int64_t until = now + GD_PATIENCE_NS;
    if (until > call->look_until_ns) until = call->look_until_ns;
    do {
        if (paid(peer, call, owner, index, value) == CU_OK) {
            peer->backoff = 0;
            return true;
        }
        if (sync->hint(peer, mine, last_index, last)) return false;
        gd_pause();
    } while (gr_now_ns() < until);
    return not_soon(peer);
}

/* GR_OK: once what is left in call->op is submitted, call->stream is ordered behind everything
 * pending on the slot of the peer's last claim or acquire. GR_BLOCKED: the deadline came first. */
enum gr_result gd_order(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    const uint32_t index = peer->core.last.index;
    for (; call->at < peer->core.last.pendings; call->at++) {
        const uint32_t owner = peer->core.last.pending[call->at].peer;
        const uint64_t value = peer->core.last.pending[call->at].value;
        if (gd_is_reached(peer, owner, index, value)) continue;
        if (peer->sync->seen && peer->sync->seen(peer, owner, index, value)) continue;
        if (!(how & GD_WAIT)) return GR_SIGNAL;
        if (peer->device) {
            if (!call->checked) {
                enum gr_result result = gd_check_stream(peer->device, call->stream, &call->trouble);
                if (result != GR_OK) return result;
                call->checked = true;
            }
            if (owner == peer->core.self.number && is_on_stream(peer, call, index)) continue;
        }
        if (!peer->device || peer->gate_host) {
            enum gr_result result = await(peer, call, owner, index, value, true);
            if (result != GR_OK) return result;
            continue;
        }
        int status = paid(peer, call, owner, index, value);
        if (status == CU_OK) continue;
        if (status != CU_NOT_READY) return GR_DEVICE;
        if (call->deadline_ns != 0 && comes_soon(peer, call, owner, index, value)) continue;
        /* From now on only the watchdog can notice the death of this peer. The watchdog may have
         * slept since before the peer joined, and no thread has slept in a verb since. */
        gr_tell_of_joins(peer->core.ring);
        status = peer->sync->wait(peer, call, owner, index, value);
        if (status != CU_OK) return gd_refuse(call, GD_ON_STREAM, call->stream, status);
    }
    return GR_OK;
}

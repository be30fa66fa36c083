/* The verbs that take slots, and leave: one call is one whole transition, with its host order and
 * its device order. ends.c has those that end slots.
 *
 * Until the record everything can be undone: a claim turns void, a frame is given back. Each verb
 * can be read here from top to bottom. verbs.h has the contract of each, and docs/protocol.md the
 * argument.
 */
#include "verbs.h"

#include "../core/acquire.h"
#include "../core/bell.h"
#include "../core/claim.h"
#include "../core/handles.h"
#include "../core/members.h"
#include "../core/release.h"
#include "../core/wait.h"
#include "../core/watchdog.h"
#include "event.h"
#include "order.h"
#include "record.h"
#include "released.h"
#include "stream.h"

/* ---- claim, acquire -------------------------------------------------------------------------- */

/* A verb that was blocked, or that waits already: it spins, then sleeps for a slice. */
static enum gr_result go_on(struct gd_peer *peer, struct gd_call *call, unsigned how,
                            gr_verb verb) {
    if (call->stage == GD_TRY) {
        if (call->deadline_ns == 0) {
            /* The watchdog has to know the peer that is in the way, because that peer may die. A
             * sleep reports joins to the watchdog. A caller that polls does not sleep, so this does
             * it. */
            gr_tell_of_joins(peer->core.ring);
            return GR_BLOCKED;
        }
        call->stage = GD_SPIN;
    }
    if (!(how & GD_WAIT)) return GR_SIGNAL;
    if (call->stage == GD_SLEEP) return gr_sleep(&peer->core, verb);
    call->stage = GD_SLEEP;
    enum gr_result result = gr_spin(&peer->core, verb);
    if (result != GR_BLOCKED || gr_now_ns() >= call->deadline_ns) return result;
    return GR_SIGNAL; /* the caller looks at signals before it sleeps */
}

/* Calls the core's verb until it is not blocked any more, and first at once. */
static inline enum gr_result in_host_order(struct gd_peer *peer, struct gd_call *call,
                                           unsigned how, gr_verb verb) {
    peer->core.wait.deadline_ns = call->deadline_ns;
    const enum gr_result result = call->stage == GD_TRY ? verb(&peer->core) : GR_BLOCKED;
    return result == GR_BLOCKED ? go_on(peer, call, how, verb) : result;
}

/* Orders the stream behind what is pending on the slot of the peer's last claim or acquire. */
static inline enum gr_result in_device_order(struct gd_peer *peer, struct gd_call *call,
                                             unsigned how) {
    GR_FAULT("device: ordering");
    return peer->core.last.pendings ? gd_order(peer, call, how) : GR_OK;
}

/* What is known of the frame of the last acquire. */
static inline void note_frame(struct gd_peer *peer) {
    const struct gr_delivery *frame = &peer->core.last;
    struct gd_use *use = &peer->use[frame->index];
    use->producer = frame->producer;
    use->producer_id = frame->producer_id;
    use->value = frame->value;
    use->redelivered = frame->redelivered;
    use->lost = frame->lost;
    use->upstream = frame->upstream;
}

/* More dimensions than a frame can have. */
static inline bool is_damaged(struct gd_peer *peer) {
    struct gr_slot *slot = &peer->core.ring->slot[peer->core.last.index];
    return gr_load_acquire(&slot->ndim) > GR_MAX_NDIM;
}

/* Hands out the slot of the peer's last claim or acquire. The caller then marks it as open. */
static inline void hand_out(struct gd_peer *peer, struct gd_call *call) {
    const uint32_t index = peer->core.last.index;
    struct gd_use *use = &peer->use[index];
    use->seq = peer->core.last.seq;
    use->ndim = 0;
    if (peer->device) {
        use->thread = 0;
        use->of_another = false;
        use->streams = 1;
        use->stream[0] = call->stream;
        if (call->stream == GD_PER_THREAD) gd_enter_thread(use);
    }
    call->indices[call->got++] = index;
    call->ordering = false;
    call->stage = GD_TRY;
    call->deadline_ns = 0; /* the rest of a batch must be there already */
    call->at = 0;
    GR_FAULT("device: ordered");
}

/* A signal handler, or another thread, may have closed this peer while it waited. Then what it had
 * was given back. */
static inline enum gr_result handed_out(struct gd_peer *peer, struct gd_call *call) {
    if (peer->core.self.left) {
        call->got = 0;
        return GR_REAPED;
    }
    if (call->ops == 0) return GR_OK;
    enum gr_result result = gd_submit(peer, call);
    if (result != GR_OK) gd_cancel(peer, call);
    return result;
}

/* Whether a claim would be blocked, in the form of a verb, so that it can be waited for. */
static enum gr_result look(struct gr_peer *me) {
    uint64_t seq;
    return gr_look(me, &seq, &me->last.culprit);
}

enum gr_result gd_claim(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    while (call->got < call->n) {
        enum gr_result result = GR_OK;
        if (!call->ordering) {
            /* It waits for pending work before it claims, as far as a look can tell. */
            if (peer->gate_host) {
                result = in_host_order(peer, call, how, look);
                if (result == GR_OK) result = gd_await_next(peer, call, how);
                if (result == GR_OK) result = gr_claim(&peer->core);
                /* Another producer was faster. */
                if (result == GR_BLOCKED && gr_now_ns() < call->deadline_ns) continue;
            } else result = in_host_order(peer, call, how, gr_claim);
            if (result == GR_SIGNAL) return result;
            if (result != GR_OK) {
                if (call->got == 0) return result;
                if (result != GR_REAPED) break;
                gd_cancel(peer, call); /* whoever cleared the entry took the rest of the batch */
                return result;
            }
            call->ordering = true;
        }
        if (peer->core.self.left) return GR_REAPED;
        result = in_device_order(peer, call, how);
        if (result == GR_SIGNAL) return result;
        if (result != GR_OK) {
            call->ordering = false;
            /* Nothing of ours is in the stream, or the driver refused. */
            gr_abandon(&peer->core, peer->core.last.index, peer->core.last.seq);
            if (result == GR_BLOCKED && call->got) break;
            gd_cancel(peer, call);
            return result;
        }
        hand_out(peer, call);
    }
    return handed_out(peer, call);
}

enum gr_result gd_acquire(struct gd_peer *peer, struct gd_call *call, unsigned how, gr_verb verb) {
    if (call->got == 0 && !call->ordering && gd_is_due(peer)) {
        if (gr_forked(peer->core.ring)) return GR_FORKED; /* a child may not touch CUDA */
        if (!(how & GD_WAIT)) return GR_SIGNAL;       /* to ask events may block */
        if (gd_look_at_released(peer)) return GR_TORN_BEHIND;
    }
    while (call->got < call->n) {
        enum gr_result result = GR_OK;
        if (!call->ordering) {
            result = in_host_order(peer, call, how, verb);
            if (result == GR_SIGNAL) return result;
            if (result != GR_OK) {
                if (call->got == 0) return result;
                if (result != GR_DAMAGED && result != GR_REAPED) break;
                /* A later call would not report the damage; and a reaped peer has lost the rest of
                 * the batch. */
                gd_cancel(peer, call);
                return result;
            }
            call->ordering = true;
        }
        if (peer->core.self.left) return GR_REAPED;
        result = in_device_order(peer, call, how);
        const bool may_be_torn = result == GR_OK && gd_may_be_torn(peer);
        if (result == GR_SIGNAL || (may_be_torn && !(how & GD_WAIT))) return GR_SIGNAL;
        call->ordering = false;
        if (result != GR_OK) {
            gr_give_back(&peer->core, peer->core.last.index, peer->core.last.seq);
            if (result == GR_BLOCKED && call->got) break;
            gd_cancel(peer, call);
            return result;
        }
        /* The frame is released, so this is the only call that can report the damage. */
        if (is_damaged(peer)) {
            gr_release(&peer->core, peer->core.last.index, peer->core.last.seq);
            gd_cancel(peer, call);
            return GR_DAMAGED;
        }
        note_frame(peer);
        /* The producer died meanwhile, and the user has not seen the frame. */
        if (may_be_torn && gd_is_torn(peer, peer->core.last.index)) {
            gr_skip_torn(&peer->core);
            call->stage = GD_TRY;
            call->at = 0;
            continue;
        }
        hand_out(peer, call);
    }
    return handed_out(peer, call);
}

enum gr_result gd_take_now(struct gd_peer *peer, int64_t deadline_ns, gr_verb verb, bool *taken) {
    const bool consumer = peer->core.self.role == GR_CONSUMER;
    if (peer->device || peer->gate_host || (consumer && gd_is_due(peer))) return GR_SIGNAL;
    peer->core.wait.deadline_ns = deadline_ns;
    const enum gr_result result = verb(&peer->core);
    if (result != GR_OK) return result == GR_BLOCKED ? GR_SIGNAL : result;
    if (peer->core.self.left) return GR_REAPED;
    if (peer->core.last.pendings || (consumer && (peer->core.last.value || is_damaged(peer)))) {
        *taken = true;
        return GR_SIGNAL;
    }
    if (consumer) note_frame(peer);
    struct gd_use *use = &peer->use[peer->core.last.index];
    use->seq = peer->core.last.seq;
    use->ndim = 0;
    return GR_OK;
}

void gd_cancel(struct gd_peer *peer, struct gd_call *call) {
    const bool producer = peer->core.self.role == GR_PRODUCER;
    call->ops = 0; /* waits that were not submitted yet */
    if (peer->core.self.left) {
        call->got = 0;
        return;
    }
    if (call->ordering) {
        if (producer) gr_abandon(&peer->core, peer->core.last.index, peer->core.last.seq);
        else gr_give_back(&peer->core, peer->core.last.index, peer->core.last.seq);
    } else if (!producer && call->got && peer->core.last.reported)
        /* They were handed out with the last frame, which the user does not get. */
        peer->core.last.lost = peer->core.last.upstream = 0;
    call->ordering = false;
    while (call->got > 0) { /* the last first, so that the position goes back step by step */
        struct gd_use *use = &peer->use[call->indices[--call->got]];
        use->open = false;
        if (producer) gr_abandon(&peer->core, call->indices[call->got], use->seq);
        else {
            gr_give_back(&peer->core, call->indices[call->got], use->seq);
            peer->core.last.lost += use->lost;
            peer->core.last.upstream += use->upstream;
        }
    }
}

/* ---- undone, and left -------------------------------------------------------------------- */

enum gr_result gd_put_back(struct gd_peer *peer, uint32_t index, bool seen) {
    uint64_t seq;
    if (!gr_holds(&peer->core, index, &seq)) return GR_REAPED;
    peer->use[index].open = false;
    if (peer->core.self.role == GR_PRODUCER) return gr_abandon(&peer->core, index, seq);
    const bool last = peer->core.last.reported && peer->core.last.seq == seq;
    /* The losses were reported with a later frame, which is kept. */
    if (peer->core.last.reported && !last) peer->core.last.lost = peer->core.last.upstream = 0;
    enum gr_result result = (seen ? gr_return : gr_give_back)(&peer->core, index, seq);
    /* Of the last frame it is in there already. */
    if (!last) {
        peer->core.last.lost += peer->use[index].lost;
        peer->core.last.upstream += peer->use[index].upstream;
    }
    return result;
}

enum gr_result gd_leave(struct gd_peer *peer, struct gd_call *call, unsigned how) {
    if (gr_forked(peer->core.ring)) return GR_FORKED;
    enum gr_result result = gd_drain(peer, call, how);
    if (result != GR_OK) return result;
    const bool prepared = peer->use != NULL; /* else its join has failed */
    /* Its own events can still be asked now. */
    if (prepared && peer->core.self.role == GR_CONSUMER) gd_look_at_released(peer);
    result = gr_leave(&peer->core);
    if (gr_leaves_late(&peer->core)) gr_watch(peer->core.ring);
    if (peer->core.self.left && peer->device && prepared) {
        gd_give_events(peer);
        gd_drop_checkpoint(peer);
    }
    return result;
}

/* The handle of a peer, and what encloses each of its verbs.
 *
 * Its owner may use one verb at a time; what other threads may touch is marked. Nothing here is
 * shared with other processes.
 */
#pragma once

#include "handles.h"
#include "ring.h"

/* Who is in the way of a blocked verb. It is a diagnosis: it was true when the verb looked. */
enum gr_reason {
    GR_NOBODY = 0,
    GR_BY_PRODUCER,     /* peer is writing seq */
    GR_BY_HOLDER,       /* peer, a member of subscription, holds seq */
    GR_BY_SUBSCRIPTION, /* nobody of subscription has taken seq yet */
    GR_BY_NO_FRAME,     /* seq has not been published yet */
    GR_BY_FENCE         /* peer's GPU has not finished with the slot of seq */
};
struct gr_culprit {
    enum gr_reason reason;
    uint32_t peer, subscription; /* GR_NONE where it does not apply */
    uint64_t seq, since_ns;
};

enum { GR_SPIN_MAX_NS = 50 * 1000, GR_SPIN_MIN_NS = 1000 }; /* how long a wait spins */

struct gr_pending {
    uint32_t peer;
    uint64_t value;
};

/* Which peer it is, and whether it is still a member. Its join writes the fields that are not
 * marked. */
struct gr_identity {
    uint32_t number, role, u, mode, policy; /* u: of its subscription, or GR_NONE */
    uint64_t id;
    _Atomic bool left; /* it has left, and the number may belong to another peer */
    bool dropped;      /* nobody has it any more: gr_leave does not wait for LOCK */
    /* Set when it is about to leave: claim and acquire are refused. Writer: any thread
     * (gr_stop). */
    gr_word32 stopping;
};

/* How far a consumer is in the stream. */
struct gr_cursor {
    /* Its position, the redo count that it has seen, and `high`: it has met every sequence below
     * that one already. */
    uint64_t pos, seen, high;
    /* How many sequences there were before the subscription that its join has made. 0 if the
     * subscription was there already. */
    uint64_t before;
    /* Whether it waits for the next producer or ring at the end of the stream; whether the end was
     * reported to it, and it has not asked since. */
    bool follows, ended;
    bool first; /* its join has made a subscription that begins with the ring */
    /* lost_before of the last frame that this peer had, if `counts_on`. Later losses count from
     * there. */
    bool counts_on;
    uint32_t lost_before;
    /* lost_before of the last frame that no bridge has brought. */
    uint32_t dropped;
    /* How many owed losses of its durable subscription the next frame reports to this member, and
     * which frame has reported them. */
    gr_word due, due_with;
    /* Whether each death of a producer is reported to it; which of head.reaps were, and from which
     * on they were the last time. */
    bool told_deaths;
    uint64_t reaps, told_from;
};

/* What the last claim, acquire or latest said. */
struct gr_delivery {
    /* The frame that the last successful one returned; how many sequences were skipped before it,
     * and how many frames were lost otherwise: before they came into this ring, or before this
     * peer came here from another ring. */
    uint64_t seq, lost, upstream;
    uint32_t index;
    /* Of the frame. It is kept here, because a claim may void the slot while a lossy reader holds
     * it. */
    uint32_t producer;
    /* Of the frame's record: who published it, and the fence value that says it is written. */
    uint64_t producer_id, value;
    bool redelivered;
    bool reported; /* `lost` was handed out with a frame, so the next call counts from 0 */
    uint32_t pendings; /* number of fences that the stream (or the host) has to wait for */
    struct gr_pending pending[GR_MAX_PEERS + 1];
    struct gr_culprit culprit; /* of the last one that was blocked */
};

/* What a peer's earlier sleeps say about when its next answer comes (wait.c). Each average comes
 * with its mean error. */
struct gr_rhythm {
    int64_t last_ns;                   /* when the last answer came that the peer had slept for */
    int64_t period_ns, period_off_ns;  /* time between two answers */
    int64_t late_ns, late_off_ns;      /* how late a timer wakes us; 0 if not known yet */
    int64_t saved_ns, counted_ns;      /* how long it may spin now, and when that was counted */
    unsigned strange;                  /* number of intervals in a row that did not fit */
};

/* The wait in progress, and what those before it have taught (wait.c). */
struct gr_patience {
    int64_t deadline_ns; /* of the call in progress */
    int64_t begun_ns;    /* when the wait in progress began */
    bool traced;         /* whether the tracer was told of it that there is now */
    /* How long a wait spins: what gr_set_spin said, or a value that adapts between GR_SPIN_MIN_NS
     * and GR_SPIN_MAX_NS. */
    int64_t spin_ns;
    bool spin_fixed;
    struct gr_rhythm rhythm;
};

struct gr_peer {
    struct gr_ring *ring;
    struct gr_identity self;
    struct gr_cursor cursor;
    struct gr_patience wait;
    struct gr_delivery last;
};

typedef enum gr_result (*gr_verb)(struct gr_peer *me);

/* Whether this peer is still LIVE: neither leaving nor taken for dead. The word is read before the
 * id. The number's next owner writes its id before its word says LIVE, so a LIVE of that owner
 * comes with its id (A9: read the other way round, another peer's LIVE was taken for one's
 * own). */
static inline bool is_mine(const struct gr_peer *me) {
    const struct gr_peer_entry *entry = &me->ring->peer[me->self.number];
    return state_of(gr_load_sc(&entry->word)) == GR_LIVE &&
           gr_load_relaxed(&entry->id) == me->self.id;
}

static inline gr_word *inside_of(const struct gr_peer *me) {
    return &me->ring->inside[me->self.number * (GR_LINE / 8)];
}

/* gr_begin and gr_end enclose whatever puts the peer's number into a word, takes it out, or writes
 * on the peer's behalf, because another thread may be leaving at that moment.
 *
 * [edge L, verb] The verb is counted first, and looks at its entry second (A12: the other way
 * round, the leaver sees nobody). Partner: gr_leave stores LEAVING, and then waits until no verb
 * is counted. So no verb is in progress when the number goes to another peer (A7). A stale count
 * or entry would let a verb leave a word under a FREE entry, which nobody clears.
 *
 * GR_OK: the peer is LIVE, and keeps its number until gr_end. Anything else: nothing was begun.
 */
static inline void gr_end(const struct gr_peer *me) {
    /* Carries all that the verb wrote; partner: wait_for_verbs. */
    atomic_fetch_sub_explicit(inside_of(me), 1, memory_order_release);
}
static inline enum gr_result gr_begin(const struct gr_peer *me) {
    if (gr_forked(me->ring)) return GR_FORKED;
    atomic_fetch_add_explicit(inside_of(me), 1, memory_order_seq_cst);
    if (is_mine(me)) return GR_OK;
    gr_end(me);
    return GR_REAPED;
}

/* Whether it may claim and acquire. [edge D] gr_stop stores `stopping`, then rings the bell, so a
 * sleeper that missed the store looks again. */
static inline bool may_take(const struct gr_peer *me) {
    return !gr_load_sc(&((struct gr_peer *)me)->self.stopping) && is_mine(me);
}
static inline enum gr_result gr_begin_taking(const struct gr_peer *me) {
    enum gr_result result = gr_begin(me);
    if (result != GR_OK || !gr_load_sc(&((struct gr_peer *)me)->self.stopping)) return result;
    gr_end(me);
    return GR_REAPED;
}

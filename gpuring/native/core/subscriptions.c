/* Subscriptions: where they begin, and how long they stay.
 *
 * A subscription goes with its last member, unless it is durable. A durable one stays, with what
 * its take words say, and producers wait for it as for a slow reader. If its patience is over, it
 * is given up. Then nobody waits for it any more, but it keeps its place, and the losses are reported
 * to the next member. Its start says GR_GIVEN_UP, which no claim ever reaches, and `resume` says
 * where it was.
 *
 * All of it is under LOCK. Each step leaves words from which the next holder of LOCK can go on.
 */
#define _GNU_SOURCE
#include "subscriptions.h"

#include <string.h>

#include "acquire.h"
#include "annex.h"
#include "bell.h"
#include "claim.h"
#include "lock.h"

static bool same_name(const struct gr_sub *sub, const char *name) {
    for (int k = 0; k < GR_NAME_WORDS; k++) {
        uint64_t word;
        memcpy(&word, name + 8 * k, 8);
        if (gr_load_relaxed((gr_word *)&sub->name[k]) != word) return false;
    }
    return true;
}

/* Returns the number of the subscription, or GR_NONE. *unused: a free number, or GR_NONE. */
uint32_t gr_find_subscription(const struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                              uint32_t *unused) {
    uint32_t found = GR_NONE;
    *unused = GR_NONE;
    for (uint32_t u = 0; u < ring->max_subscriptions; u++) {
        bool in_use = mode_of(gr_load_acquire(&ring->sub[u].word)) != GR_SUB_FREE;
        if (in_use && same_name(&ring->sub[u], name)) found = u;
        if (!in_use && *unused == GR_NONE) *unused = u;
    }
    return found;
}

/* Where a subscription begins that is announced now. */
static uint64_t first_of(struct gr_ring *ring, enum gr_start from, uint64_t start) {
    const uint64_t n = ring->slots, f = gr_frontier(ring), oldest = f + 1 > 2 * n ? f + 1 - n : n;
    if (from == GR_START_NEXT) return f;
    return from == GR_START_OLDEST || start < oldest ? oldest : start;
}

/* The subscription is announced twice. A claim that was past its gate at the first announcement may
 * have overwritten one frame, and only one, because claims are totally ordered. The frontier that
 * is read after the announcement tells which, and the second announcement moves the start behind it
 * (H5: a lossless subscription lost its first frame). Returns the start. */
static uint64_t announce(struct gr_ring *ring, uint32_t u, unsigned mode, unsigned policy,
                         uint64_t s) {
    struct gr_sub *sub = &ring->sub[u];
    const uint64_t n = ring->slots;
    /* [edge J, joiner] partner: gate and the second look of claim. If the claim's swap comes
     * before this store, the frontier below shows it; otherwise the claim sees the
     * subscription. */
    gr_store_sc(&sub->word, sub_word(s, policy, mode));
    GR_FAULT("join: announced");
    const uint64_t f = gr_frontier(ring);
    if (mode == GR_LOSSLESS && f + 1 > s + n) {
        s = f + 1 - n;
        gr_store_sc(&sub->word, sub_word(s, policy, mode));
    }
    GR_FAULT("join: announced again");
    return s;
}

/* What the ring before owes it is in `owed`, and that ring has yet to forget it. */
static void owe_earlier(struct gr_sub *sub, const struct gr_terms *terms) {
    const uint64_t settled = terms->earlier > 1 ? GR_SETTLED : 0;
    atomic_fetch_add_explicit(&sub->owed, terms->owed, memory_order_relaxed);
    atomic_fetch_or_explicit(&sub->owed, settled, memory_order_relaxed);
    gr_store_relaxed(&sub->earlier, terms->earlier);
}

/* A new subscription. Its first member's entry comes before it, unless it is durable: then it needs
 * no member (A5). Then `resume` says where it begins until it has begun: if this process is killed
 * between the two announcements, the next member counts what is gone (H18). */
void gr_begin_subscription(struct gr_ring *ring, uint32_t u, const char name[GR_NAME_WORDS * 8],
                 const struct gr_terms *terms) {
    struct gr_sub *sub = &ring->sub[u];
    const uint64_t now = (uint64_t)gr_now_ns(), s = first_of(ring, terms->from, terms->start);
    const bool durable = terms->policy & GR_DURABLE;
    /* A (s, DONE) of an earlier subscription with this number would hide frames (H11). */
    for (uint32_t i = 0; i < ring->slots; i++)
        gr_store_relaxed(&take_of(ring, i, u)->word, claim_word(0, GR_NONE, GR_DONE));
    GR_FAULT("join: cleared");
    /* Relaxed: the sc store of the subscription's word carries these. */
    gr_write_text(sub->name, name, GR_NAME_WORDS);
    gr_annex_clear_sub(sub);
    gr_store_relaxed(&sub->lost, 0);
    gr_store_relaxed(&sub->created_ns, now);
    gr_store_relaxed(&sub->patience_ns, terms->patience_ns);
    gr_store_relaxed(&sub->unread_ns, durable ? now : 0);
    gr_store_relaxed(&sub->resume, durable ? s : 0);
    gr_store_relaxed(&sub->owed, 0);
    gr_store_relaxed(&sub->dropped, gr_load_relaxed(&ring->head->dropped));
    owe_earlier(sub, terms);
    atomic_fetch_or_explicit(&ring->head->sub_mask[u / 64], bit_of(u), memory_order_seq_cst);
    GR_FAULT("join: masked");
    announce(ring, u, terms->mode, terms->policy, s);
    gr_store_release(&sub->resume, 0);
}

/* Whether a subscription that is there has these terms. Whether it is durable is not one of them: a
 * member may join it either way. */
bool gr_agrees(const struct gr_ring *ring, uint32_t u, const struct gr_terms *terms) {
    const uint64_t word = gr_load_acquire(&ring->sub[u].word);
    return mode_of(word) == terms->mode && !((policy_of(word) ^ terms->policy) & GR_DROP);
}

/* The mask bit is cleared after the word. A bit too many costs a claim one look; a bit too few
 * would hide a reader from it (M2). */
static void remove_subscription(struct gr_ring *ring, uint32_t u) {
    gr_store_sc(&ring->sub[u].word, sub_word(0, 0, GR_SUB_FREE));
    GR_FAULT("subscription removed");
    atomic_fetch_and_explicit(&ring->head->sub_mask[u / 64], ~bit_of(u), memory_order_seq_cst);
}

/* Nobody is a member any more. A reaper repeats this, so it keeps the first time. */
void gr_lose_last_member(struct gr_ring *ring, uint32_t u) {
    struct gr_sub *sub = &ring->sub[u];
    if (!(policy_of(gr_load_sc(&sub->word)) & GR_DURABLE)) remove_subscription(ring, u);
    else if (gr_load_relaxed(&sub->unread_ns) == 0)
        gr_store_relaxed(&sub->unread_ns, (uint64_t)gr_now_ns());
    GR_FAULT("subscription left");
}

/* ---- durable --------------------------------------------------------------------------------- */

/* Whether the subscription is done with s, as its take words say. While it has no member they do not
 * change, so they show the last lap before the member left. */
static bool had(const struct gr_ring *ring, uint32_t u, uint64_t s) {
    uint64_t t = gr_load_acquire(&take_of(ring, s % ring->slots, u)->word);
    return seq_of(t) == s && phase_of(t) == GR_DONE;
}

/* What `resume` says, unless a joiner was killed before it could clear it. */
static uint64_t resume_of(struct gr_sub *sub) {
    const uint64_t resume = gr_load_acquire(&sub->resume);
    return gr_load_acquire(&sub->owed) & GR_COUNTED ? 0 : resume;
}
static uint64_t owed_of(struct gr_sub *sub) { return gr_load_acquire(&sub->owed) & GR_OWED; }

/* Under LOCK. What was lost from `resume` on is owed. If this process is killed in between, the next
 * holder of LOCK goes on, and does not count it again (H16). */
static void end_counting(struct gr_sub *sub) {
    gr_store_release(&sub->resume, 0);
    GR_FAULT("owed: resume cleared");
    atomic_fetch_and_explicit(&sub->owed, ~GR_COUNTED, memory_order_release);
}

/* The first sequence that it is not done with, at most f. */
static uint64_t first_missing(const struct gr_ring *ring, uint32_t u, uint64_t f) {
    uint64_t word = gr_load_acquire(&ring->sub[u].word), s = start_of(word);
    const uint64_t resume = resume_of(&ring->sub[u]);
    if (resume && s >= resume) return resume; /* it was given up, and nobody has taken it up yet */
    if (mode_of(word) == GR_LOSSLESS && f > ring->slots && s < f - ring->slots)
        s = f - ring->slots; /* no claim has passed what it is not done with */
    if (mode_of(word) == GR_LOSSY) /* it has met all before its newest take */
        for (uint32_t i = 0; i < ring->slots; i++) {
            uint64_t t = gr_load_acquire(&take_of(ring, i, u)->word);
            if (phase_of(t) == GR_DONE && seq_of(t) + 1 > s) s = seq_of(t) + 1;
        }
    while (s < f && had(ring, u, s)) s++;
    return s < f ? s : f;
}

/* How many sequences from `from` to `to` it was not done with. Void ones count, because nobody
 * knows any more. */
static uint64_t missed(const struct gr_ring *ring, uint32_t u, uint64_t from, uint64_t to) {
    uint64_t n = 0;
    for (uint64_t s = from; s < to && s < from + ring->slots; s++) n += !had(ring, u, s);
    return to > from + ring->slots ? n + (to - from - ring->slots) : n;
}

/* How many published frames there are, or were, for the subscription, with which it is not done. A
 * frame that a living producer still writes counts. */
static uint64_t unread(struct gr_ring *ring, uint32_t u) {
    const uint64_t f = gr_frontier(ring), n = ring->slots;
    uint64_t s = first_missing(ring, u, f), lost = 0;
    if (f > n && s < f - n) lost = missed(ring, u, s, f - n), s = f - n;
    for (; s < f; s++) {
        const uint64_t w = gr_load_acquire(&ring->slot[s % n].word);
        const uint32_t p = owner_of(w);
        const bool known = phase_of(w) == GR_WRITING && p < ring->max_peers;
        const bool comes = known && gr_peer_alive(ring, p);
        lost += !had(ring, u, s) && seq_of(w) == s && (phase_of(w) == GR_READY || comes);
    }
    return lost;
}

/* `lost_before` of the last frame that it has had, if that is still there, else of the next one.
 * What was dropped before the subscription was made is none of its losses. */
static uint32_t dropped_at(const struct gr_ring *ring, uint32_t u, uint64_t s) {
    const uint64_t n = ring->slots;
    if (s <= n || seq_of(gr_load_acquire(&ring->slot[(s - 1) % n].word)) != s - 1) s++;
    const uint32_t last = gr_load_relaxed(&ring->slot[(s - 1) % n].lost_before);
    const uint64_t made = gr_load_relaxed(&ring->sub[u].dropped);
    const uint64_t now = gr_load_relaxed(&ring->head->dropped);
    /* How many since then. `made` and `last` may be 2^31 apart, and more. */
    return (int64_t)(now - made) < (int32_t)((uint32_t)now - last) ? (uint32_t)made : last;
}

/* ---- what is owed ---------------------------------------------------------------------------- */

/* Whether a member lives. One that is just leaving may still be done with a frame. */
static bool lives(struct gr_ring *ring, uint32_t u, uint32_t p) {
    const uint64_t word = gr_load_relaxed(&ring->peer[p].word);
    return state_of(word) != GR_FREE && role_of(word) == GR_CONSUMER && sub_of(word) == u &&
           gr_peer_alive(ring, p);
}

/* How many owed losses were reported to no other member. A report to a member that was killed does
 * not count. Its entry may be there still, but its byte is not locked. `owed` is read last: if a
 * member subtracts from it meanwhile, the result is too low rather than too high, and the rest is
 * reported to the next member (H20). */
static uint64_t untold(struct gr_ring *ring, uint32_t u) {
    uint64_t told = 0;
    if (!owed_of(&ring->sub[u])) return 0;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        const uint64_t n = gr_load_acquire(&ring->peer[p].untold);
        if (n && lives(ring, u, p)) told += n;
    }
    const uint64_t owed = owed_of(&ring->sub[u]);
    return owed > told ? owed - told : 0;
}

/* Under LOCK, so that nobody is just joining, and what somebody has settled here is in it, or is
 * refused because the ring was closed. */
enum gr_result gr_owed(struct gr_ring *ring, uint32_t u, uint64_t *owed) {
    enum gr_result result = gr_lock(ring, GR_PATIENCE_NS);
    if (result != GR_OK) return result;
    bool read = false;
    for (uint32_t p = 0; p < ring->max_peers; p++) read |= lives(ring, u, p);
    if (read) result = GR_BLOCKED;
    else *owed = owed_of(&ring->sub[u]) + unread(ring, u);
    gr_unlock(ring);
    return result;
}

/* The member's next frame reports the losses. Until the member is done with that frame, they stay
 * owed: if it is killed before, they are reported to the next member. */
static void tell(struct gr_peer *me) {
    const uint64_t n = untold(me->ring, me->self.u);
    if (!n) return;
    atomic_fetch_add_explicit(&me->cursor.due, n, memory_order_relaxed);
    gr_store_relaxed(&me->ring->peer[me->self.number].untold, gr_load_relaxed(&me->cursor.due));
    gr_count_lost(me, n);
    GR_FAULT("join: loss counted");
}

/* Call it between gr_begin and gr_end. The frame is not done yet: if this process is killed in
 * between, it comes again without the number, because its user has seen it and released it. */
void gr_pay(struct gr_peer *me) {
    gr_store_relaxed(&me->cursor.due_with, 0);
    gr_word *owed = &me->ring->sub[me->self.u].owed;
    uint64_t n = atomic_exchange_explicit(&me->cursor.due, 0, memory_order_relaxed);
    /* Another thread was faster, or is leaving: then the subscription may be another one's soon. */
    if (!n || !is_mine(me)) return;
    for (uint64_t was = gr_load_relaxed(owed), more = n; /* never below 0 */
         n = more < (was & GR_OWED) ? more : was & GR_OWED,
                  !atomic_compare_exchange_weak_explicit(owed, &was, was - n, memory_order_relaxed,
                                                         memory_order_relaxed);) {
    }
    GR_FAULT("owed: paid");
    gr_store_release(&me->ring->peer[me->self.number].untold, 0); /* carries `owed`; partner: untold */
}

/* Somebody joins a subscription that is there. Its entry is LIVE, so nobody gives it up any more.
 * Returns whether it was announced again.
 *
 * A lossless one that was not given up is left as it is: producers keep for it what they would not
 * keep for a new one, the oldest frame of a full ring. */
bool gr_take_up(struct gr_ring *ring, struct gr_peer *me) {
    const uint32_t u = me->self.u;
    struct gr_sub *sub = &ring->sub[u];
    const uint64_t word = gr_load_sc(&sub->word);
    bool again = false;
    if (gr_load_relaxed(&sub->owed) & GR_COUNTED) end_counting(sub);
    if (gr_load_relaxed(&sub->unread_ns)) {
        const uint64_t noted = gr_load_relaxed(&sub->resume);
        const uint64_t resume = first_missing(ring, u, gr_frontier(ring));
        me->cursor.dropped = dropped_at(ring, u, resume);
        again = (noted && start_of(word) >= noted) || mode_of(word) == GR_LOSSY;
        if (again) {
            gr_store_release(&sub->resume, resume);
            const uint64_t start = announce(ring, u, mode_of(word), policy_of(word),
                                            first_of(ring, GR_START_AT, resume));
            const uint64_t lost = start > resume ? missed(ring, u, resume, start) : 0;
            GR_FAULT("subscription taken up");
            atomic_fetch_add_explicit(&sub->owed, lost | GR_COUNTED, memory_order_release);
            GR_FAULT("owed: counted");
        }
        gr_store_relaxed(&sub->unread_ns, 0);
        end_counting(sub);
    }
    tell(me);
    return again;
}

static bool is_over(struct gr_ring *ring, uint32_t u) {
    struct gr_sub *sub = &ring->sub[u];
    uint64_t word = gr_load_sc(&sub->word), patience = gr_load_relaxed(&sub->patience_ns);
    uint64_t unread = gr_load_relaxed(&sub->unread_ns);
    return policy_of(word) & GR_DURABLE && start_of(word) != GR_GIVEN_UP && unread && patience &&
           (uint64_t)gr_now_ns() - unread >= patience;
}

/* Under LOCK. `resume` comes first: a start that says GR_GIVEN_UP needs it. */
static void give_up(struct gr_ring *ring, uint32_t u) {
    struct gr_sub *sub = &ring->sub[u];
    const uint64_t word = gr_load_sc(&sub->word);
    if (gr_load_relaxed(&sub->owed) & GR_COUNTED) end_counting(sub);
    gr_store_release(&sub->resume, first_missing(ring, u, gr_frontier(ring)));
    GR_FAULT("subscription: resume noted");
    gr_store_sc(&sub->word, sub_word(GR_GIVEN_UP, policy_of(word), mode_of(word)));
    GR_FAULT("subscription given up");
}

/* Outside of LOCK the look is a guess; under it, it is made again. */
void gr_give_up_late(struct gr_ring *ring) {
    bool any = false;
    gr_each_sub(u, ring) any |= is_over(ring, (uint32_t)u);
    if (!any || gr_lock(ring, 0) != GR_OK) return;
    gr_each_sub(u, ring)
        if (is_over(ring, (uint32_t)u) && !gr_has_other_member(ring, (uint32_t)u, GR_NONE))
            give_up(ring, (uint32_t)u);
    gr_unlock(ring);
    gr_ring_bell(ring); /* producers wait for it no more */
}

enum gr_result gr_subscribe(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                            const struct gr_terms *terms) {
    enum gr_result result = gr_lock(ring, GR_PATIENCE_NS);
    if (result != GR_OK) return result;
    uint32_t unused, u = gr_find_subscription(ring, name, &unused);
    struct gr_terms durable = *terms;
    durable.policy |= GR_DURABLE;
    if (gr_load_sc(&ring->head->closed)) result = GR_CLOSED;
    else if (u == GR_NONE && unused == GR_NONE) result = GR_FULL_SUBS;
    else if (u == GR_NONE) gr_begin_subscription(ring, unused, name, &durable);
    else if (!gr_agrees(ring, u, terms)) result = GR_MODE_MISMATCH;
    else {
        struct gr_sub *sub = &ring->sub[u];
        if (terms->patience_ns) gr_store_relaxed(&sub->patience_ns, terms->patience_ns);
        if (terms->owed || terms->earlier) owe_earlier(sub, terms);
        /* The words of an absent member's patience come before the word that makes them count. */
        gr_store_sc(&sub->word,
                    sub_word(start_of(gr_load_sc(&sub->word)), durable.policy, durable.mode));
    }
    gr_unlock(ring);
    return result;
}

enum gr_result gr_unsubscribe(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                              bool *found) {
    enum gr_result result = gr_lock(ring, GR_PATIENCE_NS);
    if (result != GR_OK) return result;
    uint32_t unused, u = gr_find_subscription(ring, name, &unused);
    *found = u != GR_NONE;
    if (*found) {
        const uint64_t word = gr_load_sc(&ring->sub[u].word);
        if (!gr_has_other_member(ring, u, GR_NONE)) remove_subscription(ring, u);
        else
            gr_store_sc(&ring->sub[u].word,
                        sub_word(start_of(word), policy_of(word) & GR_DROP, mode_of(word)));
    }
    gr_unlock(ring);
    gr_ring_bell(ring); /* producers may have waited for it */
    return GR_OK;
}

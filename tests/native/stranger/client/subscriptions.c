/* Subscriptions: where they begin, and how durable ones stay. All of it is done under LOCK. */
#include "ring.h"

#include <stdlib.h>
#include <string.h>

#define COUNTED (UINT64_C(1) << 63)
#define OWED ((UINT64_C(1) << 62) - 1)
#define GIVEN_UP ((UINT64_C(1) << 48) - 1)

static uint64_t due, due_with; /* what its user is to be told, and with which frame */

uint64_t frontier(void) {
    uint64_t f = head->claim_hint, q;
    while ((q = seq_of(slot[f % n].word)) >= f) f = q + 1;
    return f;
}
static uint64_t oldest(void) { return max(n, less(frontier() + 1, n)); }

static uint64_t announce(uint64_t v, uint64_t s, uint64_t policy, uint64_t mode) {
    sub[v].word = claim_word(s, policy, mode);
    uint64_t f = frontier();
    if (mode == LOSSLESS && f + 1 > s + n) {
        s = f + 1 - n;
        sub[v].word = claim_word(s, policy, mode);
    }
    return s;
}

uint64_t find_subscription(const char *text, uint64_t *unused) {
    uint64_t found = NOBODY, name[8] = {0};
    memcpy(name, text, strnlen(text, sizeof name));
    *unused = NOBODY;
    for (uint64_t v = subs; v-- > 0;) {
        bool same = phase_of(sub[v].word) != 0;
        if (!same) *unused = v;
        for (int k = 0; k < 8; k++) same &= sub[v].name[k] == name[k];
        if (same) found = v;
    }
    return found;
}

void begin_subscription(uint64_t v, const char *text, uint64_t policy, uint64_t mode,
                        const char *from, uint64_t patience_ns) {
    uint64_t name[8] = {0}, now = now_ns(CLOCK_MONOTONIC), s = oldest();
    memcpy(name, text, strnlen(text, sizeof name));
    if (strcmp(from, "next") == 0) s = frontier();
    else if (strcmp(from, "oldest") != 0) s = max(strtoull(from, NULL, 10), s);
    for (uint64_t i = 0; i < n; i++) take_of(i, v)->word = claim_word(0, NOBODY, DONE);
    for (int k = 0; k < 8; k++) sub[v].name[k] = name[k];
    for (int k = 0; k < 4; k++) sub[v].far[k] = 0;
    sub[v].created_ns = now;
    sub[v].lost = sub[v].owed = sub[v].earlier = 0;
    sub[v].dropped = head->dropped;
    sub[v].patience_ns = patience_ns;
    sub[v].unread_ns = policy & DURABLE ? now : 0;
    sub[v].resume = policy & DURABLE ? s : 0;
    set(head->sub_mask, v);
    announce(v, s, policy, mode);
    sub[v].resume = 0;
}

void lose_last_member(uint64_t v) {
    if (owner_of(sub[v].word) & DURABLE) {
        if (sub[v].unread_ns == 0) sub[v].unread_ns = now_ns(CLOCK_MONOTONIC);
        return;
    }
    sub[v].word = 0;
    clear(head->sub_mask, v);
}

/* ---- durable ones ---------------------------------------------------------------------------- */

static bool had(uint64_t v, uint64_t q) { return is(take_of(q % n, v)->word, q, DONE); }

static void end_counting(uint64_t v) {
    sub[v].resume = 0;
    atomic_fetch_and(&sub[v].owed, ~COUNTED);
}
/* Whether it was given up, or announced and not begun. */
static bool is_noted(uint64_t v) {
    return sub[v].resume != 0 && seq_of(sub[v].word) >= sub[v].resume;
}
static uint64_t where_it_was(uint64_t v) {
    uint64_t f = frontier(), r = seq_of(sub[v].word);
    if (is_noted(v)) return sub[v].resume;
    if (phase_of(sub[v].word) == LOSSLESS) r = max(r, less(f, n));
    for (uint64_t i = 0; i < n && phase_of(sub[v].word) == LOSSY; i++)
        if (phase_of(take_of(i, v)->word) == DONE) r = max(r, seq_of(take_of(i, v)->word) + 1);
    while (r < f && had(v, r)) r++;
    return r < f ? r : f;
}

bool take_up(uint64_t v) {
    uint64_t w = sub[v].word, missed = 0;
    if (sub[v].owed & COUNTED) end_counting(v);
    if (sub[v].unread_ns == 0) return false;
    const bool anew = phase_of(w) == LOSSY || is_noted(v);
    const uint64_t r = where_it_was(v);
    if (anew) {
        sub[v].resume = r;
        const uint64_t s = announce(v, max(r, oldest()), owner_of(w), phase_of(w));
        for (uint64_t q = r; q < s && q < r + n; q++) missed += !had(v, q);
        atomic_fetch_add(&sub[v].owed, (missed + less(s, r + n)) | COUNTED);
    }
    sub[v].unread_ns = 0;
    end_counting(v);
    return anew;
}

void give_up_late(void) {
    for (uint64_t v = 0; v < subs; v++) {
        const uint64_t w = sub[v].word, patience = sub[v].patience_ns, unread = sub[v].unread_ns;
        if (!has(head->sub_mask, v) || !(owner_of(w) & DURABLE) || seq_of(w) == GIVEN_UP) continue;
        if (!patience || !unread || now_ns(CLOCK_MONOTONIC) - unread < patience) continue;
        if (!try_lock()) continue;
        if (sub[v].word == w && sub[v].unread_ns == unread && !has_other_member(v, NOBODY)) {
            if (sub[v].owed & COUNTED) end_counting(v);
            sub[v].resume = where_it_was(v);
            sub[v].word = claim_word(GIVEN_UP, owner_of(w), phase_of(w));
        }
        unlock();
        ring_bell();
    }
}

void tell_what_is_owed(void) {
    uint64_t told = 0;
    for (uint64_t p = 0; p < peers; p++) {
        const uint64_t w = peer[p].word;
        const bool reads = role_of(w) == CONSUMER && sub_of(w) == u && state_of(w) != FREE;
        if (reads && p != me && is_locked((int64_t)p)) told += peer[p].untold;
    }
    due = less(sub[u].owed & OWED, told);
    peer[me].untold = due;
    peer[me].lost += due;
    sub[u].lost += due;
    lost += due;
}
void told_with(uint64_t s) {
    if (due && !due_with) due_with = s;
}
void tell_later(uint64_t s) {
    if (s == due_with) due_with = 0;
}
void pay(uint64_t s) {
    if (!due || s != due_with) return;
    uint64_t was, paid;
    do {
        was = sub[u].owed;
        paid = due < (was & OWED) ? due : was & OWED;
    } while (!cas(&sub[u].owed, was, was - paid));
    peer[me].untold = 0;
    due = due_with = 0;
}

void subscribe(const char *name, uint64_t mode, const char *from, uint64_t patience_ns) {
    uint64_t unused, v;
    take_lock();
    if (head->closed) fail("the ring was closed");
    v = find_subscription(name, &unused);
    if (v != NOBODY) {
        if (phase_of(sub[v].word) != mode) fail("the subscription is another one");
        sub[v].patience_ns = patience_ns;
        sub[v].word |= DURABLE << 8;
    } else if (unused == NOBODY) fail("there are too many subscriptions");
    else begin_subscription(unused, name, DURABLE, mode, from, patience_ns);
    unlock();
    ring_bell();
}

void unsubscribe(const char *name) {
    uint64_t unused, v;
    take_lock();
    if ((v = find_subscription(name, &unused)) == NOBODY) fail("there is no such subscription");
    sub[v].word &= ~((uint64_t)DURABLE << 8);
    if (!has_other_member(v, NOBODY)) lose_last_member(v);
    unlock();
    ring_bell();
}

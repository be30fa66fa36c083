/* The verbs on frames. */
#include "ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t taken, lost;
bool again;
volatile sig_atomic_t ending;

static bool any_held(uint64_t i) {
    for (uint64_t v = 0; v < subs; v++)
        if (has(head->sub_mask, v) && phase_of(take_of(i, v)->word) == HELD) return true;
    return false;
}

static bool is_open(uint64_t c, uint64_t w) {
    uint64_t i = c % n, j = 0;
    bool held = false;
    if (phase_of(w) == WRITING) return false;
    for (uint64_t v = 0; v < subs; v++) {
        if (!has(head->sub_mask, v)) continue;
        uint64_t of = sub[v].word, t = take_of(i, v)->word;
        held |= phase_of(t) == HELD;
        if (phase_of(of) != LOSSLESS || seq_of(of) > c - n) continue;
        if (phase_of(t) == HELD || (phase_of(w) == READY && !is(t, c - n, DONE))) return false;
    }
    while (held && j < n && any_held(j)) j++;
    return !held || j < n;
}

enum answer claim(void) {
    if (!is_mine()) return CLEARED;
    if (head->closed) return CLOSED;
    for (uint64_t c = head->claim_hint;;) {
        uint64_t i = c % n, w = slot[i].word, mine = claim_word(c, me, WRITING);
        if (seq_of(w) >= c) {
            cas(&head->claim_hint, c, c + 1);
            c = max(c + 1, head->claim_hint);
            continue;
        }
        if (seq_of(w) != c - n) fail("a slot is damaged");
        if (!is_open(c, w)) return BLOCKED;
        if (!cas(&slot[i].word, w, mine)) continue;
        cas(&head->claim_hint, c, c + 1);
        bool closed = head->closed;
        if (closed || any_held(i)) {
            cas(&slot[i].word, mine, claim_word(c, me, VOID));
            ring_bell();
            if (closed) return CLOSED;
            c = c + 1;
            continue;
        }
        slot[i].origin_seq = 0;
        slot[i].since_ns = now_ns(CLOCK_MONOTONIC_COARSE);
        for (uint64_t p = 0; p < peers; p++)
            while (has(head->peer_mask, p) && *fence_of(i, p) < *work_of(i, p)) nap();
        taken = c;
        return GOT;
    }
}

bool end_claim(uint64_t phase) {
    struct slot *it = &slot[taken % n];
    uint64_t mine = claim_word(taken, me, WRITING);
    if (!is_mine()) return false;
    if (it->word != mine) return false;
    if (phase == READY) {
        it->producer = my_id;
        it->fence = 0;
        it->time_ns = now_ns(CLOCK_MONOTONIC);
        it->ndim = 0;
        it->lost_before = (uint32_t)head->dropped;
    }
    if (!cas(&it->word, mine, claim_word(taken, me, phase))) return false;
    if (phase == READY) peer[me].frames += 1;
    ring_bell();
    return true;
}

static enum answer end_of_stream(void) {
    if (head->closed) return ENDED;
    uint64_t w = head->producers, left = w >> 16 & 0xffffff, in_all = max(head->producers_in_all, 1);
    if ((w >> 8 & 255) != 0 || left + (w >> 40) < in_all) return BLOCKED;
    return (w & 255) == DIED || left < in_all ? PEER_LOST : ENDED;
}

static void go_to(uint64_t s) {
    at = s;
    high = max(high, s);
}
static void count_lost(uint64_t from, uint64_t to) {
    uint64_t more = less(to, max(from, high));
    if (!lossy || !more) return;
    lost += more;
    peer[me].lost += more;
    sub[u].lost += more;
}
static void count_gone(uint64_t s, uint64_t w) {
    if (!is(w, s, TORN)) count_lost(s, s + 1);
    else if (s >= high) peer[me].torn += 1;
}

/* GOT: (s, me, HELD) is confirmed. BLOCKED: look again. ENDED: it was undone. */
static enum answer hold(uint64_t s, uint64_t t) {
    word *at_take = &take_of(s % n, u)->word;
    if (!cas(at_take, t, claim_word(s, me, HELD))) return BLOCKED;
    uint64_t w = slot[s % n].word;
    if (!is(w, s, READY)) return ENDED;
    again = t == claim_word(s, NOBODY, OPEN);
    taken = s;
    while (*fence_of(s % n, owner_of(w)) < slot[s % n].fence) nap();
    take_of(s % n, u)->since_ns = now_ns(CLOCK_MONOTONIC_COARSE);
    peer[me].frames += 1;
    told_with(s);
    return GOT;
}
static void undo(uint64_t s) {
    count_gone(s, slot[s % n].word);
    cas(&take_of(s % n, u)->word, claim_word(s, me, HELD), claim_word(s, me, DONE));
    ring_bell();
}

/* GOT: go back to the top. */
static enum answer last_look(enum answer over) {
    uint64_t oldest = UINT64_MAX;
    if (sub[u].redo != seen) return GOT;
    for (uint64_t j = 0; j < n; j++) {
        uint64_t t = take_of(j, u)->word, w = slot[j].word;
        if (phase_of(t) == HELD && owner_of(t) != me) return BLOCKED;
        if (phase_of(t) == OPEN && seq_of(t) >= seq_of(sub[u].word) && is(w, seq_of(t), READY) &&
            seq_of(t) < oldest)
            oldest = seq_of(t);
    }
    if (oldest == UINT64_MAX) return over;
    at = oldest;
    return GOT;
}

enum answer acquire(void) {
    if (!is_mine()) return CLEARED;
top:;
    uint64_t redo = sub[u].redo;
    if (redo != seen) {
        uint64_t oldest = max(seq_of(sub[u].word), less(head->claim_hint, n));
        seen = redo;
        if (at > oldest) at = oldest;
    }
    const enum answer over = end_of_stream();
    for (;;) {
        uint64_t s = at, i = s % n, t = take_of(i, u)->word;
        if (!is(t, s, OPEN) && (seq_of(t) >= s || (lossy && s < high))) {
            uint64_t next = max(s + 1, less(seq_of(t) + 1, n));
            if (seq_of(t) > s && t == claim_word(seq_of(t), me, OPEN)) count_lost(s, next);
            go_to(next);
            continue;
        }
        uint64_t w = slot[i].word;
        if (seq_of(w) < s) {
            if (over == BLOCKED) return BLOCKED;
            enum answer last = last_look(over);
            if (last != GOT) return last;
            goto top;
        }
        if (is(w, s, WRITING)) return BLOCKED;
        if (seq_of(w) > s) {
            if (take_of(i, u)->word != t) continue;
            uint64_t next = max(s + 1, less(seq_of(w) + 1, n));
            count_lost(s, next);
            go_to(next);
        } else if (phase_of(w) != READY) {
            count_gone(s, w);
            go_to(s + 1);
        } else {
            enum answer got = hold(s, t);
            if (got == BLOCKED) goto top;
            if (got == ENDED) undo(s);
            go_to(s + 1);
            if (got == GOT) return GOT;
            goto top;
        }
    }
}

enum answer latest(void) {
    if (!is_mine()) return CLEARED;
    for (;;) {
        enum answer over = end_of_stream();
        uint64_t best = 0;
        bool writing = false;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t w = slot[i].word;
            if (seq_of(w) >= at && phase_of(w) == READY) best = max(best, seq_of(w));
            writing |= seq_of(w) >= at && phase_of(w) == WRITING;
        }
        if (best == 0) return over != BLOCKED && !writing ? over : BLOCKED;
        uint64_t t = take_of(best % n, u)->word;
        if (!is(t, best, OPEN) && seq_of(t) >= best) {
            go_to(best + 1);
            continue;
        }
        enum answer got = hold(best, t);
        if (got == BLOCKED) continue;
        count_lost(at, best);
        for (uint64_t q = max(at, less(best + 1, n)); q < best; q++)
            cas(&take_of(q % n, u)->word, claim_word(q, me, OPEN), claim_word(q, me, DONE));
        if (got == ENDED) undo(best);
        go_to(best + 1);
        if (got == GOT) return GOT;
    }
}

bool end_hold(uint64_t phase) {
    if (!is_mine()) return false;
    if (phase == DONE) pay(taken);
    word *it = &take_of(taken % n, u)->word;
    if (!cas(it, claim_word(taken, me, HELD), claim_word(taken, me, phase))) return false;
    if (phase == OPEN) {
        tell_later(taken);
        if (at > taken) at = taken;
        sub[u].redo += 1;
    }
    ring_bell();
    return true;
}

enum answer wait_for(enum answer (*verb)(void)) {
    enum answer got = verb();
    while (got == BLOCKED && !ending) {
        uint64_t until = now_ns(CLOCK_MONOTONIC) + 50000000, now;
        head->waiters += 1;
        peer[me].waiting |= 1;
        for (;;) {
            uint32_t bell = head->bell;
            got = verb();
            now = now_ns(CLOCK_MONOTONIC);
            if (got != BLOCKED || ending || now >= until) break;
            struct timespec rest = {.tv_nsec = (long)(until - now)};
            syscall(SYS_futex, &head->bell, FUTEX_WAIT, bell, &rest, NULL, 0);
        }
        if (atomic_fetch_and(&peer[me].waiting, ~UINT64_C(1)) & 1) head->waiters -= 1;
        if (got == BLOCKED) clear_the_dead();
    }
    return got;
}

/* Membership: who is there, who was, joining and leaving. All of it is done under LOCK. */
#include "ring.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t me = NOBODY, my_id, u = NOBODY;
uint64_t at, seen, high;
bool lossy;

/* ---- who is there ---------------------------------------------------------------------------- */

static void count_producers(uint64_t gone, uint64_t how) {
    uint64_t live = 0, left = 0, died = 0, before = head->producers;
    bool counted = false;
    if (how) {
        uint64_t e = peer[gone].ends, id = peer[gone].id & ((UINT64_C(1) << 40) - 1);
        uint64_t have_left = e >> 12 & 4095, have_died = e & 4095;
        counted = e >> 24 == id;
        if (!counted) {
            have_left += how == LEFT && have_left < 4095;
            have_died += how == DIED && have_died < 4095;
            peer[gone].ends = id << 24 | have_left << 12 | have_died;
        }
    }
    for (uint64_t p = 0; p < peers; p++) {
        uint64_t w = peer[p].word, e = peer[p].ends;
        live += (p != gone || !how) && state_of(w) == LIVE && role_of(w) == PRODUCER;
        left += e >> 12 & 4095;
        died += e & 4095;
    }
    if (counted && before >> 40 == died && (before >> 16 & 0xffffff) == left) how = before & 255;
    head->producers = died << 40 | left << 16 | live << 8 | how;
}

bool has_other_member(uint64_t v, uint64_t p) {
    for (uint64_t q = 0; q < peers; q++) {
        uint64_t w = peer[q].word;
        if (q != p && state_of(w) == LIVE && role_of(w) == CONSUMER && sub_of(w) == v) return true;
    }
    return false;
}
static void uncount_waits(uint64_t p) {
    uint64_t waiting = atomic_exchange(&peer[p].waiting, 0);
    head->waiters -= (uint32_t)((waiting & 1) + (waiting >> 1 & 1));
}
static bool reopen(uint64_t i, uint64_t v, uint64_t t) {
    bool drop = owner_of(sub[v].word) & DROP;
    return cas(&take_of(i, v)->word, t, claim_word(seq_of(t), NOBODY, drop ? DONE : OPEN));
}

/* A dead peer on a GPU is left to those who can tell that its work is gone. */
static bool is_dead(uint64_t p) {
    if (head->memory == PINNED && (peer[p].gpu[0] | peer[p].gpu[1]) != 0) return false;
    return state_of(peer[p].word) != FREE && p != me && !is_locked((int64_t)p);
}

static void clear_peer(uint64_t p) {
    uint64_t w = peer[p].word, raised = 0, voided = 0, reopened = 0, torn = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t reached = *fence_of(i, p), promised = *work_of(i, p), s = slot[i].word;
        if (reached >= promised) continue;
        if (role_of(w) == PRODUCER) {
            struct tear *mark = &tear[i * peers + p];
            mark->id = peer[p].id | UINT64_C(1) << 63;
            mark->reached = reached;
            mark->id = peer[p].id;
            if (owner_of(s) == p && phase_of(s) == READY && slot[i].fence > reached)
                torn += cas(&slot[i].word, s, claim_word(seq_of(s), p, TORN));
        }
        *fence_of(i, p) = promised;
        raised++;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t s = slot[i].word;
        if (owner_of(s) == p && phase_of(s) == WRITING)
            voided += cas(&slot[i].word, s, claim_word(seq_of(s), NOBODY, VOID));
        for (uint64_t v = 0; v < subs; v++) {
            uint64_t t = take_of(i, v)->word;
            if (!has(head->sub_mask, v) && (role_of(w) == PRODUCER || sub_of(w) != v)) continue;
            if (owner_of(t) == p && phase_of(t) == HELD) reopened += reopen(i, v, t);
        }
    }
    if (role_of(w) == PRODUCER) count_producers(p, DIED);
    else if (sub_of(w) < subs) {
        sub[sub_of(w)].redo += 1;
        if (!has_other_member(sub_of(w), p)) lose_last_member(sub_of(w));
    }
    uncount_waits(p);
    uint64_t k = head->reaps;
    struct death *death = &head->deaths[k % 8];
    death->time_ns = now_ns(CLOCK_MONOTONIC);
    death->pid = peer[p].pid;
    death->peer = w;
    death->number = p;
    death->voided = voided;
    death->torn = torn;
    death->reopened = reopened;
    death->raised = raised;
    for (int j = 0; j < 8; j++) death->label[j] = peer[p].label[j];
    head->reaps = k + 1;
    ring_bell();
    peer[p].word = 0;
    clear(head->peer_mask, p);
}

void clear_the_dead(void) {
    for (uint64_t p = 0; p < peers; p++) {
        if (!is_dead(p) || !try_lock()) continue;
        if (is_dead(p)) clear_peer(p);
        unlock();
    }
    give_up_late();
}

static bool is_orphan(uint64_t w, uint64_t phase) {
    return phase_of(w) == phase && (owner_of(w) >= peers || peer[owner_of(w)].word == 0);
}
static void clear_orphans(void) {
    bool any = false;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t s = slot[i].word;
        if (is_orphan(s, WRITING))
            any = true, cas(&slot[i].word, s, claim_word(seq_of(s), NOBODY, VOID));
        for (uint64_t v = 0; v < subs; v++) {
            uint64_t t = take_of(i, v)->word, p = owner_of(t);
            if (!has(head->sub_mask, v) || !is_orphan(t, HELD)) continue;
            if (p < peers) peer[p].word = LEAVING << 16 | CONSUMER << 8 | v;
            reopen(i, v, t);
            sub[v].redo += 1;
            if (p < peers) peer[p].word = 0;
            any = true;
        }
    }
    if (any) ring_bell();
}

/* ---- join and leave -------------------------------------------------------------------------- */

static void enter(uint64_t role) {
    clear_orphans();
    for (uint64_t p = 0; p < peers; p++) {
        struct peer *entry = &peer[p];
        bool drained = entry->word == 0;
        for (uint64_t i = 0; i < n; i++) drained &= *work_of(i, p) == *fence_of(i, p);
        if (!drained || !lock_byte(lock_fd, F_WRLCK, (int64_t)p)) continue;
        me = p;
        set(head->peer_mask, p);
        my_id = head->joins + 1;
        head->joins = my_id;
        entry->id = my_id;
        entry->pid = (uint64_t)getpid();
        entry->start = start_of_process();
        entry->pidns = pid_namespace();
        entry->joined_ns = now_ns(CLOCK_MONOTONIC);
        entry->waiting = entry->frames = entry->lost = entry->torn = entry->asked_ns = 0;
        entry->gpu[0] = entry->gpu[1] = entry->dropped = entry->ended_at = 0;
        entry->untold = entry->unregistered = 0;
        for (int k = 0; k < 8; k++) entry->label[k] = 0;
        entry->word = LIVE << 16 | role << 8 | u;
        return;
    }
    fail("there is no room for another peer");
}

/* False: the ring was closed. */
bool join(uint64_t role, const char *subscription, const char *from) {
    uint64_t mode = lossy ? LOSSY : LOSSLESS, unused = NOBODY;
    clear_the_dead();
    take_lock();
    if (head->closed) {
        unlock();
        return false;
    }
    if (role == CONSUMER) {
        u = find_subscription(subscription, &unused);
        if (u != NOBODY && (phase_of(sub[u].word) != mode || owner_of(sub[u].word) & DROP))
            fail("the subscription is another one");
    }
    bool found = u != NOBODY, anew = false;
    if (role == CONSUMER && !found && (u = unused) == NOBODY) fail("there are too many subscriptions");
    enter(role);
    if (role == PRODUCER) count_producers(NOBODY, 0);
    else {
        if (!found) begin_subscription(u, subscription, 0, mode, from, 0);
        else if (owner_of(sub[u].word) & DURABLE) {
            anew = take_up(u);
            tell_what_is_owed();
        }
        seen = sub[u].redo;
        at = seq_of(sub[u].word);
        if (found && !anew) at = max(at, less(frontier(), n));
        high = at;
    }
    unlock();
    ring_bell();
    return true;
}

bool is_mine(void) { return state_of(peer[me].word) == LIVE && peer[me].id == my_id; }

/* The producer that is counted last decides how the stream ended. */
static void clear_dead_producers(void) {
    for (uint64_t p = 0; p < peers; p++)
        if (role_of(peer[p].word) == PRODUCER && is_dead(p)) clear_peer(p);
}

void leave(void) {
    uint64_t w = peer[me].word;
    take_lock();
    if (!is_mine()) {
        unlock();
        return;
    }
    if (role_of(w) == PRODUCER) {
        clear_dead_producers();
        count_producers(me, LEFT);
    } else sub[u].redo += 1;
    peer[me].word = LEAVING << 16 | (w & 0xffff);
    if (role_of(w) == CONSUMER && !has_other_member(u, me)) lose_last_member(u);
    unlock();
    ring_bell();
    take_lock();
    if (peer[me].id == my_id && peer[me].word != 0) {
        uncount_waits(me);
        peer[me].word = 0;
        clear(head->peer_mask, me);
        lock_byte(lock_fd, F_UNLCK, (int64_t)me);
    }
    unlock();
    me = NOBODY;
}


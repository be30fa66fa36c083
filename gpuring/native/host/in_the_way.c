/* Who is in the way of a verb, in words. */
#define _GNU_SOURCE
#include "in_the_way.h"

#include <stdio.h>
#include <string.h>

#include "../core/bell.h"
#include "../core/process.h"
#include "names.h"

static bool is_member(const struct gr_ring *ring, uint32_t p, uint32_t u) {
    const uint64_t word = gr_load_acquire(&ring->peer[p].word);
    return state_of(word) != GR_FREE && role_of(word) == GR_CONSUMER && sub_of(word) == u;
}

static bool is_producer(const struct gr_ring *ring, uint32_t p) {
    const uint64_t word = gr_load_acquire(&ring->peer[p].word);
    return state_of(word) != GR_FREE && role_of(word) == GR_PRODUCER;
}

/* Whether the end of the stream was reported to all members of a subscription, and none of them has
 * asked for a frame since or follows restarts. A producer that waits for the subscription may then
 * wait for ever. */
static bool waits_in_vain(const struct gr_ring *ring, uint32_t u) {
    bool any = false;
    for (uint32_t p = 0; u < ring->max_subscriptions && p < ring->max_peers; p++) {
        if (!is_member(ring, p, u)) continue;
        const uint64_t told = gr_load_acquire(&ring->peer[p].ended_at);
        if (!told) return false;
        for (uint32_t i = 0; i < ring->slots; i++)
            if (seq_of(gr_load_acquire(&take_of(ring, i, u)->word)) >= told) return false;
        any = true;
    }
    return any;
}

bool gh_claims_in_vain(const struct gr_peer *me, int64_t *since_ns) {
    const struct gr_culprit *culprit = &me->last.culprit;
    if (culprit->reason != GR_BY_SUBSCRIPTION || !waits_in_vain(me->ring, culprit->subscription))
        *since_ns = 0;
    else if (*since_ns == 0) *since_ns = gr_now_ns();
    return *since_ns != 0 && gr_now_ns() - *since_ns >= INT64_C(1000000000);
}

bool gh_is_of_this_process(const struct gr_ring *ring, uint32_t p) {
    if (p >= ring->max_peers) return false;
    const struct gr_who it = gr_who_is(&ring->peer[p]), me = gr_who_am_i(ring);
    return gr_same_who(&it, &me);
}

bool gh_is_stopped(const struct gr_ring *ring, uint32_t p) {
    if (p >= ring->max_peers || gh_is_of_this_process(ring, p)) return false;
    const struct gr_who it = gr_who_is(&ring->peer[p]);
    char state = 0;
    if (it.pidns != ring->pidns) return false;
    const uint64_t start = gr_process_start((pid_t)it.pid, &state);
    return start != 0 && start == it.start && (state == 'T' || state == 't');
}

static bool stopped(const struct gh_looks *looks, const struct gr_ring *ring, uint32_t p) {
    if (!looks) return gh_is_stopped(ring, p);
    return looks->is_stopped(looks->context, ring, p);
}

/* Text in the header, without its padding. */
static size_t length(const gr_word *words, size_t nbytes) {
    const char *text = (const char *)words;
    while (nbytes && !text[nbytes - 1]) nbytes--;
    return nbytes;
}

void gh_add_whose(struct gh_text *text, const gr_word *label, uint64_t pid) {
    char shown[GH_SHOWN];
    gh_printable(shown, sizeof shown, (const char *)label, length(label, 8 * GR_LABEL_WORDS));
    gh_add(text, "%s%spid %llu", shown, *shown ? ", " : "", (unsigned long long)pid);
}

/* "peer 3 (recorder.py, pid 4711, stopped)" */
static void add_peer(struct gh_text *text, const struct gr_ring *ring, uint32_t p, const char *noun,
                     bool is_stopped) {
    if (p >= ring->max_peers) {
        gh_add(text, "a peer");
        return;
    }
    const struct gr_peer_entry *entry = &ring->peer[p];
    gh_add(text, "%s %u%s (", noun, p, gh_is_of_this_process(ring, p) ? " of this process" : "");
    gh_add_whose(text, entry->label, gr_load_acquire(&entry->pid));
    gh_add(text, "%s%s)",
           gr_load_acquire(&entry->pidns) != ring->pidns ? " of another pid namespace" : "",
           is_stopped ? ", stopped" : "");
}

static void add_name(struct gh_text *text, const char *name, size_t nbytes) {
    char shown[GH_SHOWN];
    gh_add(text, "'%s'", gh_printable(shown, sizeof shown, name, nbytes));
}

/* ---- who is in the way ----------------------------------------------------------------------- */

static bool is_read_elsewhere(const struct gr_sub *sub) {
    return memcmp(sub->name, GH_ELSEWHERE, strlen(GH_ELSEWHERE)) == 0;
}

/* What holds up a subscription whose frames go to another host. Its member on this host is seldom to
 * blame. */
static void add_elsewhere(struct gh_text *text, const struct gr_sub *sub) {
    const size_t far = length(sub->far, 8 * GR_FAR_WORDS);
    if (!far || !is_read_elsewhere(sub)) return;
    gh_add(text, ". On that host subscription ");
    add_name(text, (const char *)sub->far, far);
    gh_add(text, " holds up its ring");
}

static uint32_t members_of(const struct gr_ring *ring, uint32_t u) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < ring->max_peers; p++) n += is_member(ring, p, u);
    return n;
}

static bool is_left(const struct gr_ring *ring, uint32_t u) {
    return !members_of(ring, u) && policy_of(gr_load_acquire(&ring->sub[u].word)) & GR_DURABLE;
}

/* Why perhaps no member of a subscription will ever take its next frame. */
static void add_of_the_end(struct gh_text *text, const struct gr_ring *ring, uint32_t u) {
    if (is_left(ring, u)) gh_add(text, ". It is durable, and nobody reads it");
    else if (waits_in_vain(ring, u))
        gh_add(text, ". Each of them has seen the end of the stream, and has asked for nothing "
                     "since");
}

/* The subscription's members, or "none". */
static void add_members(struct gh_text *text, const struct gr_ring *ring, uint32_t u,
                            const struct gh_looks *looks) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        if (!is_member(ring, p, u)) continue;
        if (n++) gh_add(text, ", ");
        add_peer(text, ring, p, "peer", stopped(looks, ring, p));
    }
    if (!n) gh_add(text, "none");
}

static void add_not_taken(struct gh_text *text, const struct gr_ring *ring,
                          const struct gr_culprit *culprit, const char *ago,
                          const struct gh_looks *looks) {
    const uint32_t u = culprit->subscription;
    gh_add(text, "has not taken sequence %llu, published%s ago (its members: ",
           (unsigned long long)culprit->seq, ago);
    if (u < ring->max_subscriptions) add_members(text, ring, u, looks);
    gh_add(text, ")");
    if (u >= ring->max_subscriptions) return;
    if (members_of(ring, u)) add_elsewhere(text, &ring->sub[u]);
    add_of_the_end(text, ring, u);
}

void gh_add_in_the_way(struct gh_text *text, const struct gr_ring *ring,
                       const struct gr_culprit *culprit, const struct gh_looks *looks) {
    const unsigned long long seq = culprit->seq;
    const uint32_t p = culprit->peer, u = culprit->subscription;
    const struct gr_sub *sub = u < ring->max_subscriptions ? &ring->sub[u] : NULL;
    char ago[48] = "";
    if (culprit->since_ns) {
        const int64_t since = gr_now_ns() - (int64_t)culprit->since_ns;
        snprintf(ago, sizeof ago, " %.3f s", since > 0 ? (double)since / 1e9 : 0.0);
    }
    if (culprit->reason == GR_BY_FENCE) gh_add(text, "the GPU work of ");
    if (culprit->reason == GR_BY_PRODUCER || culprit->reason == GR_BY_HOLDER ||
        culprit->reason == GR_BY_FENCE)
        add_peer(text, ring, p, "peer", p < ring->max_peers && stopped(looks, ring, p));
    if (culprit->reason == GR_BY_HOLDER) gh_add(text, " of ");
    if (sub && (culprit->reason == GR_BY_HOLDER || culprit->reason == GR_BY_SUBSCRIPTION)) {
        gh_add(text, "subscription ");
        add_name(text, (const char *)sub->name, length(sub->name, 8 * GR_NAME_WORDS));
    }
    switch (culprit->reason) {
    case GR_BY_PRODUCER:
        gh_add(text, *ago ? " has been writing sequence %llu for%s" : " is writing sequence %llu%s", seq,
               ago);
        break;
    case GR_BY_HOLDER:
        gh_add(text, *ago ? " has held sequence %llu for%s" : " holds sequence %llu%s", seq, ago);
        if (sub) add_elsewhere(text, sub);
        break;
    case GR_BY_SUBSCRIPTION:
        gh_add(text, " ");
        add_not_taken(text, ring, culprit, ago, looks);
        break;
    case GR_BY_FENCE:
        gh_add(text, " on the slot of sequence %llu is not finished", seq);
        break;
    case GR_NOBODY:
    case GR_BY_NO_FRAME:
        gh_add(text, "sequence %llu has not been published yet", seq);
        bool has_producer = false;
        for (uint32_t k = 0; k < ring->max_peers; k++) {
            if (!is_producer(ring, k)) continue;
            has_producer = true;
            if (!stopped(looks, ring, k)) continue;
            gh_add(text, ". ");
            add_peer(text, ring, k, "Producer", false);
            gh_add(text, " is stopped");
        }
        if (has_producer) break;
        gh_add(text, ". The ring has no producer");
        const uint64_t word = gr_load_acquire(&ring->head->producers);
        const uint64_t gone = left_of(word) + died_of(word), in_all = ring->producers_in_all;
        if (in_all > 1 && gone < in_all)
            gh_add(text, ": %llu of %llu have not come yet", (unsigned long long)(in_all - gone),
                   (unsigned long long)in_all);
    }
}

void gh_add_way_out(struct gh_text *text, const struct gr_ring *ring,
                    const struct gr_culprit *culprit) {
    const uint32_t u = culprit->subscription;
    if (u >= ring->max_subscriptions) return;
    const struct gr_sub *sub = &ring->sub[u];
    const bool untaken = culprit->reason == GR_BY_SUBSCRIPTION;
    if (!untaken && culprit->reason != GR_BY_HOLDER) return;
    if (untaken && is_left(ring, u))
        gh_add(text, ". Start %s, or end it with `gpuring unsubscribe`. `gpuring why` tells the "
                     "commands with their arguments",
               is_read_elsewhere(sub) ? "what its bridge lacks (`gpuring bridge export` here, or the "
                                        "importer on the other host)"
                                      : "its reader");
    else if (untaken && !members_of(ring, u)) return; /* it is about to go */
    else if (is_read_elsewhere(sub) && length(sub->far, 8 * GR_FAR_WORDS))
        gh_add(text, ". `gpuring inspect` there shows its members. Make them faster, or import "
                     "with the policy lossy or latest");
    else if (is_read_elsewhere(sub))
        gh_add(text, ". On that host `gpuring inspect` says who holds up its ring. If its importer "
                     "is silent, the log of the exporter says so: start it again there, with the "
                     "command that `gpuring why` tells here, or wait until the exporter's patience "
                     "is over");
    else if (untaken && waits_in_vain(ring, u))
        gh_add(text, ". If several producers make the stream, say how many when the ring is "
                     "created (`producers`). A consumer with `reattach` waits for the next one");
}

/* Why a verb was refused, and who is in the way of it, in words. */
#define _GNU_SOURCE
#include "diagnosis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../core/bell.h"
#include "../core/process.h"
#include "names.h"

/* ---- peers ----------------------------------------------------------------------------------- */

static bool is_member(const struct gr_ring *ring, uint32_t p, uint32_t u) {
    const uint64_t word = gr_load_acquire(&ring->peer[p].word);
    return state_of(word) != GR_FREE && role_of(word) == GR_CONSUMER && sub_of(word) == u;
}

static bool is_producer(const struct gr_ring *ring, uint32_t p) {
    const uint64_t word = gr_load_acquire(&ring->peer[p].word);
    return state_of(word) != GR_FREE && role_of(word) == GR_PRODUCER;
}

bool gh_waits_in_vain(const struct gr_ring *ring, uint32_t u) {
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
    if (culprit->reason != GR_BY_SUBSCRIPTION || !gh_waits_in_vain(me->ring, culprit->subscription))
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

enum { SHOWN = 8 * 64 }; /* what 64 bytes may become */

/* "recorder.py, pid 4711" */
static void add_whose(struct gh_text *text, const gr_word *label, uint64_t pid) {
    char shown[SHOWN];
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
    add_whose(text, entry->label, gr_load_acquire(&entry->pid));
    gh_add(text, "%s%s)",
           gr_load_acquire(&entry->pidns) != ring->pidns ? " of another pid namespace" : "",
           is_stopped ? ", stopped" : "");
}

static void add_name(struct gh_text *text, const char *name, size_t nbytes) {
    char shown[SHOWN];
    gh_add(text, "'%s'", gh_printable(shown, sizeof shown, name, nbytes));
}

/* ---- who is in the way ----------------------------------------------------------------------- */

static bool is_read_elsewhere(const struct gr_sub *sub) {
    return memcmp(sub->name, GH_ELSEWHERE, strlen(GH_ELSEWHERE)) == 0;
}

/* Who holds up a subscription whose frames go to another host. Its member here is seldom to
 * blame. */
static void add_elsewhere(struct gh_text *text, const struct gr_sub *sub) {
    const size_t far = length(sub->far, 8 * GR_FAR_WORDS);
    if (!is_read_elsewhere(sub)) return;
    if (far) {
        gh_add(text, ". On that host subscription ");
        add_name(text, (const char *)sub->far, far);
        gh_add(text, " holds up its ring: `gpuring inspect` there shows its members. Make them "
                     "faster, or import with --lossy or --latest");
        return;
    }
    gh_add(text, ". On that host `gpuring inspect` says who holds up its ring. If its importer is "
                 "silent, the log of the exporter says so: start `gpuring bridge import` again "
                 "there, or wait until the exporter's --patience is over");
}

/* Why nobody of a subscription may ever take its next frame. */
static void add_of_the_end(struct gh_text *text, const struct gr_ring *ring, uint32_t u,
                           uint32_t members) {
    if (!members && policy_of(gr_load_acquire(&ring->sub[u].word)) & GR_DURABLE)
        gh_add(text, ". It is durable, and nobody reads it. Start %s, or end it with "
                     "`gpuring unsubscribe`",
               is_read_elsewhere(&ring->sub[u]) ? "`gpuring bridge export` here again"
                                                : "its reader");
    else if (gh_waits_in_vain(ring, u))
        gh_add(text,
               ". Each of them was told that the stream is over, and has asked for nothing since. "
               "If several producers make the stream, say how many when the ring is created "
               "(`producers`). A consumer with `reattach` waits for the next one");
}

/* The subscription's members, or "none". Returns how many there are. */
static uint32_t add_members(struct gh_text *text, const struct gr_ring *ring, uint32_t u,
                            const struct gh_looks *looks) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        if (!is_member(ring, p, u)) continue;
        if (n++) gh_add(text, ", ");
        add_peer(text, ring, p, "peer", stopped(looks, ring, p));
    }
    if (!n) gh_add(text, "none");
    return n;
}

static void add_not_taken(struct gh_text *text, const struct gr_ring *ring,
                          const struct gr_culprit *culprit, const char *ago,
                          const struct gh_looks *looks) {
    const uint32_t u = culprit->subscription;
    gh_add(text, "has not taken sequence %llu, published%s ago (its members: ",
           (unsigned long long)culprit->seq, ago);
    const uint32_t members = u < ring->max_subscriptions ? add_members(text, ring, u, looks) : 0;
    gh_add(text, ")");
    if (u >= ring->max_subscriptions) return;
    if (members) add_elsewhere(text, &ring->sub[u]);
    add_of_the_end(text, ring, u, members);
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
        gh_add(text, " is writing sequence %llu%s%s", seq, *ago ? " for" : "", ago);
        break;
    case GR_BY_HOLDER:
        gh_add(text, " holds sequence %llu%s%s", seq, *ago ? " for" : "", ago);
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
        for (uint32_t k = 0; k < ring->max_peers; k++) {
            if (!is_producer(ring, k) || !stopped(looks, ring, k)) continue;
            gh_add(text, ". ");
            add_peer(text, ring, k, "Producer", false);
            gh_add(text, " is stopped");
        }
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

const char *gh_over(enum gr_result result) {
    if (result == GR_CLOSED) return "it was closed, so no frames can be claimed any more";
    if (result == GR_PEER_LOST)
        return "everything was read, no producer is left, and one of them died";
    return "everything was read and no producer is left";
}

/* Whether another file has the name of the ring. */
static bool is_replaced(const char *name, const struct gr_ring *ring) {
    char path[GH_PATH];
    struct stat now;
    gh_header_path(name, path);
    return lstat(path, &now) == 0 && now.st_ino != ring->lock_ino;
}

/* What a program can do at the end of a stream to go on. */
static void add_how_to_follow(struct gh_text *text, const char *name, const struct gr_ring *ring) {
    if (is_replaced(name, ring))
        gh_add(text, ". Another ring has that name now. Attach again to go on there, or join with "
                     "`reattach`, which does so by itself");
    else if (gr_load_acquire(&ring->head->closed))
        gh_add(text,
               ". Who attaches with a timeout waits for the next ring of that name, and who has "
               "joined with `reattach` goes on there by itself");
    else
        gh_add(text, ". A new producer starts the stream again. A consumer that has joined with "
                     "`reattach` waits for one, or for the next ring of that name");
}

/* Of whose death a consumer is told. Only the last deaths of a ring are remembered. */
static void add_dead_producers(struct gh_text *text, const struct gr_peer *peer) {
    const struct gr_ring *ring = peer->ring;
    const uint64_t reaps = gr_load_acquire(&ring->head->reaps);
    uint64_t k = reaps > GR_DEATHS ? reaps - GR_DEATHS : 0;
    bool any = false;
    for (k = k < peer->cursor.told_from ? peer->cursor.told_from : k; k < reaps; k++) {
        const struct gr_death *death = &ring->head->deaths[k % GR_DEATHS];
        const uint64_t word = gr_load_acquire(&death->peer);
        if (role_of(word) != GR_PRODUCER || state_of(word) == GR_LEAVING) continue;
        gh_add(text, "%sproducer %llu (", any ? " and " : "",
               (unsigned long long)gr_load_acquire(&death->number));
        add_whose(text, death->label, gr_load_acquire(&death->pid));
        gh_add(text, ")");
        any = true;
    }
    if (!any) gh_add(text, "a producer");
}

const char *gh_wanted(enum gh_verb verb) {
    return verb == GH_CLAIM ? "free slot" : verb == GH_ACQUIRE ? "frame" : "new frame";
}

static gpuring_status blocked_verb(struct gh_text *text, const struct gr_peer *peer,
                                   enum gh_verb verb, double timeout_s,
                                   const struct gh_looks *looks) {
    gh_add(text, "no %s", gh_wanted(verb));
    if (timeout_s > 0) gh_add(text, " within %g s", timeout_s);
    else if (timeout_s == 0) gh_add(text, " at once");
    gh_add(text, ": ");
    gh_add_in_the_way(text, peer->ring, &peer->last.culprit, looks);
    return verb == GH_CLAIM ? GPURING_FULL : GPURING_TIMEOUT;
}

gpuring_status gh_add_refused(struct gh_text *text, const char *name, const struct gr_peer *peer,
                              enum gr_result result, enum gh_verb verb, double timeout_s,
                              const struct gh_looks *looks) {
    gpuring_status status = GPURING_OK;
    if (result == GR_CLOSED) status = GPURING_CLOSED;
    else if (result == GR_ENDED) status = GPURING_END_OF_STREAM;
    else if (result == GR_PEER_LOST) status = GPURING_PEER_LOST;
    else if (result != GR_BLOCKED && result != GR_PRODUCER_DIED && result != GR_REAPED)
        return gh_add_unusable(text, name, result);
    gh_add(text, "ring '%s': ", name);
    if (result == GR_BLOCKED) return blocked_verb(text, peer, verb, timeout_s, looks);
    if (result == GR_PRODUCER_DIED) {
        add_dead_producers(text, peer);
        gh_add(text, " died, and the stream goes on with the others. What it had published is "
                     "still read");
        return GPURING_PRODUCER_DIED;
    }
    if (result == GR_REAPED) {
        gh_add(text, "this peer was taken for dead and its claims were cleared, or it was closed. "
                     "Join again");
        return GPURING_PEER_LOST;
    }
    gh_add(text, "%s", gh_over(result));
    add_how_to_follow(text, name, peer->ring);
    return status;
}

gpuring_status gh_add_resting(struct gh_text *text, const char *name, const struct gr_ring *ring,
                              enum gr_result result, enum gh_verb verb, double timeout_s) {
    gh_add(text, "ring '%s': no %s ", name, gh_wanted(verb));
    if (timeout_s > 0) gh_add(text, "within %g s", timeout_s);
    else gh_add(text, "at once");
    gh_add(text, ": %s%s. Call again to go on waiting", gh_over(result),
           gr_load_acquire(&ring->head->closed) ? " and no other ring has its name yet" : "");
    return verb == GH_CLAIM ? GPURING_FULL : GPURING_TIMEOUT;
}

gpuring_status gh_add_unusable(struct gh_text *text, const char *name, enum gr_result result) {
    switch ((int)result) {
    case GR_FORKED:
        gh_add(text,
               "ring '%s': this handle was made before fork() and belongs to the parent. Attach in "
               "the child, or start a new program (in Python the 'spawn' method); on a GPU ring only "
               "that works, since CUDA cannot be used after fork()",
               name);
        return GPURING_FORKED;
    case GR_LOCK_TIMEOUT:
        gh_add(text,
               "ring '%s': another process has held the membership lock for 5 s. Is one of its "
               "processes stopped (SIGSTOP, a debugger)? `gpuring inspect` lists them",
               name);
        return GPURING_TIMEOUT;
    case GR_CLOSED:
        gh_add(text,
               "ring '%s' was closed by its creator, or because another ring took its name: nobody "
               "can join it any more. Give this handle up and attach again: with a timeout that waits "
               "for the ring that has the name next",
               name);
        return GPURING_CLOSED;
    case GR_DAMAGED:
        gh_add(text, "ring '%s': its header holds what no gpuring writes", name);
        return GPURING_INCOMPATIBLE;
    default: gh_add(text, "ring '%s': unexpected result %d", name, -(int)result);
    }
    return GPURING_FAILED;
}

gpuring_status gh_add_cannot_join(struct gh_text *text, const char *name,
                                  const struct gr_ring *ring, enum gr_result result,
                                  const char subscription[64]) {
    char shown[SHOWN];
    switch ((int)result) {
    case GR_FULL_PEERS:
        gh_add(text,
               "ring '%s': all %u entries of its peer table are taken by living peers (`gpuring "
               "inspect` lists them); create it with a larger `max_peers` (at most %d)",
               name, ring->max_peers, GR_MAX_PEERS);
        return GPURING_TOO_MANY_PEERS;
    case GR_FULL_SUBS:
        gh_add(text,
               "ring '%s': all %u subscriptions are in use; create it with a larger "
               "`max_subscriptions` (at most %d)",
               name, ring->max_subscriptions, GR_MAX_SUBSCRIPTIONS);
        return GPURING_TOO_MANY_PEERS;
    case GR_MODE_MISMATCH:
        gh_printable(shown, sizeof shown, subscription, strnlen(subscription, 64));
        gh_add(text,
               "ring '%s': subscription '%s' exists, and differs in whether it is lossless or "
               "redelivers; members of one subscription must agree",
               name, shown);
        return GPURING_INVALID;
    default: return gh_add_unusable(text, name, result);
    }
}

/* ---- torn frames ----------------------------------------------------------------------------- */

static int by_size(const void *one, const void *other) {
    const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* With a comma behind each three digits. */
static void add_count(struct gh_text *text, size_t n) {
    if (n >= 1000) {
        add_count(text, n / 1000);
        gh_add(text, ",%03zu", n % 1000);
    } else gh_add(text, "%zu", n);
}

/* "sequence 5", "sequences 5, 6, 9", "sequences 6–1021, 1,016 of them". Of many ranges it names the
 * first. Returns whether it ends with how many there are. */
static bool add_spans(struct gh_text *text, const uint64_t *seqs, size_t n) {
    enum { MAX_RANGES = 5 };
    size_t k = 0, ranges = 0;
    gh_add(text, n == 1 ? "sequence " : "sequences ");
    while (k < n && ranges < MAX_RANGES) {
        const uint64_t first = seqs[k];
        while (k + 1 < n && seqs[k + 1] <= seqs[k] + 1) k++;
        if (ranges++) gh_add(text, ", ");
        gh_add(text, "%llu", (unsigned long long)first);
        if (seqs[k] > first) gh_add(text, "\xe2\x80\x93%llu", (unsigned long long)seqs[k]);
        k++;
    }
    if (k < n) {
        gh_add(text, " and ");
        add_count(text, n - k);
        gh_add(text, " more");
    }
    if (ranges == n) return false;
    gh_add(text, ", ");
    add_count(text, n);
    gh_add(text, " of them");
    return true;
}

void gh_add_torn(struct gh_text *text, const char *name, uint64_t *seqs, size_t n, bool released) {
    const char *it = n == 1 ? "it" : "them";
    qsort(seqs, n, sizeof *seqs, by_size);
    gh_add(text, "ring '%s': ", name);
    const bool counted = add_spans(text, seqs, n);
    if (released) gh_add(text, ", which this consumer has released,");
    else if (counted) gh_add(text, ",");
    gh_add(text,
           " %s torn: the producer died before the GPU had written %s. Discard what was computed "
           "from %s%s",
           n == 1 ? "is" : "are", it, it, released ? "; the consumer can go on" : "");
}

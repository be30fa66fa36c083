/* Why a verb was refused, in words. */
#define _GNU_SOURCE
#include "diagnosis.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../core/claim.h"
#include "names.h"

/* ---- refusals -------------------------------------------------------------------------------- */

/* What has come to its end by this result. */
static const char *over(enum gr_result result) {
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

static bool is_created_here(const struct gr_ring *ring) {
    const struct gr_head *head = ring->head;
    return head->creator_pid == ring->pid && head->creator_start == ring->start &&
           head->creator_pidns == ring->pidns;
}

/* What a program can do at the end of a stream to go on. */
static void add_how_to_follow(struct gh_text *text, const char *name, const struct gr_ring *ring,
                              enum gh_verb verb) {
    if (is_replaced(name, ring) && verb == GH_CLAIM && is_created_here(ring))
        gh_add(text, ". Another ring has that name now. This process created the ring before it, "
                     "and a creator's own producer does not follow. Create the ring again, or "
                     "attach to the new one");
    else if (is_replaced(name, ring))
        gh_add(text, ". Another ring has that name now. Attach again to go on there, or join with "
                     "`reattach`, which does so by itself");
    else if (gr_load_acquire(&ring->head->closed))
        gh_add(text,
               ". To go on in the next ring of that name, attach with a timeout, which waits for "
               "it, or join with `reattach`, which does so by itself");
    else
        gh_add(text, ". A new producer starts the stream again. A consumer that has joined with "
                     "`reattach` waits for one, or for the next ring of that name");
}

/* Adds the producer of the k-th death. Returns false if it was no producer that died. */
static bool add_dead_producer(struct gh_text *text, const struct gr_ring *ring, uint64_t k,
                              const char *before) {
    const struct gr_death *death = &ring->head->deaths[k % GR_DEATHS];
    const uint64_t word = gr_load_acquire(&death->peer);
    if (role_of(word) != GR_PRODUCER || state_of(word) == GR_LEAVING) return false;
    gh_add(text, "%sproducer %llu (", before, (unsigned long long)gr_load_acquire(&death->number));
    gh_add_whose(text, death->label, gr_load_acquire(&death->pid));
    gh_add(text, ")");
    return true;
}

/* The producers whose deaths are reported to a consumer. A ring remembers only its last deaths. */
static void add_dead_producers(struct gh_text *text, const struct gr_peer *peer) {
    const uint64_t reaps = gr_load_acquire(&peer->ring->head->reaps);
    uint64_t k = reaps > GR_DEATHS ? reaps - GR_DEATHS : 0;
    bool any = false;
    for (k = k < peer->cursor.told_from ? peer->cursor.told_from : k; k < reaps; k++)
        any |= add_dead_producer(text, peer->ring, k, any ? " and " : "");
    if (!any) gh_add(text, "a producer");
}

/* The producer that died last, if the ring remembers it. */
static void add_last_dead_producer(struct gh_text *text, const struct gr_ring *ring) {
    const uint64_t reaps = gr_load_acquire(&ring->head->reaps);
    for (uint64_t k = reaps; k > 0 && reaps - k < GR_DEATHS; k--)
        if (add_dead_producer(text, ring, k - 1, ": ")) return;
}

static const char *wanted(enum gh_verb verb) {
    return verb == GH_CLAIM ? "free slot" : verb == GH_ACQUIRE ? "frame" : "new frame";
}

static gpuring_status blocked_verb(struct gh_text *text, const struct gr_peer *peer,
                                   enum gh_verb verb, double timeout_s,
                                   const struct gh_looks *looks) {
    gh_add(text, "no %s", wanted(verb));
    if (timeout_s > 0) gh_add(text, " within %g s", timeout_s);
    else if (timeout_s == 0) gh_add(text, " at once");
    gh_add(text, ": ");
    const struct gr_culprit *culprit = &peer->last.culprit;
    struct gr_culprit of_claim = {0};
    uint64_t next;
    gh_add_in_the_way(text, peer->ring, culprit, looks);
    if (culprit->reason == GR_BY_NO_FRAME &&
        gr_look_to_claim(peer, &next, &of_claim) == GR_BLOCKED) {
        culprit = &of_claim;
        gh_add(text, ". The ring is full: ");
        gh_add_in_the_way(text, peer->ring, culprit, looks);
    }
    gh_add_way_out(text, peer->ring, culprit);
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
    gh_add(text, "%s", over(result));
    if (result == GR_PEER_LOST) add_last_dead_producer(text, peer->ring);
    add_how_to_follow(text, name, peer->ring, verb);
    return status;
}

gpuring_status gh_add_resting(struct gh_text *text, const char *name, const struct gr_ring *ring,
                              enum gr_result result, enum gh_verb verb, double timeout_s) {
    gh_add(text, "ring '%s': no %s ", name, wanted(verb));
    if (timeout_s > 0) gh_add(text, "within %g s", timeout_s);
    else gh_add(text, "at once");
    gh_add(text, ": %s%s. Call again to go on waiting", over(result),
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
               "ring '%s': another process has held the membership lock for 5 s. If it is stopped "
               "(SIGSTOP, a debugger), `gpuring why` names it",
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
        gh_add(text, "ring '%s': its header is damaged: it holds values that gpuring never writes", name);
        return GPURING_INCOMPATIBLE;
    default: gh_add(text, "ring '%s': unexpected result %d", name, -(int)result);
    }
    return GPURING_FAILED;
}

gpuring_status gh_add_cannot_join(struct gh_text *text, const char *name,
                                  const struct gr_ring *ring, enum gr_result result,
                                  const char subscription[64]) {
    char shown[GH_SHOWN];
    switch ((int)result) {
    case GR_FULL_PEERS:
        gh_add(text,
               "ring '%s': all %u entries of its peer table are taken by living peers (`gpuring "
               "inspect` lists them); create it with a larger `max_peers` (at most %d)",
               name, ring->max_peers, GR_MAX_PEERS);
        return GPURING_TOO_MANY_PEERS;
    case GR_FULL_SUBS:
        gh_add(text, "ring '%s': ", name);
        if (ring->max_subscriptions == 1) gh_add(text, "its only subscription is in use");
        else gh_add(text, "all %u subscriptions are in use", ring->max_subscriptions);
        gh_add(text, "; create it with a larger `max_subscriptions` (at most %d)",
               GR_MAX_SUBSCRIPTIONS);
        if (ring->max_subscriptions == 1)
            gh_add(text, ", unless it is a service, which only its engines can read");
        return GPURING_TOO_MANY_PEERS;
    case GR_MODE_MISMATCH:
        gh_printable(shown, sizeof shown, subscription, strnlen(subscription, 64));
        gh_add(text,
               "ring '%s': subscription '%s' exists with another `lossless` or `redeliver` (in C "
               "`lossy` or `drop`); all members of a subscription must agree",
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

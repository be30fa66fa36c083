/* A process's handle of a ring: where the header's tables are mapped, and what the process keeps.
 *
 * This folder is the process side of a ring: no Python and no CUDA. Each .c file has a header of
 * its own, which says what may be called there. No file needs one that stands below it in this
 * list:
 *
 *   atomics.h            atomic words, their memory orders, fault points
 *   words.h, layout.h    what the bytes of the header mean
 *   ring.h               this: the handle
 *   process              who a process is
 *   thread               threads of the library, and the pipes that wake them
 *   exchange_socket      where the processes of a ring meet
 *   handles              all handles of the process; what other threads close; what a fork does
 *   peer.h               the handle of a peer; what encloses each of its verbs
 *   bell                 clock and doorbell
 *   lock                 LOCK, the bytes that say who lives, and what is counted under LOCK
 *   header               creates, attaches, copies and validates a header
 *   trace                writes what a peer does for a tracer of the ring, and reads it there
 *   annex                what services and bridges keep in the header
 *   transition.h         what all frame verbs do
 *   claim                the frontier, promise, claim, publish, abandon
 *   walk.h               a consumer's way to its next frame, or to the end
 *   acquire              acquire, latest; would a verb block
 *   subscriptions        where they begin, and how long they stay; under LOCK
 *   release              release, give back
 *   tear                 which frames are torn
 *   earlier              what earlier rings of the name still owe them; under LOCK
 *   reap                 clears what dead peers, and peers that leave, still had; under LOCK
 *   members              join, leave, close; under LOCK
 *   pidfds               the other processes, as descriptors that tell when they exit
 *   exchange_message     what processes say to each other
 *   exchange_talk        who says it: connections, and the thread that hears them
 *   watchdog             a thread that clears dead peers
 *   exchange_offer       gives the slots' descriptor to others
 *   exchange_fetch       gets it from others
 *   wait                 spins, then sleeps, at one ring or at several
 *   notify               a thread that turns doorbells into file descriptors, for event loops
 *   streamed             a copy that goes past the caches
 *
 * ring.h includes atomics.h, words.h and layout.h, and peer.h includes ring.h. A file includes all
 * else that it uses, so the includes show which file needs which; tests/native/test_core_layers.py
 * checks the object files.
 *
 * claim, acquire and latest of a gr_peer belong to one thread at a time; a slot is ended by the
 * thread that has it. gr_leave may come from another thread at any time: it waits for the verbs in
 * progress. After a join nothing here allocates, except a notifier.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "atomics.h"
#include "layout.h"
#include "words.h"

enum gr_result {
    GR_OK = 0,
    GR_BLOCKED,       /* not now; gr_peer.last.culprit says who is in the way */
    GR_CLOSED,        /* the ring was closed */
    GR_ENDED,         /* everything was read, and the last producer left or the ring was closed */
    GR_PEER_LOST,     /* everything was read, and the last producer died */
    GR_REAPED,        /* this peer is not LIVE any more (reaped or leaving); nothing was changed */
    GR_FORKED,        /* this handle belongs to the parent process */
    GR_DAMAGED,       /* the header holds what no build of this version writes */
    GR_SIGNAL,        /* a wait returned so that signals can be handled; call again */
    GR_FULL_PEERS,    /* no free entry in the peer table */
    GR_FULL_SUBS,     /* no free entry in the subscription table */
    GR_MODE_MISMATCH, /* the subscription exists with the other mode */
    GR_LOCK_TIMEOUT,  /* another process, probably a stopped one, has held LOCK for seconds */
    GR_SYSTEM,        /* errno says why */
    GR_DEVICE,        /* the GPU's driver refused; gd_trouble (device/device.h) says what */
    GR_PRODUCER_DIED, /* and the stream goes on; only for a consumer with `deaths` */
    GR_TORN_BEHIND,   /* frames that this consumer has released have turned out torn */
};

struct gr_ring {
    struct gr_head *head;
    struct gr_sub *sub;
    struct gr_peer_entry *peer;
    struct gr_slot *slot;
    struct gr_take *take;
    struct gr_tear *tear;
    gr_word *work, *fence;
    uint8_t *event, *meta, *spec;
    /* Checked copies of the header's. */
    uint32_t slots, max_peers, max_subscriptions, producers_in_all;
    /* The bits of the shared masks that have an entry, and how many of their words have any. */
    uint64_t sub_bits[GR_MASK_WORDS], peer_bits[GR_MASK_WORDS];
    uint32_t sub_words, peer_words;
    struct gr_layout layout;
    struct gr_config config;

    /* The handle's own open file description of the header, never mapped, close-on-exec. */
    int lock_fd;
    uint64_t lock_dev, lock_ino; /* of the header's file */
    /* LOCK alone does not exclude the threads of one process, because they share lock_fd. */
    pthread_mutex_t mutex;
    int64_t join_patience_ns; /* how long a join waits for LOCK */
    gr_word mine[GR_MAX_PEERS]; /* by number: id of the peer of this handle, or 0; under LOCK */
    /* [number * 8]: how many verbs of that peer are in progress, in all threads (peer.h). */
    gr_word inside[GR_MAX_PEERS * (GR_LINE / 8)];
    uint64_t pid, start, pidns;
    uint64_t gpu[2]; /* UUID of the GPU on which this process has the slots, else 0 */
    uint64_t unregistered; /* what its peers say in their entries */
    unsigned generation;   /* of the process; in a forked child the handle is void */

    /* The table of events, if a verb of this handle has ever been traced. It stays mapped. Any
     * thread may set it. */
    _Atomic(struct gr_trace_table *) events;
    /* By number: whether its events have memory (enum room of trace.c). */
    gr_word32 room[GR_MAX_PEERS];

    /* The descriptor of the slots, if this process has offered it, and the socket at which others
     * get it; -1 if not. Written under gr_lock_handles. Any thread may read the first one. */
    _Atomic int slots_fd;
    int listen_fd;
    uint64_t listen_ino; /* of that socket */

    /* Written under gr_lock_handles. Any thread may read the first two. From joins_seen on, all
     * but the list belongs to the watchdog. */
    _Atomic bool watched;
    gr_word joins_seen; /* head.joins at the last look */
    struct gr_ring *next, *prev; /* all handles of the process */
    bool unwatchable; /* it has a peer that must be looked at every tick */
    /* By number: the id of a peer that nobody has any more, and that has not left yet because
     * somebody else had LOCK. 0: none. Writers: gr_leave, gr_drop_all and gr_leave_late, in any
     * thread. */
    gr_word unleft[GR_MAX_PEERS];
    /* By number: the id of a peer of another pid namespace whose process has exited, as its pidfd
     * has said. Writer: the watchdog. */
    gr_word exited[GR_MAX_PEERS];
};

static inline struct gr_take *take_of(const struct gr_ring *ring, uint64_t i, uint64_t u) {
    return &ring->take[i * ring->max_subscriptions + u];
}
static inline struct gr_tear *tear_of(const struct gr_ring *ring, uint64_t i, uint64_t p) {
    return &ring->tear[i * ring->max_peers + p];
}
static inline gr_word *work_of(const struct gr_ring *ring, uint64_t i, uint64_t p) {
    return &ring->work[i * ring->max_peers + p];
}
static inline gr_word *fence_of(const struct gr_ring *ring, uint64_t i, uint64_t p) {
    return &ring->fence[i * ring->max_peers + p];
}

/* The words of the header's masks. A bit beyond the table comes from no build of ours, and would
 * be a wild index. sc is for the claim that looks again after its swap (M1: a subscription that
 * appeared between its gate and its swap must be seen). A stale bit of a peer costs a look at an
 * unused entry. */
static inline uint64_t sub_mask_of(const struct gr_ring *ring, uint64_t word) {
    return gr_load_sc(&ring->head->sub_mask[word]) & ring->sub_bits[word];
}
static inline uint64_t peer_mask_of(const struct gr_ring *ring, uint64_t word) {
    return gr_load_acquire(&ring->head->peer_mask[word]) & ring->peer_bits[word];
}

/* Loops over the set bits of at least one word. `break` leaves both loops: a bit is cleared behind
 * the body, so a word has some left then. */
#define gr_each_bit(var, words, mask)                                                              \
    for (uint64_t var, var##_at = 0, var##_rest, var##_more = 1; var##_more;                       \
         var##_more = var##_rest == 0 && ++var##_at < (words))                                     \
        for (var##_rest = (mask);                                                                  \
             var##_rest && (var = 64 * var##_at + (uint64_t)__builtin_ctzll(var##_rest), true);    \
             var##_rest &= var##_rest - 1)

/* Loops over the subscriptions, or the peers, whose bits are set.
 *
 * The words are loaded one after the other, so together they may show a set that never was: one
 * joins in a word that was passed, and another one leaves in a word that comes later. No reader
 * draws a conclusion from two bits, so each bit may be argued alone. What has to be seen is one
 * subscription, or one peer: its bit was set before its announcement, and the reader loads the
 * bit's word after its own (edges H and J, M1; for peers edges P and R). It does not matter what
 * the other words show then. Masks change only under LOCK, and a peer that clears by them has
 * LOCK. */
#define gr_each_sub(u, ring) gr_each_bit(u, (ring)->sub_words, sub_mask_of(ring, u##_at))
#define gr_each_peer(p, ring) gr_each_bit(p, (ring)->peer_words, peer_mask_of(ring, p##_at))

/* Small things that frame verbs do, shared by claim.c, acquire.c and release.c. Nothing else needs
 * them. */
#pragma once

#include "peer.h"

/* For code that a verb shares with its look. Each gets a copy of its own, so that the verb keeps
 * its cursor in registers. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static inline enum gr_result blocked(struct gr_culprit *culprit, enum gr_reason reason,
                                     uint64_t peer, uint64_t subscription, uint64_t seq,
                                     uint64_t since_ns) {
    *culprit = (struct gr_culprit){reason, (uint32_t)peer, (uint32_t)subscription, seq, since_ns};
    return GR_BLOCKED;
}

/* Acquire: if a reaper raised the fence, its torn mark is visible afterwards (gr_torn). A stale
 * value costs one wait too many. */
static inline void add_pending(struct gr_peer *me, uint64_t p, const gr_word *fence,
                               uint64_t value) {
    if (gr_load_acquire(fence) < value)
        me->last.pending[me->last.pendings++] = (struct gr_pending){(uint32_t)p, value};
}

/* Statistics, which only one thread at a time writes. Readers may see any earlier value. */
static inline void count(gr_word *word, uint64_t n) {
    gr_store_relaxed(word, gr_load_relaxed(word) + n);
}

/* Of a peer and of its subscription, which several members count for. */
static inline void count_lost_of(const struct gr_peer *me, uint64_t n) {
    count(&me->ring->peer[me->self.number].lost, n);
    atomic_fetch_add_explicit(&me->ring->sub[me->self.u].lost, n, memory_order_relaxed);
}

/* Prefetches the words of the next slot, which another processor or a GPU may have written since
 * the last lap. What the caller does meanwhile hides the cache misses; a wrong guess costs
 * nothing. */
static inline void prefetch_next(const struct gr_peer *me) {
    const struct gr_ring *ring = me->ring;
    uint32_t i = me->last.index + 1 == ring->slots ? 0 : me->last.index + 1;
    __builtin_prefetch(&ring->slot[i]);
    __builtin_prefetch(take_of(ring, i, 0));
    __builtin_prefetch(fence_of(ring, i, 0));
    __builtin_prefetch(work_of(ring, i, 0));
}

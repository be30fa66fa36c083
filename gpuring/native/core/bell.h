/* The clock and the doorbell. A peer that changes what others may sleep for rings. A sleeper
 * announces itself. */
#pragma once

#include "peer.h"

int64_t gr_now_ns(void);
int64_t gr_now_coarse_ns(void);
void gr_ring_bell(struct gr_ring *ring);
void gr_ring_bell_of(struct gr_head *head);
/* Bits of peer.waiting: what is counted in head.waiters for the peer. */
enum { GR_SLEEPING = 1, GR_ARMED = 2 };
void gr_announce(const struct gr_peer *me, uint64_t bit);
void gr_withdraw(const struct gr_peer *me, uint64_t bit);

static inline void gr_pause(void) { /* between two looks */
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Clears what dead peers, and peers that leave, still had. */
#pragma once

#include "ring.h"

/* From any thread, under no lock of this library. */
/* reaped: NULL, or a mask for the numbers that were cleared. */
enum gr_result gr_reap_dead(struct gr_ring *ring, uint64_t reaped[GR_MASK_WORDS]);
void gr_reap_one(struct gr_ring *ring, uint32_t number);

/* For members.c, under LOCK. */
void gr_clear_dead_producers(struct gr_ring *ring);
void gr_take_back(struct gr_ring *ring, uint32_t p, uint32_t u);
void gr_clear_orphans(struct gr_ring *ring);

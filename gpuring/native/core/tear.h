/* Which frames are torn: the marks that reapers leave, and what readers find in them. */
#pragma once

#include "ring.h"

void gr_mark_torn(struct gr_tear *mark, uint64_t id, uint64_t reached);
bool gr_torn(const struct gr_ring *ring, uint32_t index, uint32_t producer, uint64_t producer_id,
             uint64_t value);

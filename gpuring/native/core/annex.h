/* What services and bridges keep in the header: see annex.c. */
#ifndef GPURING_ANNEX_H
#define GPURING_ANNEX_H

#include <stdbool.h>
#include <stdint.h>

#include "peer.h"

struct gr_origin {
    uint64_t seq, time_ns;
    uint32_t lost;
};
/* How far a link has come: everything up to `seq` of the near ring was published or skipped. */
struct gr_watermark {
    uint8_t epoch[16];
    uint64_t seq, lost;
};
enum gr_result gr_set_origin(struct gr_peer *me, uint32_t index, uint64_t seq,
                             const struct gr_origin *origin);
bool gr_origin(const struct gr_slot *slot, struct gr_origin *origin);
void gr_set_link(struct gr_ring *ring, const struct gr_watermark *mark);
bool gr_link(const struct gr_ring *ring, struct gr_watermark *mark);
void gr_keep_origin(struct gr_ring *ring, const struct gr_slot *slot, uint64_t seq);


/* A member of subscription u says who keeps the far ring of a bridge from taking more. */
void gr_set_far(struct gr_ring *ring, uint32_t u, const char far[8 * GR_FAR_WORDS]);
/* For people: notes that the peer is about to ask for frames, or asks for them still. */
void gr_ask(const struct gr_peer *me);

#endif

/* Gets the slots' descriptor from another process of the ring. One thread at a time has a
 * gr_fetch, under no lock of this library. Close what it gets with gr_close_aside (handles.h). */
#pragma once

#include "process.h"
#include "ring.h"

struct gr_fetch {
    uint32_t n;
    struct gr_asked {
        struct gr_who who;
        int fd;         /* -1: not connected, or it is being heard */
        struct gr_hearing *hearing; /* NULL: it is not being heard */
        bool met, gone; /* it was there; it cannot answer any more */
        bool without;   /* it has answered that it cannot hand the slots on just now */
        int64_t next_ns; /* when to ask it again */
    } asked[GR_MAX_PEERS + 1];
};
void gr_fetch_begin(struct gr_fetch *fetch, struct gr_ring *ring);
int gr_fetch_go_on(struct gr_fetch *fetch, struct gr_ring *ring, int64_t until_ns);
void gr_fetch_end(struct gr_fetch *fetch);

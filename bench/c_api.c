/* What a verb costs by gpuring.h, beside what it calls, in nanoseconds a frame.
 *
 *   ./c_api RING 50 99     prints {"n": …, "core": {"producer": [p50, p99], "consumer": …}, "verbs": …,
 *                          "gpuring.h": …} of claim and publish, and of acquire and release
 *
 * "core" has the transitions of native/core alone, "verbs" those of device/verbs.h, which Python
 * calls, too. The ring has 8 slots in host memory. One thread fills all of them, and then reads all of
 * them. Laps of the three are interleaved, so that all meet the same machine.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "api/opaque.h"
#include "core/acquire.h"
#include "core/bell.h"
#include "core/claim.h"
#include "core/release.h"
#include "device/verbs.h"

enum { ROUNDS = 20000, WARM_UP = 1000, LAP = 8, WAYS = 3, SIDES = 2 };

static gpuring_producer *producer;
static gpuring_consumer *consumer;
static uint64_t next; /* the sequence that comes */

static int core_writes(void) {
    struct gr_peer *p = &producer->end.peer.core;
    int bad = 0;
    for (int k = 0; k < LAP; k++) {
        bad |= gr_claim(p);
        bad |= gr_publish(p, p->last.index, p->last.seq, 0, 0, NULL);
    }
    return bad;
}

static int core_reads(void) {
    struct gr_peer *c = &consumer->end.peer.core;
    int bad = 0;
    for (int k = 0; k < LAP; k++, next++) {
        bad |= gr_acquire(c) || c->last.seq != next;
        bad |= gr_release(c, c->last.index, c->last.seq);
    }
    return bad;
}

static int verbs_writes(void) {
    struct gd_peer *p = &producer->end.peer;
    struct gd_call call;
    uint32_t index;
    int bad = 0;
    for (int k = 0; k < LAP; k++) {
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_claim(p, &call, GD_WAIT);
        p->use[index].open = true;
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_publish(p, &call, GD_WAIT);
    }
    return bad;
}

static int verbs_reads(void) {
    struct gd_peer *c = &consumer->end.peer;
    struct gd_call call;
    uint32_t index;
    int bad = 0;
    for (int k = 0; k < LAP; k++, next++) {
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_acquire(c, &call, GD_WAIT, gr_acquire) || c->use[index].seq != next;
        c->use[index].open = true;
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_release(c, &call, GD_WAIT);
    }
    return bad;
}

static int api_writes(void) {
    gpuring_slot slot = GPURING_SLOT;
    int bad = 0;
    for (int k = 0; k < LAP; k++)
        bad |= gpuring_claim(producer, 0, &slot, NULL) || gpuring_publish(producer, &slot, NULL);
    return bad;
}

static int api_reads(void) {
    gpuring_slot slot = GPURING_SLOT;
    int bad = 0;
    for (int k = 0; k < LAP; k++, next++)
        bad |= gpuring_acquire(consumer, 0, &slot, NULL) || slot.seq != next ||
               gpuring_release(consumer, &slot, NULL);
    return bad;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static double ns[WAYS][SIDES][ROUNDS];
    int (*laps[WAYS][SIDES])(void) = {
        {core_writes, core_reads}, {verbs_writes, verbs_reads}, {api_writes, api_reads}};
    const char *names[WAYS] = {"core", "verbs", "gpuring.h"}, *sides[SIDES] = {"producer", "consumer"};
    gpuring_error error;
    gpuring_ring *ring;
    if (argc < 2 || gpuring_attach(argv[1], NULL, &ring, &error) ||
        gpuring_join_producer(ring, NULL, &producer, &error) ||
        gpuring_join_consumer(ring, NULL, &consumer, &error))
        return 1;
    next = gr_frontier(ring->header);
    for (int round = -WARM_UP; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            for (int side = 0; side < SIDES; side++) {
                const int64_t begun = gr_now_ns();
                if (laps[way][side]()) return 1;
                if (round >= 0) ns[way][side][round] = (double)(gr_now_ns() - begun) / LAP;
            }
    printf("{\"n\": %d", ROUNDS);
    for (int way = 0; way < WAYS; way++) {
        printf(", \"%s\": {", names[way]);
        for (int side = 0; side < SIDES; side++) {
            double *of = ns[way][side];
            qsort(of, ROUNDS, sizeof *of, by_value);
            printf("%s\"%s\": [", side ? ", " : "", sides[side]);
            for (int k = 2; k < argc; k++)
                printf("%s%.1f", k > 2 ? ", " : "",
                       of[(int)(atof(argv[k]) / 100 * (ROUNDS - 1) + 0.5)]);
            printf("]");
        }
        printf("}");
    }
    printf("}\n");
    return gpuring_close_producer(producer, NULL) || gpuring_close_consumer(consumer, NULL) ||
           gpuring_detach(ring, NULL);
}

/* What a verb costs by gpuring.h, beside what it calls, in nanoseconds.
 *
 *   ./c_api RING 50 99     prints {"n": …, "core": [p50, p99], "verbs": …, "gpuring.h": …} of a whole
 *                          turn: claim, publish, acquire and release
 *
 * "core" has the transitions of native/core alone, "verbs" those of device/verbs.h, which Python
 * calls, too. The ring has 8 slots. One thread is producer and consumer in turn. Laps of the three are
 * interleaved, so that all meet the same machine.
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

enum { ROUNDS = 20000, WARM_UP = 1000, LAP = 8, WAYS = 3 };

static gpuring_producer *producer;
static gpuring_consumer *consumer;
static uint64_t next; /* the sequence that comes */

static int core_lap(void) {
    struct gr_peer *p = &producer->end.peer.core, *c = &consumer->end.peer.core;
    struct gr_ring *ring = p->ring;
    int bad = 0;
    for (int k = 0; k < LAP; k++, next++) {
        bad |= gr_claim(p);
        uint32_t i = p->last.index;
        uint64_t value = gr_promise(p, i, p->last.seq);
        gr_raise_to(fence_of(ring, i, p->self.number), value);
        bad |= gr_publish(p, i, p->last.seq, value, 0, NULL);
        bad |= gr_acquire(c) || c->last.seq != next;
        gr_raise_to(fence_of(ring, i, c->self.number), gr_promise(c, i, c->last.seq));
        bad |= gr_release(c, i, c->last.seq);
    }
    return bad;
}

static int verbs_lap(void) {
    struct gd_peer *p = &producer->end.peer, *c = &consumer->end.peer;
    struct gd_call call;
    uint32_t index;
    int bad = 0;
    for (int k = 0; k < LAP; k++, next++) {
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_claim(p, &call, GD_WAIT);
        p->use[index].open = true;
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_publish(p, &call, GD_WAIT);
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_acquire(c, &call, GD_WAIT, gr_acquire) || c->use[index].seq != next;
        c->use[index].open = true;
        gd_begin(&call, 0, 0, 1, &index);
        bad |= gd_release(c, &call, GD_WAIT);
    }
    return bad;
}

static int api_lap(void) {
    gpuring_slot slot = GPURING_SLOT;
    int bad = 0;
    for (int k = 0; k < LAP; k++, next++) {
        bad |= gpuring_claim(producer, 0, &slot, NULL);
        bad |= gpuring_publish(producer, &slot, NULL);
        bad |= gpuring_acquire(consumer, 0, &slot, NULL) || slot.seq != next;
        bad |= gpuring_release(consumer, &slot, NULL);
    }
    return bad;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static double ns[WAYS][ROUNDS];
    int (*laps[WAYS])(void) = {core_lap, verbs_lap, api_lap};
    const char *names[WAYS] = {"core", "verbs", "gpuring.h"};
    gpuring_error error;
    gpuring_ring *ring;
    if (argc < 2 || gpuring_attach(argv[1], NULL, &ring, &error) ||
        gpuring_join_producer(ring, NULL, &producer, &error) ||
        gpuring_join_consumer(ring, NULL, &consumer, &error))
        return 1;
    next = gr_frontier(ring->header);
    for (int round = -WARM_UP; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++) {
            const int64_t begun = gr_now_ns();
            if (laps[way]()) return 1;
            if (round >= 0) ns[way][round] = (double)(gr_now_ns() - begun) / LAP;
        }
    printf("{\"n\": %d", ROUNDS);
    for (int way = 0; way < WAYS; way++) {
        qsort(ns[way], ROUNDS, sizeof(double), by_value);
        printf(", \"%s\": [", names[way]);
        for (int k = 2; k < argc; k++)
            printf("%s%.1f", k > 2 ? ", " : "",
                   ns[way][(int)(atof(argv[k]) / 100 * (ROUNDS - 1) + 0.5)]);
        printf("]");
    }
    printf("}\n");
    return gpuring_close_producer(producer, NULL) || gpuring_close_consumer(consumer, NULL) ||
           gpuring_detach(ring, NULL);
}

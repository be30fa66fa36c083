/* What a hand-over on a GPU costs the host by gpuring.h, beside what it calls, in nanoseconds a frame.
 *
 *   ./c_api_gpu RING 50 99   prints {"n": …, "verbs": {"producer": [p50, p99], "consumer": …},
 *                            "gpuring.h": …} of claim and publish, and of acquire and release
 *
 * The ring has 8 slots on a GPU. Each round fills all of them on one stream, and then reads all of them
 * on another one. It begins when the GPU is idle. No frame is written by a kernel, so all that the
 * streams do is to wait and to store fences. The two ways take turns.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "api/opaque.h"
#include "core/acquire.h"
#include "core/bell.h"
#include "core/claim.h"
#include "device/verbs.h"

enum { ROUNDS = 4000, WARM_UP = 400, LAP = 8, WAYS = 2, SIDES = 2 };

static gpuring_producer *producer;
static gpuring_consumer *consumer;
static void *writes, *reads; /* streams */
static uint64_t next;

static int verbs_writes(void) {
    struct gd_peer *p = &producer->end.peer;
    struct gd_call call;
    uint32_t index;
    int bad = 0;
    for (int k = 0; k < LAP; k++) {
        gd_begin(&call, (gd_stream)writes, 0, 1, &index);
        bad |= gd_claim(p, &call, GD_WAIT);
        p->use[index].open = true;
        gd_begin(&call, (gd_stream)writes, 0, 1, &index);
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
        gd_begin(&call, (gd_stream)reads, 0, 1, &index);
        bad |= gd_acquire(c, &call, GD_WAIT, gr_acquire) || c->use[index].seq != next;
        c->use[index].open = true;
        gd_begin(&call, (gd_stream)reads, 0, 1, &index);
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

static int failed(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    static double ns[WAYS][SIDES][ROUNDS];
    int (*laps[WAYS][SIDES])(void) = {{verbs_writes, verbs_reads}, {api_writes, api_reads}};
    const char *names[WAYS] = {"verbs", "gpuring.h"}, *sides[SIDES] = {"producer", "consumer"};
    gpuring_error error;
    gpuring_ring *ring;
    if (argc < 2 || gpuring_attach(argv[1], NULL, &ring, &error) ||
        gpuring_join_producer(ring, NULL, &producer, &error) ||
        gpuring_join_consumer(ring, NULL, &consumer, &error))
        return failed(argc < 2 ? "c_api_gpu RING 50 99" : error.text);
    const struct gd_driver *driver = ring->order.driver;
    if (!driver || driver->ctx_set_current(ring->order.context) ||
        driver->stream_create(&writes, CU_STREAM_NON_BLOCKING) ||
        driver->stream_create(&reads, CU_STREAM_NON_BLOCKING))
        return failed("the ring is not on a GPU, or that has no streams");
    gpuring_producer_stream(producer, writes);
    gpuring_consumer_stream(consumer, reads);
    next = gr_frontier(ring->header);
    for (int round = -WARM_UP; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            for (int side = 0; side < SIDES; side++) {
                const int64_t begun = gr_now_ns();
                if (laps[way][side]()) return failed("a verb has failed, or a frame was missing");
                const int64_t took = gr_now_ns() - begun;
                if (round >= 0) ns[way][side][round] = (double)took / LAP;
                if (side == 1 && driver->ctx_synchronize()) return failed("the GPU has failed");
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

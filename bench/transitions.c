/* Cost of each transition of the core, uncontended, in nanoseconds.
 *
 *   gcc -std=gnu11 -O2 -pthread -I gpuring/native bench/transitions.c gpuring/native/core/<all>.c -o transitions
 *   ./transitions 50 99     prints {"n": …, "claim": [p50, p99], "publish": …, "acquire": …, "release": …}
 *
 * Compiled with -DTRACED, each verb also writes an event for a tracer (core/trace.h).
 *
 * One thread is producer and consumer in turn, 8 slots, 1 subscription: what is measured is the path
 * without waiting, with warm caches.  Cache misses between cores come on top in real use.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "core/acquire.h"
#include "core/bell.h"
#include "core/claim.h"
#include "core/header.h"
#include "core/members.h"
#include "core/peer.h"
#include "core/release.h"
#ifdef TRACED
#include "core/trace.h"
#endif

enum { ROUNDS = 20000, LAP = 8, VERBS = 4 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    struct gr_config config = {.slots = LAP, .max_peers = 32, .max_subscriptions = 16,
                               .slot_nbytes = 64, .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    struct gr_ring *ring = gr_create(memfd_create("bench", 0), &config, zeros, zeros, zeros, "{}");
    struct gr_peer p, c;
    char name[GR_NAME_WORDS * 8] = "one";
    static double ns[VERBS][ROUNDS];
    if (!ring || gr_join_producer(ring, &p) || gr_join_consumer(ring, name, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, &c))
        return 1;
#ifdef TRACED
    const char *why;
    char text[256];
    struct gr_tracer *tracer = gr_trace_begin(ring->lock_fd, &why, text, sizeof text);
    if (!tracer) return 1;
#endif
    for (int round = 0; round < ROUNDS; round++) { /* a whole lap per verb, so that the clock costs little */
        uint64_t seqs[LAP];
        int bad = 0;
#ifdef TRACED
        if (round % 1000 == 0) gr_trace_on(tracer);
#endif
        int64_t t[VERBS + 1];
        t[0] = gr_now_ns();
        for (int k = 0; k < LAP; k++) bad |= gr_claim(&p), seqs[k] = p.last.seq;
        t[1] = gr_now_ns();
        for (int k = 0; k < LAP; k++) bad |= gr_publish(&p, (uint32_t)(seqs[k] % LAP), seqs[k], 0, 0, NULL);
        t[2] = gr_now_ns();
        for (int k = 0; k < LAP; k++) bad |= gr_acquire(&c) || c.last.seq != seqs[k]; /* the right frame, in order */
        t[3] = gr_now_ns();
        for (int k = 0; k < LAP; k++) bad |= gr_release(&c, (uint32_t)(seqs[k] % LAP), seqs[k]);
        t[4] = gr_now_ns();
        if (bad) return 1;
        for (int verb = 0; verb < VERBS; verb++) ns[verb][round] = (double)(t[verb + 1] - t[verb]) / LAP;
    }
    const char *names[VERBS] = {"claim", "publish", "acquire", "release"};
    printf("{\"n\": %d", ROUNDS);
    for (int verb = 0; verb < VERBS; verb++) {
        qsort(ns[verb], ROUNDS, sizeof(double), by_value);
        printf(", \"%s\": [", names[verb]);
        for (int k = 1; k < argc; k++) {
            int at = (int)(atof(argv[k]) / 100 * (ROUNDS - 1) + 0.5);
            printf("%s%.1f", k > 1 ? ", " : "", ns[verb][at]);
        }
        printf("]");
    }
    printf("}\n");
    return 0;
}

/* Laps of claim and publish, and of acquire and release, which c_api.c and c_api_gpu.c time: by the verbs
 * of device/verbs.h and by gpuring.h. Each checks that it has seen each frame in order. And how the times
 * are printed.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "api/opaque.h"
#include "core/acquire.h"
#include "core/bell.h"
#include "core/claim.h"
#include "device/verbs.h"

enum { LAP = 8, SIDES = 2 };
typedef int (*lap)(void); /* 0: all was well */

static gpuring_producer *producer;
static gpuring_consumer *consumer;
static void *writes, *reads; /* streams; NULL in host memory */
static uint64_t next; /* the sequence that comes */

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

/* ns: what one frame has taken in each round. quantiles: in percent. */
static void print_quantiles(const char *way, double *ns[SIDES], int rounds, char **quantiles, int count) {
    static const char *const sides[SIDES] = {"producer", "consumer"};
    printf(", \"%s\": {", way);
    for (int side = 0; side < SIDES; side++) {
        qsort(ns[side], (size_t)rounds, sizeof *ns[side], by_value);
        printf("%s\"%s\": [", side ? ", " : "", sides[side]);
        for (int k = 0; k < count; k++)
            printf("%s%.1f", k ? ", " : "",
                   ns[side][(int)(atof(quantiles[k]) / 100 * (rounds - 1) + 0.5)]);
        printf("]");
    }
    printf("}");
}

/* The ring with this name, and one of each in it. */
static bool join(const char *name, gpuring_ring **ring, gpuring_error *error) {
    return gpuring_attach(name, NULL, ring, error) == GPURING_OK &&
           gpuring_join_producer(*ring, NULL, &producer, error) == GPURING_OK &&
           gpuring_join_consumer(*ring, NULL, &consumer, error) == GPURING_OK;
}

static int leave(gpuring_ring *ring) {
    return gpuring_close_producer(producer, NULL) || gpuring_close_consumer(consumer, NULL) ||
           gpuring_detach(ring, NULL);
}

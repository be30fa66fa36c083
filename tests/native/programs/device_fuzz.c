/* Hostile words and a hostile driver: a fuzzer of the verbs of device order, for the address and
 * undefined-behaviour sanitizers. Each input is a small ring of one of four kinds. Its shared words
 * are overwritten between the verbs and, at the fault points, inside them (fuzz.h). Every function
 * of the driver now and then returns a random result. No verb may crash, index beyond its tables,
 * hang, or return a result that is not one of its own.
 *
 *   device_fuzz --inputs 20000 --seed 1         --first K --inputs 1: input K again
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "core.h"
#include "../../../gpuring/native/device/device.h"
#include "../../../gpuring/native/device/record.h"
#include "../../../gpuring/native/device/released.h"
#include "../../../gpuring/native/device/verbs.h"
#include "fake_cuda.h"
#include "fuzz.h"

enum { MEMBERS = 4, TRIES = 4, BATCH = 3 };

static struct fc_world *world;
static struct gd_driver driver;
static struct gd_device device;
static struct gd_peer peers[MEMBERS];
static gd_stream streams[2];

static enum gr_result acquire_any(struct gd_peer *me, struct gd_call *call, unsigned how) {
    return gd_acquire(me, call, how, me->core.self.mode == GR_LOSSY && below(2) ? gr_latest : gr_acquire);
}

static enum gr_result go(struct gd_peer *me, struct gd_call *call, unsigned how,
                         enum gr_result (*verb)(struct gd_peer *, struct gd_call *, unsigned)) {
    enum gr_result result = GR_SIGNAL;
    for (int k = 0; k < TRIES && result == GR_SIGNAL; k++, how |= GD_AGAIN) {
        result = verb(me, call, how);
        for (uint32_t steps = below(20); steps && fc_step(world); steps--) {
        }
    }
    REQUIRE(result >= GR_OK && result <= GR_TORN_BEHIND && result != GR_LOCK_TIMEOUT && result != GR_FORKED);
    REQUIRE(result != GR_DEVICE || call->trouble.where != GD_NOWHERE);
    return result;
}

static void refuse_something(void) {
    static const int statuses[] = {1, 2, 201, 400, 600, 709, 719, 900, 901, 906, 999};
    fc_refuse(world, (enum fc_function)below(FC_FUNCTIONS), below(4), statuses[below(COUNT(statuses))]);
}

static void verb(struct gd_peer *me) {
    struct gd_call call;
    struct gd_trouble trouble;
    uint32_t indices[BATCH], index = below(me->core.ring->slots), open = 0;
    const bool producer = me->core.self.role == GR_PRODUCER;
    gd_stream stream = below(4) ? streams[below(2)] : below(3);
    doing = "a verb";
    switch (below(10)) {
    default:
        gd_begin(&call, stream, below(3) ? 0 : gr_now_ns() + 100000, 1 + below(BATCH), indices);
        enum gr_result result = go(me, &call, below(4) ? GD_WAIT : 0, producer ? gd_claim : acquire_any);
        REQUIRE(result == GR_OK ? call.got >= 1 && call.got <= call.n : result == GR_SIGNAL || call.got == 0);
        if (result == GR_SIGNAL) gd_cancel(me, &call);
        for (uint32_t k = 0; k < call.got; k++) {
            REQUIRE(indices[k] < me->core.ring->slots);
            me->use[indices[k]].open = true;
        }
        break;
    case 4: case 5: case 6:
        for (uint32_t i = 0; i < me->core.ring->slots && open < BATCH; i++)
            if (me->use[i].open) indices[open++] = i;
        if (open == 0) break;
        gd_begin(&call, stream, INT64_MAX, open, indices);
        go(me, &call, GD_WAIT, !producer ? gd_release : below(3) ? gd_publish : gd_abandon);
        break;
    case 7:
        if (me->use[index].open) gd_use_on(me, index, stream, &trouble);
        break;
    case 8:
        if (!producer && me->use[index].open) gd_is_torn(me, index);
        gd_would_report(me), gd_look_at_released(me), gd_take_torn(me, (uint64_t[4]){0}, 4);
        break;
    case 9:
        if (me->use[index].open && below(2)) gd_put_back(me, index, below(2));
        gr_reap_dead(me->core.ring, NULL);
        break;
    }
}

static void fuzz(struct gr_config config) {
    static const char names[][GR_NAME_WORDS * 8] = {"alone", "lossy"};
    uint8_t zeros[64] = {0};
    struct gd_trouble trouble;
    struct live live = {.fd = memfd_create("fuzz", MFD_CLOEXEC)};
    struct gr_ring *ring = live.ring = gr_create(live.fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL);
    fc_calm(world);
    fc_forget(world);
    fc_serve_ring(ring);
    fc_set_device(0);
    for (int k = 0; k < 2; k++) streams[k] = fc_stream(0, k);
    REQUIRE(gd_open(&device, &driver, ring, 0, &trouble) == GR_OK);
    for (int k = 0; k < MEMBERS; k++) {
        enum gr_result result = k < 2 ? gr_join_producer(ring, &peers[k].core)
            : gr_join_consumer(ring, names[k - 2], k == 3 ? GR_LOSSY : GR_LOSSLESS, GR_REDELIVER, GR_START_OLDEST, 0,
                               &peers[k].core);
        REQUIRE(result == GR_OK && gd_prepare(&peers[k], &device, below(2), &trouble) == GR_OK);
    }
    void *base = ring->head;
    isolate(&live);
    live.peer[0] = peers[0].core; /* made-up words are made close to its sequence */
    for (uint32_t k = below(12); k > 0; k--) verb(&peers[below(MEMBERS)]);
    hostile = &live;
    for (uint32_t turn = 1 + below(4); turn > 0; turn--) {
        for (uint32_t k = below(3); k > 0; k--) refuse_something();
        for (uint32_t k = below(3); k > 0; k--) corrupt(&live);
        inside = (int)below(4);
        for (uint32_t k = 1 + below(6); k > 0; k--) verb(&peers[below(MEMBERS)]);
    }
    hostile = NULL;
    fc_calm(world);
    for (int k = 0; k < MEMBERS; k++) {
        struct gd_call call;
        doing = "leave";
        gd_begin(&call, 0, INT64_MAX, 0, NULL);
        go(&peers[k], &call, GD_WAIT, gd_leave);
        gd_dispose(&peers[k]);
    }
    fc_forget(world); /* a stream may wait for a made-up word */
    doing = "close";
    for (int k = 0; k < TABLES; k++) *place(ring, k) = live.mapped[k];
    REQUIRE((void *)ring->head == base);
    gd_close(&device);
    for (int k = 0; k < TABLES; k++) free(live.table[k]);
    gr_detach(ring);
    close(live.fd);
}

int main(int argc, char **argv) {
    static const struct gr_config configs[] = {
        {.slots = 3, .max_peers = 6, .max_subscriptions = 3, .sync = GR_SYNC_TIMELINE},
        {.slots = 2, .max_peers = 5, .max_subscriptions = 2, .sync = GR_SYNC_TIMELINE, .gate = GR_GATE_HOST},
        {.slots = 4, .max_peers = 8, .max_subscriptions = 2, .sync = GR_SYNC_EVENT},
        {.slots = 1, .max_peers = 4, .max_subscriptions = 2, .sync = GR_SYNC_EVENT, .gate = GR_GATE_HOST}};
    uint64_t inputs = 5000, first = 0;
    begin_run(argc, argv, &inputs, &first);
    world = fc_new(false);
    fc_enter(world, &driver);
    for (input = first; input < first + inputs; input++) {
        rng = seed * 0x2545f4914f6cdd1du + input * 0xda942042e4dd58b5u;
        struct gr_config config = configs[below(COUNT(configs))];
        config.memory = GR_MEMORY_IPC, config.slot_nbytes = 64, config.spec_nbytes = 2;
        fuzz(config);
    }
    printf("{\"inputs\": %llu, \"findings\": 0, \"seed\": %llu}\n", (ull)inputs, (ull)seed);
    return 0;
}

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
#include "c_api.h"

enum { ROUNDS = 4000, WARM_UP = 400, WAYS = 2 };

static int failed(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    static double ns[WAYS][SIDES][ROUNDS];
    const lap laps[WAYS][SIDES] = {{verbs_writes, verbs_reads}, {api_writes, api_reads}};
    const char *names[WAYS] = {"verbs", "gpuring.h"};
    gpuring_error error;
    gpuring_ring *ring;
    if (argc < 2 || !join(argv[1], &ring, &error))
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
    for (int way = 0; way < WAYS; way++)
        print_quantiles(names[way], (double *[]){ns[way][0], ns[way][1]}, ROUNDS, argv + 2, argc - 2);
    printf("}\n");
    return leave(ring);
}

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
#include "c_api.h"

#include "core/release.h"

enum { ROUNDS = 20000, WARM_UP = 1000, WAYS = 3 };

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

int main(int argc, char **argv) {
    static double ns[WAYS][SIDES][ROUNDS];
    const lap laps[WAYS][SIDES] = {
        {core_writes, core_reads}, {verbs_writes, verbs_reads}, {api_writes, api_reads}};
    const char *names[WAYS] = {"core", "verbs", "gpuring.h"};
    gpuring_error error;
    gpuring_ring *ring;
    if (argc < 2 || !join(argv[1], &ring, &error)) return 1;
    next = gr_frontier(ring->header);
    for (int round = -WARM_UP; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            for (int side = 0; side < SIDES; side++) {
                const int64_t begun = gr_now_ns();
                if (laps[way][side]()) return 1;
                if (round >= 0) ns[way][side][round] = (double)(gr_now_ns() - begun) / LAP;
            }
    printf("{\"n\": %d", ROUNDS);
    for (int way = 0; way < WAYS; way++)
        print_quantiles(names[way], (double *[]){ns[way][0], ns[way][1]}, ROUNDS, argv + 2, argc - 2);
    printf("}\n");
    return leave(ring);
}

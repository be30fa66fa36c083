/* No wake-up is lost: one frame at a time, so that nothing else ever wakes a peer that has missed
 * it.
 *
 * There are two rings of one slot. The writer publishes in one of them, at a random moment, and
 * then waits until the frame was read; the reader waits at both rings. Each waits in one of three
 * ways. Compile it with -DGR_SLICE_NS=1000000000000: then no sleep ends by itself, a lost wake-up
 * is a hang, and the alarm ends it. Usage: wakeups [rounds [seconds for 256 rounds]]
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "require.h"

enum { RINGS = 2 };
enum way { ASLEEP, AT_BELLS, IN_POLL, WAYS };
static const char *const way_names[WAYS] = {"asleep", "at bells", "in poll()"};

/* Peers of one thread, one for each ring, and how the thread waits for them. */
struct side {
    struct gr_peer peer[RINGS], *peers[RINGS];
    struct gr_notifier *notifier[RINGS];
    gr_verb verb;
    enum way way;
};

static struct side reader, writer;
static uint64_t rounds = 20000;
static unsigned deadline_s = 60;

static void linger(uint64_t *dice) {
    *dice = *dice * 6364136223846793005u + 1442695040888963407u;
    for (volatile uint64_t k = *dice >> 33 & 0xfff; k > 0; k--) {
    }
}

/* Waits for peer k, or for any of them (k < 0), and returns its number. peer[k] has what the verb
 * took. */
static int wait_for(struct side *side, int k) {
    for (;;) {
        bool ready[RINGS] = {false};
        struct pollfd told[RINGS];
        int first = k < 0 ? 0 : k, last = k < 0 ? RINGS - 1 : k, blocked = 0;
        for (int j = first; j <= last; j++) {
            struct gr_peer *me = &side->peer[j];
            me->wait.deadline_ns = INT64_MAX;
            enum gr_result result = side->verb(me);
            if (result == GR_BLOCKED && side->way == ASLEEP && first == last)
                while ((result = gr_sleep(me, side->verb)) == GR_SIGNAL || result == GR_BLOCKED) {
                }
            if (result == GR_OK) return j;
            REQUIRE(result == GR_BLOCKED);
            told[j] = (struct pollfd){.fd = gr_notifier_fd(side->notifier[j]), .events = POLLIN};
            if (side->way == IN_POLL) blocked += gr_notifier_arm(side->notifier[j], me, false) == GR_BLOCKED;
        }
        nfds_t count = (nfds_t)(last - first + 1);
        if (side->way == AT_BELLS)
            REQUIRE(gr_select(side->peers + first, (uint32_t)count, gr_now_ns(), INT64_MAX, ready) == GR_OK);
        else if (blocked == (int)count) REQUIRE(poll(told + first, count, -1) > 0);
    }
}

static void *read_all(void *unused) {
    (void)unused;
    uint64_t dice = 1, value;
    for (uint64_t n = 0; n < rounds; n++) {
        struct gr_peer *me = &reader.peer[wait_for(&reader, -1)];
        linger(&dice);
        pay(me, &value);
        REQUIRE(gr_release(me, me->last.index, me->last.seq) == GR_OK);
    }
    return NULL;
}

static void *write_all(void *unused) {
    (void)unused;
    uint64_t dice = 2, value;
    for (int k = 0; k < RINGS; k++) wait_for(&writer, k);
    for (uint64_t n = 0; n < rounds; n++) {
        if (n % 256 == 0) alarm(deadline_s);
        int k = (int)(dice >> 50 & 1);
        struct gr_peer *me = &writer.peer[k];
        linger(&dice);
        pay(me, &value);
        REQUIRE(gr_publish(me, me->last.index, me->last.seq, value, 0, NULL) == GR_OK);
        wait_for(&writer, k); /* until it was read, which the next claim shows */
    }
    for (int k = 0; k < RINGS; k++) REQUIRE(gr_abandon(&writer.peer[k], 0, writer.peer[k].last.seq) == GR_OK);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = strtoull(argv[1], NULL, 10);
    if (argc > 2) deadline_s = (unsigned)strtoul(argv[2], NULL, 10);
    struct gr_config config = {.slots = 1, .max_peers = 4, .max_subscriptions = 2, .slot_nbytes = 64, .spec_nbytes = 2};
    static const uint8_t zeros[64];
    char name[GR_NAME_WORDS * 8] = "reader";
    reader.verb = gr_acquire, writer.verb = gr_claim;
    struct gr_ring *rings[RINGS];
    for (int k = 0; k < RINGS; k++) {
        rings[k] = gr_create(memfd_create("wakeups", MFD_CLOEXEC), &config, zeros, zeros, zeros, "{}");
        REQUIRE(rings[k] != NULL);
        gr_watch(rings[k]);
        reader.peers[k] = &reader.peer[k], writer.peers[k] = &writer.peer[k];
        REQUIRE(gr_join_consumer(rings[k], name, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, &reader.peer[k]) == GR_OK);
        REQUIRE(gr_join_producer(rings[k], &writer.peer[k]) == GR_OK);
        REQUIRE((reader.notifier[k] = gr_notifier_open()) && (writer.notifier[k] = gr_notifier_open()));
    }
    for (reader.way = AT_BELLS; reader.way < WAYS; reader.way++)
        for (writer.way = ASLEEP; writer.way < WAYS; writer.way++) {
            printf("reader %s, writer %s\n", way_names[reader.way], way_names[writer.way]);
            fflush(stdout);
            alarm(deadline_s);
            pthread_t threads[2];
            REQUIRE(pthread_create(&threads[0], NULL, read_all, NULL) == 0);
            REQUIRE(pthread_create(&threads[1], NULL, write_all, NULL) == 0);
            for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
            for (int k = 0; k < RINGS; k++) gr_notifier_disarm(reader.notifier[k]), gr_notifier_disarm(writer.notifier[k]);
            for (int k = 0; k < RINGS; k++) REQUIRE(atomic_load(&rings[k]->head->waiters) == 0);
        }
    for (int k = 0; k < RINGS; k++) {
        gr_notifier_close(reader.notifier[k]), gr_notifier_close(writer.notifier[k]);
        REQUIRE(gr_leave(&reader.peer[k]) == GR_OK && gr_leave(&writer.peer[k]) == GR_OK);
        gr_detach(rings[k]);
    }
    return 0;
}

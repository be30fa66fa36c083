/* The core under load, for the sanitizers: threads on one handle, and frames in plain memory.
 *
 * Frames are ordinary words that no atomic touches. So ThreadSanitizer reports every frame that is
 * written and read without the protocol having ordered the two. If the books do not balance, the
 * program ends with an error. Each thread waits in one of three ways: asleep at the bell
 * (gr_sleep), at several bells (gr_select), or in poll() on a notifier's descriptor. Compiled with
 * -DGR_SLICE_NS=1000000000000, no sleep ends by itself, and a lost wake-up hangs until the
 * deadline. Meanwhile the ring is traced, now and then. Usage: stress [frames per producer]
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "require.h"

enum { SLOTS = 5, WORDS = 16, PRODUCERS = 3, LONELY = 3, SHARED = 3, LOSSY = 2, NEWEST = 2 };
enum { DEADLINE_S = 300 };

static struct gr_ring *ring;
static uint64_t data[SLOTS][WORDS];
static uint64_t frames_each = 20000;
static _Atomic uint64_t seen_shared[1 << 22], published_sum, lonely_sum;
static _Atomic int churning = 1;

enum way { ASLEEP, AT_BELLS, IN_POLL, WAYS };

static enum gr_result run(struct gr_peer *me, gr_verb verb, enum way way, struct gr_notifier *notifier) {
    me->wait.deadline_ns = INT64_MAX;
    enum gr_result result = verb(me);
    if (way == ASLEEP && result == GR_BLOCKED) result = gr_spin(me, verb);
    while (result == GR_BLOCKED || result == GR_SIGNAL) {
        bool ready = false;
        struct pollfd told = {.fd = gr_notifier_fd(notifier), .events = POLLIN};
        if (way == ASLEEP) {
            result = gr_sleep(me, verb);
            continue;
        }
        if (way == AT_BELLS) REQUIRE(gr_select(&me, 1, gr_now_ns(), INT64_MAX, &ready) == GR_SIGNAL || ready);
        else if (gr_notifier_arm(notifier, me, false) == GR_BLOCKED) REQUIRE(poll(&told, 1, -1) == 1);
        result = verb(me);
    }
    return result;
}

static uint64_t content(uint64_t seq, int k) { return seq * 0x9e3779b97f4a7c15u + (uint64_t)k; }

static void *produce(void *barrier) {
    static _Atomic int producers;
    enum way way = (enum way)(atomic_fetch_add(&producers, 1) % WAYS);
    struct gr_notifier *notifier = gr_notifier_open();
    struct gr_peer me;
    uint64_t value, sum = 0;
    REQUIRE(notifier != NULL);
    REQUIRE(gr_join_producer(ring, &me) == GR_OK);
    pthread_barrier_wait(barrier);
    for (uint64_t n = 0; n < frames_each; n++) {
        REQUIRE(run(&me, gr_claim, way, notifier) == GR_OK);
        REQUIRE(me.last.pendings == 0);
        for (int k = 0; k < WORDS; k++) data[me.last.index][k] = content(me.last.seq, k);
        pay(&me, &value);
        if (n % 17 == 5) {
            REQUIRE(gr_abandon(&me, me.last.index, me.last.seq) == GR_OK);
            continue;
        }
        REQUIRE(gr_publish(&me, me.last.index, me.last.seq, value, 0, NULL) == GR_OK);
        sum += me.last.seq;
    }
    atomic_fetch_add(&published_sum, sum);
    gr_notifier_close(notifier);
    REQUIRE(gr_leave(&me) == GR_OK);
    return NULL;
}

static void check_frame(const struct gr_peer *me) {
    for (int k = 0; k < WORDS; k++) REQUIRE(data[me->last.index][k] == content(me->last.seq, k));
}

struct reader {
    pthread_barrier_t *barrier;
    char name[GR_NAME_WORDS * 8];
    unsigned mode;
    gr_verb verb;
    bool shared;
    enum way way;
};

static void *consume(void *argument) {
    struct reader *reader = argument;
    struct gr_peer me;
    uint64_t value, last = 0, sum = 0, turn = 0;
    struct gr_notifier *notifier = gr_notifier_open();
    REQUIRE(notifier != NULL);
    REQUIRE(gr_join_consumer(ring, reader->name, reader->mode, GR_REDELIVER, GR_START_OLDEST, 0, &me) == GR_OK);
    pthread_barrier_wait(reader->barrier);
    for (;;) {
        me.last.lost = 0;
        enum gr_result result = run(&me, reader->verb, reader->way, notifier);
        if (result == GR_ENDED) break;
        REQUIRE(result == GR_OK);
        if (reader->shared && ++turn % 97 == 0) { /* as if its stream could not be ordered */
            REQUIRE(gr_give_back(&me, me.last.index, me.last.seq) == GR_OK);
            continue;
        }
        REQUIRE(reader->shared || me.last.seq > last);
        REQUIRE(reader->mode == GR_LOSSY || me.last.lost == 0);
        check_frame(&me);
        last = me.last.seq;
        sum += me.last.seq;
        if (reader->shared) REQUIRE(atomic_exchange(&seen_shared[me.last.seq], 1) == 0);
        pay(&me, &value);
        REQUIRE(gr_release(&me, me.last.index, me.last.seq) == GR_OK);
    }
    if (reader->mode == GR_LOSSLESS && !reader->shared) atomic_fetch_add(&lonely_sum, sum);
    gr_notifier_raise(notifier);
    REQUIRE(gr_leave(&me) == GR_OK);
    gr_notifier_close(notifier);
    return NULL;
}

/* Joins, reads a little and leaves, again and again, lossless and lossy in turn. */
static void *churn(void *unused) {
    (void)unused;
    for (unsigned turn = 0; atomic_load(&churning); turn++) {
        struct gr_peer me;
        uint64_t value;
        char name[GR_NAME_WORDS * 8] = "churn";
        unsigned mode = turn % 2 ? GR_LOSSLESS : GR_LOSSY;
        REQUIRE(gr_join_consumer(ring, name, mode, GR_REDELIVER, turn % 3 ? GR_START_OLDEST : GR_START_NEXT, 0, &me) == GR_OK);
        for (int k = 0; k < 8; k++) {
            me.wait.deadline_ns = 0;
            me.last.lost = 0;
            if (gr_acquire(&me) != GR_OK) continue;
            REQUIRE(mode == GR_LOSSY || me.last.lost == 0);
            check_frame(&me);
            pay(&me, &value);
            REQUIRE(gr_release(&me, me.last.index, me.last.seq) == GR_OK);
        }
        REQUIRE(gr_leave(&me) == GR_OK);
    }
    return NULL;
}

/* Turns tracing on and off, and reads the events. */
static void *trace(void *argument) {
    static struct gr_trace_event events[256];
    uint64_t last[32] = {0}, got = 0;
    while (atomic_load(&churning)) {
        const char *why;
        char text[256];
        struct gr_tracer *tracer = gr_trace_begin(*(int *)argument, &why, text, sizeof text);
        REQUIRE(tracer != NULL);
        for (int turn = 0; turn < 50; turn++) {
            REQUIRE(gr_trace_on(tracer));
            for (uint32_t p = 0; p < ring->max_peers; p++) {
                int n = gr_trace_read(tracer, p, events, 256);
                REQUIRE(n >= 0);
                for (int k = 0; k < n; k++) {
                    uint64_t its = gr_load_relaxed(&events[k].turn);
                    uint32_t kind = (uint32_t)gr_load_relaxed(&events[k].what);
                    if (its == 0) continue;
                    REQUIRE(its > last[p] && GR_DID_JOIN <= kind && kind <= GR_DID_END);
                    REQUIRE(gr_load_relaxed(&events[k].who) >> 32 == (uint64_t)getpid());
                    last[p] = its;
                    got++;
                }
            }
        }
        gr_trace_off(tracer);
        gr_trace_end(tracer);
    }
    REQUIRE(got > 1000);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1) frames_each = strtoull(argv[1], NULL, 10);
    REQUIRE(frames_each * PRODUCERS * 8 < sizeof seen_shared / sizeof *seen_shared);
    alarm(DEADLINE_S);
    struct gr_config config = {.slots = SLOTS, .max_peers = 32, .max_subscriptions = 16,
                               .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .gate = GR_GATE_STREAM,
                               .slot_nbytes = sizeof data[0], .spec_nbytes = 2};
    int fd = memfd_create("stress", MFD_CLOEXEC);
    uint8_t zeros[64] = {0};
    ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL);
    gr_watch(ring);

    pthread_barrier_t barrier;
    pthread_t threads[PRODUCERS + LONELY + SHARED + LOSSY + NEWEST], churner, tracer;
    int count = PRODUCERS + LONELY + SHARED + LOSSY + NEWEST, n = 0;
    static struct reader readers[LONELY + SHARED + LOSSY + NEWEST];
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (int k = 0; k < LONELY + SHARED + LOSSY + NEWEST; k++) {
        struct reader *reader = &readers[k];
        reader->barrier = &barrier;
        reader->shared = k >= LONELY && k < LONELY + SHARED;
        reader->mode = k < LONELY + SHARED ? GR_LOSSLESS : GR_LOSSY;
        reader->verb = k < LONELY + SHARED + LOSSY ? gr_acquire : gr_latest;
        reader->way = (enum way)(k % WAYS);
        snprintf(reader->name, sizeof reader->name, reader->shared ? "shared" : "reader %d", k);
        REQUIRE(pthread_create(&threads[n++], NULL, consume, reader) == 0);
    }
    for (int k = 0; k < PRODUCERS; k++)
        REQUIRE(pthread_create(&threads[n++], NULL, produce, &barrier) == 0);
    REQUIRE(pthread_create(&churner, NULL, churn, NULL) == 0);
    REQUIRE(pthread_create(&tracer, NULL, trace, &fd) == 0);
    for (int k = 0; k < n; k++) pthread_join(threads[k], NULL);
    atomic_store(&churning, 0);
    pthread_join(churner, NULL);
    pthread_join(tracer, NULL);

    uint64_t shared_sum = 0;
    for (uint64_t s = 0; s < gr_frontier(ring); s++) shared_sum += atomic_load(&seen_shared[s]) * s;
    REQUIRE(atomic_load(&lonely_sum) == LONELY * atomic_load(&published_sum));
    REQUIRE(shared_sum == atomic_load(&published_sum));
    REQUIRE(gr_load_sc(&ring->head->peer_mask[0]) == 0 && gr_load_sc(&ring->head->sub_mask[0]) == 0);
    REQUIRE(atomic_load(&ring->head->waiters) == 0);
    printf("%llu frames, %llu sequences: the books balance\n",
           (unsigned long long)(frames_each * PRODUCERS), (unsigned long long)(gr_frontier(ring) - SLOTS));
    gr_detach(ring);
    close(fd);
    return 0;
}

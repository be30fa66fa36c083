/* Device order under load, for the sanitizers: threads and their streams on one ring, over a fake
 * driver.
 *
 * The fake's GPU writes and reads the frames. It complains of a frame that is written while it is
 * read, of one that is not whole, of a fence that falls, and of anything that went into a graph
 * (fake_cuda.h). Producers and consumers claim and acquire in one thread, and partly publish and
 * release in another. They change streams, use several for one slot, destroy streams, capture them,
 * and take batches. The driver refuses now and then. The books have to balance.
 *
 * The fake is compiled without the thread sanitizer: it stands for hardware, and must order nothing
 * for the library. Compiled with -DGR_FAULTS the program lingers at the fault points, such as the
 * one between promise and record. Usage: device_stress [frames per producer [seconds without a claim
 * until it counts as hung]]
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "../../../gpuring/native/device/device.h"
#include "../../../gpuring/native/device/record.h"
#include "../../../gpuring/native/device/released.h"
#include "../../../gpuring/native/device/verbs.h"
#include "fake_cuda.h"
#include "require.h"

enum { SLOTS = 6, PRODUCERS = 2, LONELY = 2, SHARED = 2, LOSSY = 1, NEWEST = 1, BATCH = 3 };
enum { CONSUMERS = LONELY + SHARED + LOSSY + NEWEST, CHURNERS = 2 };

static struct fc_world *world;
static struct gd_driver driver;
static struct gd_device device;
static struct gr_ring *ring;
static uint64_t frames_each = 2500;
static unsigned patience_s = 280;
static bool gate_host;
static _Atomic uint64_t published_sum, lonely_sum, shared_sum, refusals;
static _Atomic uint8_t seen[FC_SEQS];
static _Atomic bool churning;

static _Thread_local uint64_t dice;
static uint64_t chance(uint64_t n) { /* splitmix64 */
    uint64_t z = dice += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

#ifdef GR_FAULTS
void gr_fault(const char *name) {
    (void)name;
    if (chance(16) == 0) sched_yield();
}
#endif

/* ---- a call to its end ----------------------------------------------------------------------- */

typedef enum gr_result (*verb_of_device)(struct gd_peer *me, struct gd_call *call, unsigned how);

static enum gr_result go(struct gd_peer *me, struct gd_call *call, verb_of_device verb) {
    unsigned how = GD_WAIT;
    enum gr_result result;
    while ((result = verb(me, call, how)) == GR_SIGNAL) how |= GD_AGAIN;
    REQUIRE(!fc_complaint(world), "%s", fc_complaint(world));
    if (result == GR_DEVICE) atomic_fetch_add(&refusals, 1);
    return result;
}

/* A claim or an acquire. */
static enum gr_result go_and_open(struct gd_peer *me, struct gd_call *call, verb_of_device verb) {
    enum gr_result result = go(me, call, verb);
    for (uint32_t k = 0; result == GR_OK && k < call->got; k++) me->use[call->indices[k]].open = true;
    return result;
}

/* Ends slots, however often the driver refuses. True: all of them ended in the way that was asked
 * for. */
static bool end(struct gd_peer *me, gd_stream stream, uint32_t n, uint32_t *indices, verb_of_device verb) {
    struct gd_call call;
    gd_begin(&call, stream, INT64_MAX, n, indices);
    enum gr_result result = go(me, &call, verb);
    REQUIRE(result == GR_OK || result == GR_DEVICE);
    return result == GR_OK;
}

/* ---- a slot goes to another thread for its end ----------------------------------------------- */

struct errand {
    uint32_t index;
    uint64_t seq;
    gd_stream stream;
};
struct partner { /* has room for every slot, so handing one over never waits */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct gd_peer *peer;
    struct errand errand[SLOTS];
    unsigned head, tail;
    bool over, producer;
};

/* `use` may belong to another thread by now, so the words of the ring are asked. */
static bool is_open(struct gd_peer *me, const struct errand *todo) {
    uint64_t seq;
    return gr_holds(&me->core, todo->index, &seq) && seq == todo->seq;
}

static void finish(struct gd_peer *me, struct errand todo, bool producer) {
    /* A slot that stays open still belongs to us: a capture forbade to end or settle it. Try
     * again. */
    const bool whole = chance(9) != 5;
    for (;;) {
        fc_pay_for(producer && whole ? todo.seq : 0);
        bool done = end(me, todo.stream, 1, &todo.index, !producer ? gd_release : whole ? gd_publish : gd_abandon);
        fc_pay_for(0);
        if (done && producer && whole) {
            fc_published(todo.seq);
            atomic_fetch_add(&published_sum, todo.seq);
        }
        if (done || !is_open(me, &todo)) return;
    }
}
static void finish_if_open(struct gd_peer *me, struct errand todo, bool producer) {
    if (is_open(me, &todo)) finish(me, todo, producer);
}

static void *run_errands(void *argument) {
    struct partner *my = argument;
    dice = (uintptr_t)my;
    for (;;) {
        pthread_mutex_lock(&my->mutex);
        while (my->head == my->tail && !my->over) pthread_cond_wait(&my->more, &my->mutex);
        bool any = my->head != my->tail;
        struct errand todo = my->errand[my->head % SLOTS];
        if (any) my->head++;
        pthread_mutex_unlock(&my->mutex);
        if (!any) return NULL;
        finish(my->peer, todo, my->producer);
    }
}
static void send(struct partner *to, struct errand todo) {
    pthread_mutex_lock(&to->mutex);
    to->errand[to->tail++ % SLOTS] = todo;
    pthread_cond_signal(&to->more);
    pthread_mutex_unlock(&to->mutex);
}
static void open_partner(struct partner *my, struct gd_peer *peer, bool producer) {
    *my = (struct partner){.peer = peer, .producer = producer};
    pthread_mutex_init(&my->mutex, NULL);
    pthread_cond_init(&my->more, NULL);
    REQUIRE(pthread_create(&my->thread, NULL, run_errands, my) == 0);
}
static void close_partner(struct partner *my) {
    pthread_mutex_lock(&my->mutex);
    my->over = true;
    pthread_cond_signal(&my->more);
    pthread_mutex_unlock(&my->mutex);
    pthread_join(my->thread, NULL);
}

/* ---- streams --------------------------------------------------------------------------------- */

struct streams {
    /* `captured` is used by this thread alone, because it is captured now and then. */
    gd_stream own[2], captured;
};
static gd_stream any_of(const struct streams *mine) {
    uint64_t k = chance(8);
    return k < 2 ? mine->own[k] : k == 2 ? (gd_stream)GD_LEGACY : k == 3 ? (gd_stream)GD_PER_THREAD : mine->own[0];
}

/* Now and then uses the slot on another stream as well. */
static gd_stream with_another(struct gd_peer *me, const struct streams *mine, uint32_t index, gd_stream stream) {
    struct gd_trouble trouble;
    gd_stream other = any_of(mine);
    return chance(3) == 0 && gd_use_on(me, index, other, &trouble) == GR_OK ? other : stream;
}

/* Tries again, because the legacy default stream takes nothing while another thread captures a
 * stream that waits for it. */
static void write_frame(gd_stream stream, uint32_t index, uint64_t seq) {
    int status;
    while ((status = fc_write(stream, index, seq)) != CU_OK) REQUIRE(gd_is_capture(status));
}
static void read_frame(gd_stream stream, uint32_t index, uint64_t seq, int reader) {
    int status;
    while ((status = fc_read_as(stream, index, seq, reader)) != CU_OK) REQUIRE(gd_is_capture(status));
}

/* Publishing into a capture is refused, and changes nothing. */
static void end_while_captured(struct gd_peer *me, gd_stream stream, uint32_t index, verb_of_device verb) {
    struct gd_call call;
    gd_begin(&call, stream, INT64_MAX, 1, &index);
    uint64_t promised = gr_load_acquire(work_of(ring, index, me->core.self.number));
    fc_begin_capture(stream);
    enum gr_result result = go(me, &call, verb);
    fc_end_capture(stream);
    REQUIRE(result == GR_DEVICE && me->use[index].open);
    REQUIRE(gr_load_acquire(work_of(ring, index, me->core.self.number)) == promised);
}

static void leave(struct gd_peer *me) {
    struct gd_call call;
    enum gr_result result;
    do {
        gd_begin(&call, 0, INT64_MAX, 0, NULL);
        result = go(me, &call, gd_leave);
    } while (result == GR_DEVICE);
    REQUIRE(result == GR_OK);
    REQUIRE(!gd_look_at_released(me) && me->released.n == 0);
    gd_dispose(me);
}

static void prepare(struct gd_peer *me) {
    struct gd_trouble trouble;
    while (gd_prepare(me, &device, gate_host, &trouble) != GR_OK) {
    }
}

/* ---- producers ------------------------------------------------------------------------------- */

static void *produce(void *barrier) {
    static _Atomic uint64_t producers;
    const uint64_t which = atomic_fetch_add(&producers, 1);
    dice = which * 77 + 1;
    struct gd_peer me;
    struct partner partner;
    struct streams mine = {{fc_stream(0, false), fc_stream(0, true)}, fc_stream(0, chance(2))};
    fc_set_device(0);
    REQUIRE(gr_join_producer(ring, &me.core) == GR_OK);
    prepare(&me);
    open_partner(&partner, &me, true);
    pthread_barrier_wait(barrier);
    for (uint64_t n = 0; n < frames_each;) {
        uint32_t indices[BATCH];
        struct gd_call call;
        gd_stream stream = any_of(&mine);
        gd_begin(&call, stream, INT64_MAX, which % 2 || chance(4) ? 1 : BATCH, indices);
        enum gr_result result = go_and_open(&me, &call, gd_claim);
        if (result == GR_DEVICE) continue;
        REQUIRE(result == GR_OK && call.got >= 1);
        alarm(patience_s); /* it does not hang */
        n += call.got;
        for (uint32_t k = 0; k < call.got; k++)
            write_frame(stream, indices[k], me.use[indices[k]].seq);
        /* Where the end of a batch is refused, the frames before the one that was refused are
         * published. */
        if (call.got > 1) {
            uint64_t seqs[BATCH], before = gr_load_relaxed(&ring->peer[me.core.self.number].frames);
            for (uint32_t k = 0; k < call.got; k++) seqs[k] = me.use[indices[k]].seq;
            bool done = end(&me, stream, call.got, indices, gd_publish);
            uint64_t count = gr_load_relaxed(&ring->peer[me.core.self.number].frames) - before;
            REQUIRE(done == (count == call.got));
            for (uint32_t k = 0; k < count; k++) fc_published(seqs[k]), atomic_fetch_add(&published_sum, seqs[k]);
            /* A capture may have forbidden to end or settle one. It stays ours, and all others would
             * wait for it for ever. */
            for (uint32_t k = 0; k < call.got; k++)
                finish_if_open(&me, (struct errand){indices[k], seqs[k], stream}, true);
            continue;
        }
        const uint64_t seq = me.use[*indices].seq;
        bool captured = chance(23) == 0;
        if (captured) end_while_captured(&me, mine.captured, *indices, gd_publish);
        gd_stream last = with_another(&me, &mine, *indices, stream);
        if (last != stream) write_frame(last, *indices, seq);
        struct errand todo = {*indices, seq, last};
        if (which % 2 && !captured && chance(2)) send(&partner, todo);
        else finish(&me, todo, true);
        /* Its work goes on, and the next stream gets its handle. */
        if (which % 2 == 0 && chance(50) == 0) {
            fc_destroy_stream(mine.own[0]);
            mine.own[0] = fc_stream(0, false);
        }
    }
    close_partner(&partner);
    leave(&me);
    return NULL;
}

/* ---- consumers ------------------------------------------------------------------------------- */

struct reader {
    pthread_barrier_t *barrier;
    char name[GR_NAME_WORDS * 8];
    unsigned mode;
    gr_verb verb;
    bool shared;
    int number;
};

static _Thread_local gr_verb acquiring;
static enum gr_result take(struct gd_peer *me, struct gd_call *call, unsigned how) {
    return gd_acquire(me, call, how, acquiring);
}

static void *consume(void *argument) {
    const struct reader *reader = argument;
    dice = (uint64_t)reader->number * 991 + 5;
    struct gd_peer me;
    struct partner partner;
    struct streams mine = {{fc_stream(0, false), fc_stream(0, true)}, fc_stream(0, chance(2))};
    uint64_t last = 0;
    acquiring = reader->verb;
    fc_set_device(0);
    REQUIRE(gr_join_consumer(ring, reader->name, reader->mode, GR_REDELIVER, GR_START_OLDEST, 0, &me.core) == GR_OK);
    prepare(&me);
    open_partner(&partner, &me, false);
    pthread_barrier_wait(reader->barrier);
    for (;;) {
        uint32_t indices[BATCH];
        struct gd_call call;
        gd_stream stream = any_of(&mine);
        gd_begin(&call, stream, INT64_MAX, reader->verb == gr_acquire && chance(3) == 0 ? BATCH : 1, indices);
        enum gr_result result = go_and_open(&me, &call, take);
        if (result == GR_DEVICE) continue;
        if (result == GR_ENDED) break;
        REQUIRE(result == GR_OK);
        for (uint32_t k = 0; k < call.got; k++) {
            const uint64_t seq = me.use[indices[k]].seq;
            if (reader->mode == GR_LOSSLESS && !reader->shared) {
                REQUIRE(seq > last);
                last = seq;
                atomic_fetch_add(&lonely_sum, seq);
            }
            REQUIRE(reader->mode == GR_LOSSY || me.use[indices[k]].lost == 0);
            if (reader->shared) {
                REQUIRE(atomic_exchange(&seen[seq], 1) == 0);
                atomic_fetch_add(&shared_sum, seq);
            }
            read_frame(stream, indices[k], seq, reader->number);
            REQUIRE(!gd_is_torn(&me, indices[k]));
        }
        if (call.got > 1) {
            struct errand todo[BATCH];
            for (uint32_t k = 0; k < call.got; k++) todo[k] = (struct errand){indices[k], me.use[indices[k]].seq, stream};
            /* A capture elsewhere may have left some open. */
            if (!end(&me, stream, call.got, indices, gd_release))
                for (uint32_t k = 0; k < call.got; k++) finish_if_open(&me, todo[k], false);
            continue;
        }
        const uint64_t seq = me.use[*indices].seq;
        bool captured = chance(23) == 0;
        if (captured) end_while_captured(&me, mine.captured, *indices, gd_release);
        gd_stream other = with_another(&me, &mine, *indices, stream);
        if (other != stream) read_frame(other, *indices, seq, reader->number);
        struct errand todo = {*indices, seq, other};
        if (!captured && chance(2)) send(&partner, todo);
        else finish(&me, todo, false);
    }
    close_partner(&partner);
    leave(&me);
    return NULL;
}

/* Joins, reads a little and leaves, again and again: its number and its events are used again. */
static void *churn(void *number) {
    const gd_stream stream = fc_stream(0, false);
    acquiring = gr_acquire;
    dice = (uintptr_t)number;
    uint64_t before = 0;
    unsigned unchanged = 0;
    for (unsigned turn = 0; atomic_load(&churning); turn++) {
        struct gd_peer me;
        char name[GR_NAME_WORDS * 8] = "churn";
        snprintf(name, sizeof name, "churn %d", (int)(uintptr_t)number);
        REQUIRE(gr_join_consumer(ring, name, turn % 2 ? GR_LOSSLESS : GR_LOSSY, GR_REDELIVER, GR_START_OLDEST, 0, &me.core) == GR_OK);
        prepare(&me);
        for (int k = 0; k < 8; k++) {
            struct gd_call call;
            uint32_t index;
            gd_begin(&call, stream, 0, 1, &index);
            if (go_and_open(&me, &call, take) != GR_OK) continue;
            struct errand todo = {index, me.use[index].seq, stream};
            read_frame(stream, index, todo.seq, (int)(uintptr_t)number);
            finish(&me, todo, false);
        }
        leave(&me);
        /* Whoever reads the oldest frame holds the producers up. Where each comes back sooner than a
         * sleeping producer wakes up, no producer would ever claim. So if nobody has claimed during
         * some turns, all who come and go wait for a claim, at the same time, for a while. */
        const uint64_t claims = gr_load_acquire(&ring->head->claim_hint);
        unchanged = claims == before ? unchanged + 1 : 0;
        before = claims;
        for (int k = 0; unchanged >= 16 && k < 100 && gr_load_acquire(&ring->head->claim_hint) == claims; k++)
            usleep(1000);
        if (unchanged >= 16) unchanged = 0;
    }
    return NULL;
}

/* ---- a ring of each kind --------------------------------------------------------------------- */

static void refuse(void) {
    static const enum fc_function functions[] = {FC_stream_write_value, FC_stream_wait_value, FC_stream_batch,
                                                 FC_event_record, FC_stream_wait_event, FC_stream_query};
    for (unsigned k = 0; k < sizeof functions / sizeof *functions; k++) fc_refuse(world, functions[k], 60, 719);
    fc_refuse(world, FC_event_query, 2000, 719);
}

static void run_ring(unsigned sync, bool host, bool refusals_too) {
    struct gr_config config = {.slots = SLOTS, .max_peers = 16, .max_subscriptions = 16, .memory = GR_MEMORY_IPC,
                               .sync = sync, .gate = host ? GR_GATE_HOST : GR_GATE_STREAM, .slot_nbytes = 64,
                               .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    struct gd_trouble trouble;
    int fd = memfd_create("stress", MFD_CLOEXEC);
    ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL);
    gate_host = host;
    published_sum = lonely_sum = shared_sum = refusals = 0;
    memset(seen, 0, sizeof seen);
    fc_forget(world);
    fc_serve_ring(ring);
    REQUIRE(gd_open(&device, &driver, ring, 0, &trouble) == GR_OK);
    if (refusals_too) refuse();

    pthread_barrier_t barrier;
    pthread_t threads[PRODUCERS + CONSUMERS], churners[CHURNERS];
    struct reader readers[CONSUMERS];
    int n = 0;
    pthread_barrier_init(&barrier, NULL, PRODUCERS + CONSUMERS);
    for (int k = 0; k < CONSUMERS; k++) {
        struct reader *reader = &readers[k];
        *reader = (struct reader){.barrier = &barrier, .number = k, .shared = k >= LONELY && k < LONELY + SHARED};
        reader->mode = k < LONELY + SHARED ? GR_LOSSLESS : GR_LOSSY;
        reader->verb = k < LONELY + SHARED + LOSSY ? gr_acquire : gr_latest;
        snprintf(reader->name, sizeof reader->name, reader->shared ? "shared" : "reader %d", k);
        REQUIRE(pthread_create(&threads[n++], NULL, consume, reader) == 0);
    }
    for (int k = 0; k < PRODUCERS; k++) REQUIRE(pthread_create(&threads[n++], NULL, produce, &barrier) == 0);
    churning = true;
    for (int k = 0; k < CHURNERS; k++)
        REQUIRE(pthread_create(&churners[k], NULL, churn, (void *)(uintptr_t)(CONSUMERS + k)) == 0);
    for (int k = 0; k < n; k++) pthread_join(threads[k], NULL);
    churning = false;
    for (int k = 0; k < CHURNERS; k++) pthread_join(churners[k], NULL);
    fc_calm(world);

    REQUIRE(gd_close(&device));
    REQUIRE(!fc_complaint(world), "%s", fc_complaint(world));
    REQUIRE(atomic_load(&lonely_sum) == LONELY * atomic_load(&published_sum));
    REQUIRE(atomic_load(&shared_sum) == atomic_load(&published_sum));
    for (uint32_t k = 0; k < ring->slots * ring->max_peers; k++)
        REQUIRE(gr_load_acquire(&ring->fence[k]) == gr_load_acquire(&ring->work[k]));
    REQUIRE(gr_load_sc(&ring->head->peer_mask[0]) == 0 && atomic_load(&ring->head->waiters) == 0);
    printf("sync %u, gate %d: %llu sequences, %llu refusals: the books balance\n", sync, host,
           (unsigned long long)(gr_frontier(ring) - SLOTS), (unsigned long long)refusals);
    fflush(stdout);
    gr_detach(ring);
    close(fd);
}

int main(int argc, char **argv) {
    if (argc > 1) frames_each = strtoull(argv[1], NULL, 10);
    if (argc > 2) patience_s = (unsigned)atoi(argv[2]);
    alarm(patience_s);
    world = fc_new(false);
    fc_enter(world, &driver);
    fc_expect_whole(world);
    fc_uneven(world);
    fc_start(world);
    for (int refusing = 0; refusing < 2; refusing++)
        for (unsigned sync = GR_SYNC_EVENT; sync <= GR_SYNC_TIMELINE; sync++)
            for (int host = 0; host < 2; host++) run_ring(sync, host, refusing);
    fc_stop();
    return 0;
}

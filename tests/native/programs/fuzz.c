/* Hostile words: a fuzzer of the core with its own generator, for the address and
 * undefined-behaviour sanitizers. Half of the inputs are files to attach to; the others are live
 * rings whose shared words are overwritten between the verbs and, at the fault points, inside them.
 * In some a tracer reads events, and others write to their table between its looks at it.
 * Every table is moved into a heap block of its exact size, so AddressSanitizer reports every index
 * beyond its table, even where the mapping goes on. A verb that does not return counts as a hang.
 * No watchdog runs, so that an input gives the same result each time. Its look at peers is called
 * as one of the verbs.
 *
 *   gcc -std=gnu11 -g -O1 -DGR_FAULTS -fsanitize=address,undefined -fno-sanitize-recover=all \
 *       -pthread tests/native/programs/fuzz.c $(find gpuring/native/core -name '*.c' ! -name watchdog.c ! -name pidfds.c) -o fuzz
 *   ./fuzz --inputs 1000000 --seed 1         --first K --inputs 1: input K again
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "core.h"
/* Included for their static functions. The other files are linked. */
#include "../../../gpuring/native/core/pidfds.c"
#include "../../../gpuring/native/core/watchdog.c"

#include "fuzz.h"

/* ---- verbs ----------------------------------------------------------------------------------- */

static void read_everything(struct gr_ring *r) { /* as snapshot() of native/snapshot.pyx does */
    volatile uint64_t sum = gr_frontier(r), reaps = gr_load_acquire(&r->head->reaps);
    for (uint64_t k = 0; k < GR_DEATHS && k < reaps; k++) sum += r->head->deaths[(reaps - 1 - k) % GR_DEATHS].pid;
    for (uint32_t i = 0; i < r->slots; i++) {
        for (uint32_t p = 0; p < r->max_peers; p++) sum += *fence_of(r, i, p) < *work_of(r, i, p) || gr_torn(r, i, p, p, sum);
        for (uint32_t u = 0; u < r->max_subscriptions; u++) sum += take_of(r, i, u)->word;
    }
    for (uint32_t p = 0; p < r->max_peers; p += 1 + below(4)) sum += gr_peer_alive(r, p);
    struct gr_watermark mark;
    struct gr_ahead clock;
    sum += gr_link(r, &mark);
    sum += gr_clock(r, &clock);
    sum += gr_creator_alive(r) + gr_attached(r);
}
static void check(struct gr_peer *me, enum gr_result result) {
    REQUIRE(result >= GR_OK && result <= GR_SYSTEM && result != GR_LOCK_TIMEOUT && result != GR_FORKED);
    if (result != GR_OK) return;
    REQUIRE(me->last.index < me->ring->slots && me->last.pendings <= me->ring->max_peers + 1);
    for (uint32_t k = 0; k < me->last.pendings; k++) {
        REQUIRE(me->last.pending[k].peer < me->ring->max_peers);
        gr_load_acquire(fence_of(me->ring, me->last.index, me->last.pending[k].peer));
    }
    if (me->self.role == GR_CONSUMER) gr_torn(me->ring, me->last.index, me->last.producer, me->last.producer_id, me->last.value);
}
static bool join(struct gr_ring *ring, struct gr_peer *me, int kind) {
    static const char names[][GR_NAME_WORDS * 8] = {"alone", "shared", "lossy", "other"};
    enum gr_result result = kind < 2 ? gr_join_producer(ring, me)
        : gr_join_consumer(ring, names[kind - 2], kind == 4 ? GR_LOSSY : GR_LOSSLESS,
                           kind == 3 ? GR_DROP : GR_REDELIVER, (enum gr_start)below(3), below(100), me);
    check(me, result);
    if (result != GR_OK) me->ring = NULL; /* it is not in a ring */
    return result == GR_OK;
}
static void subscribe(struct gr_ring *ring) { /* durable subscriptions, which need no peer */
    static const char names[][GR_NAME_WORDS * 8] = {"shared", "lossy", "other"};
    const char *name = names[below(COUNT(names))];
    const struct gr_terms terms = {.mode = name == names[1] ? GR_LOSSY : GR_LOSSLESS, .from = (enum gr_start)below(3),
                                   .policy = name == names[0] ? GR_DROP : GR_REDELIVER, .start = below(100),
                                   .patience_ns = below(3), .owed = below(9), .earlier = below(4)};
    uint32_t u = below(ring->max_subscriptions);
    uint64_t owed;
    bool found;
    switch (doing = "a durable subscription", below(8)) {
    default: gr_subscribe(ring, name, &terms); break;
    case 3: gr_unsubscribe(ring, name, &found); break;
    case 4: gr_give_up_late(ring); break;
    case 5: gr_owed(ring, u, &owed); break;
    case 6: gr_settle(ring, u, 2 + below(9), below(9)); break;
    case 7: gr_being_settled(ring, u) ? gr_settled(ring, u) : gr_all_settled(ring, u); break;
    }
}
static void verb(struct gr_peer *me) {
    static const uint64_t shape[GR_MAX_NDIM] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct gr_ring *ring = me->ring;
    if (!ring) return;
    uint64_t value, reaped[GR_MASK_WORDS];
    bool producer = me->self.role == GR_PRODUCER;
    struct gr_culprit culprit;
    gr_verb look = producer ? gr_claim
        : me->self.mode == GR_LOSSY && below(2) ? gr_latest : gr_acquire;
    me->wait.deadline_ns = 0;
    switch (doing = "a verb", below(28)) {
    default: gr_look(me, &value, &culprit), check(me, look(me)); break;
    case 8: check(me, gr_sleep(me, look)); break;
    case 9: check(me, gr_spin(me, look)); break;
    case 10: case 11: case 12: case 13:
        value = gr_promise(me, me->last.index, me->last.seq);
        if (below(4)) gr_raise_to(fence_of(ring, me->last.index, me->self.number), value);
        if (!producer) check(me, gr_release(me, me->last.index, me->last.seq));
        else check(me, gr_publish(me, me->last.index, me->last.seq, value, below(GR_MAX_NDIM + 1), shape));
        break;
    case 14: (producer ? gr_abandon : gr_give_back)(me, me->last.index, me->last.seq); break;
    case 15: if (!producer) gr_skip_torn(me); break;
    case 16: gr_holds(me, below(ring->slots), &value); break;
    case 17: read_everything(ring); break;
    case 18: REQUIRE(gr_reap_dead(ring, reaped) == GR_OK); break;
    case 19:
        refresh(ring);
        while (process_count) forget_process(process_count - 1);
        break;
    case 20: if (!below(4)) gr_close(ring); break;
    case 22:
        if (producer) gr_set_origin(me, me->last.index, me->last.seq, &(struct gr_origin){below(50), below(50), below(50)});
        break;
    case 23: gr_set_link(ring, &(struct gr_watermark){.epoch = {(uint8_t)below(2)}, .seq = below(50), .lost = below(9)}); break;
    case 24: producer ? gr_drop(me) : gr_pay(me); break;
    case 25: case 26: subscribe(ring); break;
    case 27: /* as if they had been dropped while somebody else had LOCK */
        if (below(2)) gr_drop_all(ring);
        gr_leave_late(ring);
        break;
    case 21: if (gr_leave(me) == GR_OK || below(2)) join(ring, me, (int)below(6)); break;
    }
}
static void fuzz_live(struct live *live) {
    struct gr_ring *ring = live->ring;
    for (int k = 0; k < TABLES; k++) memcpy(live->table[k], live->first_table[k], live->nbytes[k]);
    memcpy(live->peer, live->first, sizeof live->peer);
    /* Undoes the joins and leaves of the input before. */
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        short type = live->first_mine[p] ? F_WRLCK : F_UNLCK;
        struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = p, .l_len = 1};
        if (!ring->mine[p] != !live->first_mine[p]) REQUIRE(fcntl(ring->lock_fd, F_OFD_SETLK, &lock) == 0);
    }
    memcpy(ring->mine, live->first_mine, sizeof ring->mine);
    ring->unwatchable = false;
    for (uint32_t k = below(12); k > 0; k--) verb(&live->peer[below(PEERS)]);
    hostile = live;
    for (uint32_t turn = 1 + below(4); turn > 0; turn--) {
        for (uint32_t k = below(4); k > 0; k--) corrupt(live);
        inside = (int)below(4);
        for (uint32_t k = 1 + below(5); k > 0; k--) verb(&live->peer[below(PEERS)]);
    }
    hostile = NULL;
}

/* ---- events, which a tracer reads while they are written --------------------------------------- */

static struct live traced; /* a ring of its own, because its file is longer */
static struct gr_tracer *tracer;
static const struct gr_peer *writer; /* of this input */
static void (*meanwhile)(void);      /* what others do before each look of the tracer */

ssize_t pread(int fd, void *to, size_t nbytes, off_t at) {
    if (meanwhile) meanwhile();
    return syscall(SYS_pread64, fd, to, nbytes, at);
}

/* Events whose words agree with each other. */
static void write_events(void) {
    for (uint32_t k = below(8) ? below(8) : below(3 * GR_TRACE_EVENTS); k > 0; k--) {
        const uint64_t a = random64();
        gr_trace(writer, 0, GR_DID_BEGIN, a, ~a, a + 1);
    }
}
static void damage_events(void) {
    write_events();
    struct gr_trace_table *table = traced.ring->events + writer->self.number;
    uint64_t *word = (uint64_t *)&table->count;
    if (below(3)) word = (uint64_t *)&table->event[(table->count - below(4)) % GR_TRACE_EVENTS] + below(8);
    *word = any_value(*word, table->count, table->count);
}
static void read_events(bool honest) {
    const uint32_t p = writer->self.number, n = 1 + below(below(2) ? 16 : 2 * GR_TRACE_EVENTS);
    struct gr_trace_event *events = malloc(n * sizeof *events); /* of its exact size */
    const uint64_t next = tracer->next[p], missed = tracer->missed[p];
    const int got = gr_trace_read(tracer, p, events, n);
    REQUIRE(got >= 0 && (uint32_t)got <= n);
    const uint64_t first = tracer->next[p] - (uint32_t)got;
    uint32_t whole = 0;
    for (uint32_t k = 0; k < (uint32_t)got; k++) {
        const struct gr_trace_event *event = &events[k];
        if (!event->turn) continue;
        REQUIRE(event->turn == first + k + 1);
        whole++;
        if (honest) REQUIRE(event->about[1] == ~event->about[0] && event->about[2] == event->about[0] + 1);
    }
    REQUIRE(!honest || tracer->next[p] - next == whole + tracer->missed[p] - missed);
    free(events);
}
static void fuzz_events(void) {
    const bool honest = below(2);
    writer = &traced.first[below(PEERS)];
    if (!honest) fuzz_live(&traced); /* its verbs write events as well */
    traced.ring->head->traced_until_ns = INT64_MAX;
    write_events();
    const uint32_t p = writer->self.number;
    if (honest || below(2)) traced.ring->events[p].count = 0; /* else that of an input before */
    tracer->next[p] = traced.ring->events[p].count, tracer->blank_ns[p] = 0;
    meanwhile = honest ? write_events : damage_events;
    for (uint32_t k = below(6); k > 0; k--) meanwhile(), read_events(honest);
    meanwhile = NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool fuzz_file(struct live *from) {
    size_t size = from->file_nbytes, now = size;
    memcpy(from->file, from->first_file, size);
    for (uint32_t k = below(5); k > 0; k--) {
        size_t reach = below(3) ? 192 : size; /* overwrites the fixed part, or anything */
        uint64_t word, other, at = below(reach / 4) * 4, width = at % 8 || below(2) ? 4 : 8;
        memcpy(&word, from->file + at / 8 * 8, 8);
        memcpy(&other, from->file + below(192 / 4 - 1) * 4, 8);
        word = any_value(word, other, from->ring->slots);
        if (below(3)) memcpy(from->file + at, &word, width);
        else from->file[below(reach)] ^= (uint8_t)word;
    }
    if (below(8) == 0) now = below(3) ? size + GR_PAGE - below(3) * GR_PAGE : below(2 * size);
    if (now != size) REQUIRE(ftruncate(from->fd, (off_t)now) == 0);
    struct live got = {0};
    const char *why;
    char text[256];
    doing = "read";
    struct gr_ring *copy = gr_read(from->fd, &why, text, sizeof text);
    if (copy) read_everything(copy), gr_detach(copy);
    doing = "attach";
    struct gr_ring *ring = got.ring = gr_attach(from->fd, &why, text, sizeof text);
    REQUIRE(!ring == !copy);
    if (!ring) REQUIRE(why && memchr(text, 0, sizeof text) && strlen(text) > 10);
    else {
        REQUIRE(ring->layout.nbytes == now && ring->spec + ring->config.spec_nbytes <= (uint8_t *)ring->head + now);
        for (size_t at = 0; at < now; at += 512) ((volatile uint8_t *)ring->head)[at];
        isolate(&got);
        read_everything(ring);
        gr_reap_dead(ring, NULL);
        for (int kind = 0; kind < PEERS; kind += 1 + (int)below(3))
            if (join(ring, &got.peer[kind], kind)) for (uint32_t k = below(6); k > 0; k--) verb(&got.peer[kind]);
        read_everything(ring);
        for (int k = 0; k < TABLES; k++) *place(ring, k) = got.mapped[k], free(got.table[k]);
        gr_detach(ring);
    }
    if (now != size) REQUIRE(ftruncate(from->fd, (off_t)size) == 0);
    return ring != NULL;
}

/* ---- valid rings ----------------------------------------------------------------------------- */

/* Makes a ring with frames in it, one being written, one held, and (if there is room) three peers
 * that died at work. Where there is room for a crowd, the numbers of all these are beyond the first
 * word of the masks. */
static void begin(struct live *live, struct gr_config config) {
    uint8_t zeros[64] = {0};
    const char *why;
    char text[256];
    config.slot_nbytes = 64, config.spec_nbytes = 11;
    live->fd = memfd_create("fuzz", MFD_CLOEXEC);
    struct gr_ring *ring = live->ring = gr_create(live->fd, &config, zeros, zeros, zeros, "{\"spec\": 1}");
    struct gr_ring *ghost = gr_attach(live->fd, &why, text, sizeof text);
    struct gr_peer dead[DEAD], *p = &live->peer[0];
    bool room = config.max_peers >= PEERS + DEAD;
    static struct gr_peer crowd;
    for (uint32_t k = 0; k < CROWD && config.max_peers > CROWD + PEERS + DEAD; k++) {
        char name[GR_NAME_WORDS * 8] = "crowd ";
        snprintf(name + 6, 8, "%u", k);
        REQUIRE(gr_join_consumer(ring, name, GR_LOSSY, GR_REDELIVER, GR_START_NEXT, 0, &crowd) == GR_OK);
    }
    for (int kind = 0; kind < PEERS; kind++) REQUIRE(join(ring, &live->peer[kind], kind));
    for (int k = 0; k < DEAD && room; k++) REQUIRE(join(ghost, &dead[k], k + 1));
    for (int n = config.slots > 3 ? 2 : 1; n > 0; n--) {
        REQUIRE(gr_claim(p) == GR_OK);
        uint64_t value = gr_promise(p, p->last.index, p->last.seq);
        gr_raise_to(fence_of(ring, p->last.index, p->self.number), value);
        REQUIRE(gr_publish(p, p->last.index, p->last.seq, value, 0, NULL) == GR_OK);
    }
    if (room) gr_acquire(&dead[2]), gr_claim(&dead[0]);
    gr_acquire(&live->peer[4]);
    gr_claim(&live->peer[1]);
    live->file_nbytes = ring->layout.nbytes;
    live->file = mmap(NULL, live->file_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, live->fd, 0);
    live->first_file = memcpy(malloc(live->file_nbytes), live->file, live->file_nbytes);
    gr_detach(ghost);
    isolate(live);
    for (int k = 0; k < TABLES; k++)
        live->first_table[k] = memcpy(malloc(live->nbytes[k]), live->table[k], live->nbytes[k]);
    memcpy(live->first, live->peer, sizeof live->peer);
    memcpy(live->first_mine, ring->mine, sizeof ring->mine);
}

int main(int argc, char **argv) {
    static const struct gr_config configs[GEOMETRIES] = {
        {.slots = 4, .max_peers = 8, .max_subscriptions = 4},
        {.slots = 1, .max_peers = 5, .max_subscriptions = 3},
        {.slots = 3, .max_peers = 64, .max_subscriptions = 64, .meta_nbytes = 24},
        {.slots = 3, .max_peers = 250, .max_subscriptions = 250},
        {.slots = 7, .max_peers = 9, .max_subscriptions = 5, .memory = GR_MEMORY_IPC, .sync = GR_SYNC_TIMELINE},
        {.slots = 2, .max_peers = 8, .max_subscriptions = 3, .memory = GR_MEMORY_IPC, .sync = GR_SYNC_EVENT, .gate = GR_GATE_HOST},
        {.slots = 32, .max_peers = 16, .max_subscriptions = 8, .memory = GR_MEMORY_PINNED, .sync = GR_SYNC_TIMELINE}};
    uint64_t inputs = 50000, first = 0, files = 0, attached = 0;
    begin_run(argc, argv, &inputs, &first);
    for (int k = 0; k < GEOMETRIES; k++) begin(&lives[k], configs[k]);
    const char *why;
    char text[256];
    begin(&traced, configs[0]);
    REQUIRE(tracer = gr_trace_begin(traced.fd, &why, text, sizeof text));
    /* Its own head is a copy, which each input makes anew. */
    traced.ring->head->traced_until_ns = ((struct gr_head *)traced.first_table[0])->traced_until_ns = INT64_MAX;
    writer = traced.first;
    while (!traced.ring->events) write_events();
    int64_t start = gr_now_ns();
    for (input = first; input < first + inputs; input++) {
        rng = seed * 0x2545f4914f6cdd1du + input * 0xda942042e4dd58b5u;
        struct live *live = &lives[below(GEOMETRIES)];
        if (input % 16 == 1) fuzz_events();
        else if (input % 2) fuzz_live(live);
        else files++, attached += fuzz_file(live);
    }
    printf("{\"inputs\": %llu, \"files\": %llu, \"attached\": %llu, \"live\": %llu, \"findings\": 0, "
           "\"seed\": %llu, \"seconds\": %.1f}\n", (ull)inputs, (ull)files, (ull)attached, (ull)(inputs - files),
           (ull)seed, (double)(gr_now_ns() - start) / 1e9);
    return 0;
}

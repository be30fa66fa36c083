/* A turn of a producer and of a consumer through the verbs of device/, and what each writes into
 * the book.
 *
 * What the library said of a frame (torn or not) is compared with what the reader's kernel found,
 * once the GPU is done. A frame that was not whole must be called torn. A frame whose producer's
 * GPU has done its fence operation must not. The only exception is the first case of
 * docs/failure.md: a slow reader may look when the next owner of the producer's number has died,
 * too.
 */
#include "device_kill.h"

#include <stdlib.h>

static uint64_t handed[MAX_SEQ];
static uint32_t handed_count;
static struct { uint64_t id; uint32_t number; } producer[MAX_SEQ];
static bool told[MAX_SEQ], hidden[MAX_SEQ];

typedef enum gr_result (*verb_of_device)(struct gd_peer *me, struct gd_call *call, unsigned how);

static gr_verb which; /* gr_acquire or gr_latest */
static enum gr_result take(struct gd_peer *me, struct gd_call *call, unsigned how) {
    return gd_acquire(me, call, how, which);
}

static enum gr_result to_the_end(struct gd_peer *me, struct gd_call *call, verb_of_device verb) {
    unsigned how = GD_WAIT;
    enum gr_result result;
    while ((result = verb(me, call, how)) == GR_SIGNAL) how |= GD_AGAIN;
    return result;
}

static enum gr_result run(struct gd_peer *me, struct gd_call *call, uint32_t *index, verb_of_device verb) {
    if (self.survivor && gr_ready(&me->core) == GR_BLOCKED) self.survivor->blocked = true;
    gd_begin(call, streams[chance(2)], self.impatient ? 0 : INT64_MAX, 1, index);
    enum gr_result result = to_the_end(me, call, verb);
    if (result == GR_OK) me->use[*index].open = true;
    return result;
}

/* The stream for the kernel: that of the call, or another one on which the slot is used, too. */
static gd_stream some_stream(struct gd_peer *me, const struct gd_call *call, uint32_t index) {
    struct gd_trouble trouble;
    if (by_cpu || chance(4)) return call->stream;
    gd_stream other = streams[chance(2)];
    REQUIRE(gd_use_on(me, index, other, &trouble) == GR_OK, "%d: %d", trouble.where, trouble.status);
    return other;
}

/* For a process that uses the slots by the CPU. It waits here until the fake GPU has done the work,
 * so the work is complete before the next fault point, as that of a CPU is. */
static bool is_read(uint64_t seq) { return fc_reading(world, fc_process(), seq) != FC_READING; }
static bool is_written(uint64_t seq) { return fc_frame(world, seq) & FC_WRITTEN; }
static void await(bool (*done)(uint64_t seq), uint64_t seq) {
    for (int64_t end = gr_now_ns() + (int64_t)deadline_ms * 1000000; !done(seq); nap(20))
        REQUIRE(gr_now_ns() < end, "the work on frame %llu is not done", LL seq);
}

/* False: the ring was closed. */
bool produce(struct gr_peer *peer) {
    struct gd_peer *me = (struct gd_peer *)peer;
    struct gd_call call;
    uint32_t index;
    enum gr_result result = run(me, &call, &index, gd_claim);
    if (result == GR_CLOSED || result == GR_BLOCKED) return false;
    REQUIRE(result == GR_OK, "claim: %d, %d: %d", result, call.trouble.where, call.trouble.status);
    const uint64_t seq = me->use[index].seq;
    REQUIRE(seq < MAX_SEQ, "the book is full");
    struct frame *frame = &book->frame[seq];
    gd_stream stream = some_stream(me, &call, index);
    bool unfinished = !by_cpu && self.target && chance(4) == 0;
    if (unfinished) fc_hold_stream(stream, true);
    REQUIRE(fc_write(stream, index, seq) == CU_OK);
    if (by_cpu) await(is_written, seq);
    gd_begin(&call, chance(3) ? stream : streams[chance(2)], INT64_MAX, 1, &index);
    if (!unfinished && chance(13) == 0) {
        REQUIRE(to_the_end(me, &call, gd_abandon) == GR_OK);
        return true;
    }
    /* A victim is an importer, too, as in kill/verbs.c. */
    bool brings = self.victim && (self.role == PRODUCER || self.role == CREATOR);
    struct gr_origin origin = {.seq = seq};
    if (brings) REQUIRE(gr_set_origin(peer, index, seq, &origin) == GR_OK);
    atomic_store(&frame->published, IN_FLIGHT);
    fc_pay_for(seq);
    REQUIRE(to_the_end(me, &call, gd_publish) == GR_OK);
    fc_pay_for(0);
    if (by_cpu) fc_paid(seq);
    fc_published(seq);
    if (brings) gr_set_link(ring, &(struct gr_watermark){.epoch = "near", .seq = seq});
    if (unfinished) {
        GR_FAULT("device: unfinished");
        fc_hold_stream(stream, false);
    }
    progress();
    return true;
}

/* Another peer has had the number of the frame's producer since, and died with GPU work pending on
 * the slot. Its mark has taken the place of the producer's. */
static bool is_hidden(uint64_t seq) {
    const struct gr_tear *mark = tear_of(ring, (uint32_t)(seq % ring->slots), producer[seq].number);
    return (gr_load_acquire(&mark->id) & ~GR_MARKING) > producer[seq].id;
}

/* Writes into the book that this reader knows the frame to be torn. */
static void tell(uint64_t seq) {
    told[seq] = true;
    hidden[seq] = is_hidden(seq);
}

/* Once the reading is done, what is known of a held frame is final. */
static void look_while_held(struct gd_peer *me, uint32_t index, uint64_t seq) {
    await(is_read, seq);
    bool whole = fc_reading(world, fc_process(), seq) == FC_WHOLE, known = gd_is_torn(me, index);
    REQUIRE(whole || known, "frame %llu, which is held, is torn and not known to be", LL seq);
    REQUIRE(!known || is_hidden(seq) || !(fc_frame(world, seq) & FC_PAID),
            "frame %llu, which is held, is whole and called torn", LL seq);
}

/* Takes the report of frames that turned out torn after their release. */
static void hear(struct gd_peer *me) {
    uint64_t seqs[16];
    size_t n;
    do {
        n = gd_take_torn(me, seqs, 16);
        for (size_t k = 0; k < n; k++) tell(seqs[k]);
    } while (n);
}

enum gr_result consume(struct gr_peer *peer, gr_verb verb, enum of of) {
    struct gd_peer *me = (struct gd_peer *)peer;
    gr_word *torn = &ring->peer[peer->self.number].torn;
    uint64_t torn_before = gr_load_relaxed(torn);
    struct gd_call call;
    uint32_t index;
    enum gr_result result;
    which = verb;
    while ((result = run(me, &call, &index, take)) == GR_TORN_BEHIND) hear(me);
    REQUIRE(result != GR_DEVICE, "acquire: %d: %d", call.trouble.where, call.trouble.status);
    if (result != GR_OK) return result;
    struct gd_use *use = &me->use[index];
    const uint64_t seq = use->seq;
    REQUIRE(seq < MAX_SEQ);
    struct frame *frame = &book->frame[seq];
    if (of != OF_SHARED) {
        REQUIRE(seq > self.last, "%llu after %llu", LL seq, LL self.last);
        uint64_t gap = seq - self.last - 1, known_lost = use->lost + gr_load_relaxed(torn) - torn_before;
        REQUIRE(of != OF_LOSSY || self.last == 0 || known_lost == gap, "%llu of %llu", LL known_lost, LL gap);
        for (uint64_t s = self.last + 1; of == OF_OWN && self.last && s < seq; s++)
            REQUIRE(atomic_load(&book->frame[s].published) != PUBLISHED, "%llu skipped", LL s);
        self.last = seq;
    }
    REQUIRE(of == OF_LOSSY || use->lost == 0);
    if (of == OF_LONE) atomic_fetch_add(&frame->lone, 1);
    if (of == OF_SHARED) {
        if (use->redelivered) atomic_store(&frame->redelivered, 1);
        atomic_fetch_add(self.target ? &frame->mortal : &frame->shared, 1);
    }
    if (of == OF_SHARED && self.target && chance(4) == 0) { /* the user has not seen it */
        atomic_fetch_add(&frame->given, 1);
        REQUIRE(gd_put_back(me, index, chance(2)) == GR_OK);
        return GR_OK;
    }
    gd_stream stream = some_stream(me, &call, index);
    bool unfinished = !by_cpu && self.target && chance(4) == 0;
    if (unfinished) fc_hold_stream(stream, true);
    handed[handed_count++] = seq;
    told[seq] = hidden[seq] = false;
    producer[seq].id = use->producer_id;
    producer[seq].number = use->producer;
    REQUIRE(fc_read(stream, index, seq) == CU_OK);
    if (by_cpu) await(is_read, seq);
    if (!unfinished && chance(16) == 0) look_while_held(me, index, seq);
    /* A lossy reader holds on for long enough to be met by claims (H1: holds of more than a
     * lap). */
    if (chance(of == OF_LOSSY ? 4 : 32) == 0) nap(100);
    if (of == OF_SHARED && self.target) atomic_store(&frame->released, RELEASING);
    gd_begin(&call, chance(3) ? stream : streams[chance(2)], INT64_MAX, 1, &index);
    REQUIRE(to_the_end(me, &call, gd_release) == GR_OK);
    if (call.torns > 0) tell(seq);
    if (of == OF_SHARED && self.target) atomic_store(&frame->released, RELEASED);
    if (unfinished) {
        GR_FAULT("device: unfinished");
        fc_hold_stream(stream, false);
    }
    progress();
    return GR_OK;
}

void settle_in(struct gr_peer *peer) {
    struct gd_peer *me = (struct gd_peer *)peer;
    struct gd_trouble trouble;
    gr_watch(ring);
    bool host = kind_of_ring() == WORDS_HOST || kind_of_ring() == EVENTS_HOST;
    REQUIRE(gd_prepare(me, by_cpu ? NULL : &device, host, &trouble) == GR_OK, "%d: %d", trouble.where, trouble.status);
}

/* Waits until the GPU has done everything: what the library said of every frame must then be
 * true. */
void leave(struct gr_peer *peer) {
    struct gd_peer *me = (struct gd_peer *)peer;
    struct gd_call call;
    gd_begin(&call, streams[0], INT64_MAX, 0, NULL);
    enum gr_result result = to_the_end(me, &call, gd_leave);
    REQUIRE(result == GR_OK, "leave: %d", result);
    if (gd_look_at_released(me)) hear(me);
    REQUIRE(me->released.n == 0, "of %zu frames nobody knows how they ended", (size_t)me->released.n);
    gd_dispose(me);
    for (uint32_t k = 0; k < handed_count; k++) {
        uint64_t seq = handed[k];
        int reading = fc_reading(world, fc_process(), seq);
        REQUIRE(reading == FC_WHOLE || reading == FC_BROKEN, "frame %llu: its reading is not done", LL seq);
        REQUIRE(told[seq] || reading == FC_WHOLE, "frame %llu is torn, and nobody said so (%x)", LL seq,
                fc_frame(world, seq));
        REQUIRE(!told[seq] || hidden[seq] || !(fc_frame(world, seq) & FC_PAID),
                "frame %llu is whole, and was called torn", LL seq);
    }
    handed_count = 0;
    REQUIRE(fc_complaint(world) == NULL, "%s", fc_complaint(world));
}

/* The verbs: a turn of a producer and of a consumer, and what each writes into the book.
 *
 * Frames go through the ring only here, so this file says what a reader may find. The book is
 * written around a call: first that it begins, then that it is done. So a death in between shows.
 */
#include "kill.h"

static enum gr_result run(struct gr_peer *me, gr_verb verb) {
    me->wait.deadline_ns = INT64_MAX;
    enum gr_result result = self.sleepy ? gr_sleep(me, verb) : verb(me);
    if (self.impatient) return result;
    if (result == GR_BLOCKED && self.survivor) self.survivor->blocked = true;
    if (result == GR_BLOCKED) result = gr_spin(me, verb);
    while (result == GR_BLOCKED || result == GR_SIGNAL) result = gr_sleep(me, verb);
    return result;
}

static uint64_t content(uint64_t seq, int k) { return mix(seq * WORDS + (uint64_t)k); }
static void write_frame(const struct gr_peer *me) {
    for (int k = 0; k < WORDS; k++) book->data[me->last.index][k] = content(me->last.seq, k);
}
static void await_fences(struct gr_peer *me) {
    for (uint32_t k = 0; k < me->last.pendings; k++)
        while (gr_load_acquire(fence_of(ring, me->last.index, me->last.pending[k].peer)) < me->last.pending[k].value) gr_reap_dead(ring, NULL);
}

/* False: the ring was closed. */
bool produce(struct gr_peer *me) {
    enum gr_result result = run(me, gr_claim);
    if (result == GR_CLOSED || result == GR_BLOCKED) return false;
    REQUIRE(result == GR_OK, "claim: %d", result);
    REQUIRE(me->last.seq < MAX_SEQ, "the book is full");
    await_fences(me);
    struct frame *frame = &book->frame[me->last.seq];
    gr_word *fence = fence_of(ring, me->last.index, me->self.number);
    bool unfinished = self.target && chance(4) == 0;
    if (!unfinished) write_frame(me);
    /* Others promise nothing: a CPU has written the frame. */
    uint64_t value = unfinished || chance(2) ? gr_promise(me, me->last.index, me->last.seq) : 0;
    if (!unfinished) gr_raise_to(fence, value);
    if (!unfinished && chance(13) == 0) {
        REQUIRE(gr_abandon(me, me->last.index, me->last.seq) == GR_OK);
        return true;
    }
    /* A victim is an importer, too: link.c (tests/native/programs/link.c has the whole of it). */
    bool brings = self.victim && (self.role == PRODUCER || self.role == CREATOR);
    struct gr_origin origin = {.seq = me->last.seq};
    if (brings) REQUIRE(gr_set_origin(me, me->last.index, me->last.seq, &origin) == GR_OK);
    atomic_store(&frame->published, IN_FLIGHT);
    REQUIRE(gr_publish(me, me->last.index, me->last.seq, value, 0, NULL) == GR_OK);
    if (brings) {
        gr_set_link(ring, &(struct gr_watermark){.epoch = "near", .seq = me->last.seq});
        atomic_store(&book->linked, me->last.seq);
    }
    if (unfinished) {
        GR_FAULT("device: unfinished");
        write_frame(me);
        gr_raise_to(fence, value);
    }
    atomic_store(&frame->published, PUBLISHED);
    progress();
    return true;
}

/* The last frame in each slot that this process has had, and that was whole. No death makes it torn
 * afterwards, except that of a later owner of the producer's number. */
static struct { uint32_t producer; uint64_t id, value; } had[MAX_SLOTS];

static void ask_again(void) {
    for (uint32_t i = 0; i < ring->slots; i++)
        if (had[i].id && gr_torn(ring, i, had[i].producer, had[i].id, had[i].value))
            REQUIRE((gr_load_acquire(&tear_of(ring, i, had[i].producer)->id) & ~GR_MARKING) > had[i].id,
                    "slot %u value %#llx", i, LL had[i].value);
}

enum gr_result consume(struct gr_peer *me, gr_verb verb, enum of of) {
    gr_word *torn = &ring->peer[me->self.number].torn;
    uint64_t torn_before = gr_load_relaxed(torn);
    me->last.lost = 0;
    enum gr_result result = run(me, verb);
    if (result != GR_OK) return result;
    REQUIRE(me->last.seq < MAX_SEQ);
    struct frame *frame = &book->frame[me->last.seq];
    gr_word *fence = fence_of(ring, me->last.index, me->self.number);
    await_fences(me);
    ask_again();
    if (of != OF_SHARED) {
        REQUIRE(me->last.seq > self.last, "%llu after %llu", LL me->last.seq, LL self.last);
        uint64_t gap = me->last.seq - self.last - 1, known_lost = me->last.lost + gr_load_relaxed(torn) - torn_before;
        REQUIRE(of != OF_LOSSY || self.last == 0 || known_lost == gap, "%llu of %llu", LL known_lost, LL gap);
        for (uint64_t s = self.last + 1; of == OF_OWN && self.last && s < me->last.seq; s++)
            REQUIRE(atomic_load(&book->frame[s].published) != PUBLISHED, "%llu skipped", LL s);
        self.last = me->last.seq;
    }
    REQUIRE(of == OF_LOSSY || me->last.lost == 0);
    if (gr_torn(ring, me->last.index, me->last.producer, me->last.producer_id, me->last.value)) {
        REQUIRE(atomic_load(&frame->published) == IN_FLIGHT, "frame %llu torn", LL me->last.seq);
        gr_skip_torn(me);
        return GR_OK;
    }
    had[me->last.index].producer = me->last.producer, had[me->last.index].id = me->last.producer_id, had[me->last.index].value = me->last.value;
    if (of == OF_LONE) atomic_fetch_add(&frame->lone, 1);
    if (of == OF_SHARED) {
        if (me->last.redelivered) atomic_store(&frame->redelivered, 1);
        atomic_fetch_add(self.target ? &frame->mortal : &frame->shared, 1);
    }
    for (int k = 0; k < WORDS; k++)
        REQUIRE(book->data[me->last.index][k] == content(me->last.seq, k), "frame %llu word %d", LL me->last.seq, k);
    /* As if its stream could not be ordered, or its program was ended. */
    if (of == OF_SHARED && self.target && chance(4) == 0) {
        atomic_fetch_add(&frame->given, 1);
        REQUIRE((chance(2) ? gr_give_back : gr_return)(me, me->last.index, me->last.seq) == GR_OK);
        return GR_OK;
    }
    /* A lossy reader holds on for long enough to be met by claims (H1: holds of more than a
     * lap). */
    if (chance(of == OF_LOSSY ? 4 : 32) == 0) nap(100);
    bool unfinished = self.target && chance(4) == 0;
    uint64_t seq = me->last.seq, value = unfinished || chance(2) ? gr_promise(me, me->last.index, seq) : 0;
    if (!unfinished) gr_raise_to(fence, value);
    if (of == OF_SHARED && self.target) atomic_store(&frame->released, RELEASING);
    REQUIRE(gr_release(me, me->last.index, seq) == GR_OK);
    if (of == OF_SHARED && self.target) atomic_store(&frame->released, RELEASED);
    if (unfinished) {
        GR_FAULT("device: unfinished");
        gr_raise_to(fence, value);
    }
    progress();
    return GR_OK;
}

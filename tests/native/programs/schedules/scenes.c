/* The scenes of frames, subscriptions, membership and deaths. Each is named by a hole that it
 * watches over (docs/holes.md). */
#include "schedules.h"

static const char name[GR_NAME_WORDS * 8] = "x";
static const struct gr_terms durable = {.from = GR_START_OLDEST, .patience_ns = 1};

struct gr_peer producer, reader;
static struct gr_peer second;
static enum gr_result result; /* of the one */
static uint64_t value;        /* that the dead one has promised */

void join(struct gr_ring *ring, struct gr_peer *me, unsigned mode) {
    REQUIRE(gr_join_consumer(ring, name, mode, GR_REDELIVER, GR_START_OLDEST, 0, me) == GR_OK);
}

/* False: the producer is blocked. */
bool publish(void) {
    uint64_t paid;
    if (gr_claim(&producer) != GR_OK) return false;
    pay(&producer, &paid);
    REQUIRE(gr_publish(&producer, producer.last.index, producer.last.seq, paid, 0, NULL) == GR_OK);
    return true;
}

static void produce(struct gr_ring *ring, int frames) {
    REQUIRE(gr_join_producer(ring, &producer) == GR_OK);
    while (frames--) REQUIRE(publish());
}

static void release(struct gr_peer *me) {
    uint64_t paid;
    pay(me, &paid);
    REQUIRE(gr_release(me, me->last.index, me->last.seq) == GR_OK);
}

static unsigned mode_now(void) { return mode_of(gr_load_sc(&mine->sub[reader.self.u].word)); }

/* ---- a newcomer and a claim ------------------------------------------------------------------ */

static void set_empty(void) { produce(mine, 0); }
static void set_full(void) { produce(mine, SLOTS); }
static void set_begun(void) { produce(mine, 1); }
static void come(void) { join(mine, &reader, GR_LOSSLESS); }
static void come_and_take(void) {
    join(theirs, &reader, GR_LOSSY);
    result = gr_acquire(&reader);
}
static void publish_and_claim(void) {
    if (publish()) gr_claim(&producer);
}
/* Nobody overwrites what the newcomer is to read (H5, M2). */
static void first_is_there(void) {
    const uint64_t oldest = gr_frontier(mine) - SLOTS;
    REQUIRE(reader.cursor.pos >= oldest, "it begins at %d, and what is left at %d", (int)reader.cursor.pos, (int)oldest);
}
/* Nobody writes what the newcomer holds (M1). */
static void nobody_writes_it(void) {
    const uint64_t word = gr_load_sc(&mine->slot[reader.last.index].word);
    REQUIRE(result != GR_OK || phase_of(word) != GR_WRITING, "frame %d is held", (int)reader.last.seq);
}

/* ---- joins, leaves, ends --------------------------------------------------------------------- */

static void set_member(void) {
    produce(mine, 0);
    join(theirs, &second, GR_LOSSLESS);
}
static void leave(void) { REQUIRE(gr_leave(&second) == GR_OK); }
static void is_a_member(void) {
    REQUIRE(mode_now() == GR_LOSSLESS, "the member that came has no subscription");
    for (int k = 0; k < SLOTS; k++) REQUIRE(publish());
    REQUIRE(!publish());
}

static void come_from_there(void) { join(theirs, &reader, GR_LOSSLESS); }
static void reap(void) { REQUIRE(gr_reap_dead(mine, NULL) == GR_OK); }
static void nobody_waits(void) {
    for (int k = 0; k <= SLOTS; k++) REQUIRE(publish(), "a subscription without a member holds the producer up");
}

/* Another thread has left with the peer, and this thread does not know that. */
static void set_left(void) {
    REQUIRE(gr_join_producer(mine, &second) == GR_OK && gr_leave(&second) == GR_OK);
}
static void claim_as_before(void) { result = gr_claim(&second); }
static void come_as_it(void) {
    produce(mine, 0);
    REQUIRE(producer.self.number == second.self.number);
}
static void is_refused(void) { REQUIRE(result == GR_REAPED, "a peer that has left claims with the number of another one"); }

static void set_end(void) {
    struct gr_peer gone;
    REQUIRE(gr_join_producer(mine, &gone) == GR_OK);
    produce(mine, 0);
    join(mine, &reader, GR_LOSSLESS);
    REQUIRE(gr_leave(&gone) == GR_OK);
}
static void look_for_more(void) { result = gr_acquire(&reader); }
static void follow_on(void) {
    REQUIRE(gr_join_producer(theirs, &second) == GR_OK && second.self.number < producer.self.number);
    REQUIRE(gr_leave(&producer) == GR_OK);
}
static uint64_t recorded; /* how many deaths there were when the one had its answer */
static void set_last(void) {
    join(mine, &reader, GR_LOSSLESS);
    produce(theirs, 0);
    gr_disown(theirs);
}
static void look_for_the_end(void) {
    look_for_more();
    recorded = gr_load_acquire(&mine->head->reaps);
}
static void is_recorded(void) { REQUIRE(result != GR_PEER_LOST || recorded == 1, "nobody knows which producer died"); }
static void goes_on(void) { REQUIRE(result == GR_BLOCKED, "the stream is said to end, and a producer is there"); }

/* ---- deaths ---------------------------------------------------------------------------------- */

/* A producer dies whose GPU has not written its frame. */
static void die_with_work(struct gr_ring *ring) {
    produce(ring, 0);
    REQUIRE(gr_claim(&producer) == GR_OK);
    value = gr_promise(&producer, producer.last.index, producer.last.seq);
    REQUIRE(gr_publish(&producer, producer.last.index, producer.last.seq, value, 0, NULL) == GR_OK);
    gr_disown(ring);
}
static bool is_whole(void) {
    return gr_load_acquire(fence_of(mine, 0, 0)) >= value && !gr_torn(mine, 0, 0, producer.self.id, value);
}
static bool whole;
static void set_work(void) { die_with_work(theirs); }
static void ask(void) { whole = is_whole(); }
static void is_torn(void) { REQUIRE(!whole, "a torn frame is called whole"); }

/* The first owner of a number has died with work after 1, and a later one dies. */
enum { FIRST_ID = 1, LATER_ID = 2 };
static void set_mark(void) { gr_mark_torn(tear_of(mine, 0, 0), FIRST_ID, 1); }
static void ask_for_first(void) { whole = !gr_torn(mine, 0, 0, FIRST_ID, 2); }
static void mark_later(void) { gr_mark_torn(tear_of(mine, 0, 0), LATER_ID, 3); }

/* ---- what a durable subscription is owed ----------------------------------------------------- */

static uint64_t had;

static void subscribe(unsigned mode, int frames) {
    struct gr_terms terms = durable;
    terms.mode = mode;
    had = 0;
    second = (struct gr_peer){.ring = NULL};
    produce(mine, 0); /* a later join would give the subscription up */
    REQUIRE(gr_subscribe(mine, name, &terms) == GR_OK);
    while (frames--) REQUIRE(publish());
}
static uint64_t lost_by(const struct gr_peer *me) {
    return me->ring ? gr_load_relaxed(&mine->peer[me->self.number].lost) : 0;
}
static void each_was_read_or_counted(void) {
    const uint64_t every = gr_frontier(mine) - SLOTS;
    gr_close(mine);
    for (; gr_acquire(&reader) == GR_OK; had++) release(&reader);
    const uint64_t told = lost_by(&reader) + lost_by(&second), lost = gr_load_relaxed(&mine->sub[reader.self.u].lost);
    REQUIRE(had + told <= every && every <= had + lost, "%d read, %d told, %d counted of %d", (int)had, (int)told,
            (int)lost, (int)every);
}

static void set_late(void) { subscribe(GR_LOSSLESS, SLOTS); }
static void give_up(void) { gr_give_up_late(theirs); }
static void come_back(void) {
    publish();
    join(mine, &reader, GR_LOSSLESS);
}

/* A member has the frame that reports what was lost. */
static void set_told(void) {
    subscribe(GR_LOSSY, SLOTS + 2);
    join(mine, &second, GR_LOSSY);
    REQUIRE(gr_acquire(&second) == GR_OK);
}
static void come_too(void) { join(mine, &reader, GR_LOSSY); }
static void pay_it(void) { release(&second), had++; }

const struct scene scenes[] = {
    {"H5", set_full, come, publish_and_claim, first_is_there, false},
    {"H14", set_late, give_up, come_back, each_was_read_or_counted, true},
    {"H20", set_told, come_too, pay_it, each_was_read_or_counted, false},
    {"E3", set_end, look_for_more, follow_on, goes_on, false},
    {"E10", set_last, reap, look_for_the_end, is_recorded, false},
    {"M1", set_begun, come_and_take, publish_and_claim, nobody_writes_it, false},
    {"A1", set_member, come, leave, is_a_member, false},
    {"A5", set_empty, come_from_there, reap, nobody_waits, true},
    {"A9", set_left, claim_as_before, come_as_it, is_refused, false},
    {"G4", set_work, reap, ask, is_torn, false},
    {"T5", set_mark, ask_for_first, mark_later, is_torn, false},
    {NULL}};

/* One thread leaves with a peer while another thread is in that peer's verbs. Nothing stays behind,
 * and the next peer with its number is not disturbed.
 *
 * In each round a thread takes slots one after another, and ends them or keeps them, until it is
 * told that its peer is no peer any more. Meanwhile main leaves, looks for words that name a FREE
 * entry, joins again (most likely with the same number) and uses the ring, while the thread may
 * still be on its way out of a verb. Before the rounds it tests that orphans are cleared. Compiled
 * with -DGR_FAULTS it pauses between stores; otherwise the windows would be too narrow. Usage:
 * threads [rounds]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "require.h"

enum { SLOTS = 2, DEADLINE_S = 200 };

static struct gr_ring *ring;
static struct gr_peer writer, reader; /* used by main in all rounds, to keep frames coming */

static _Thread_local uint64_t dice;
static uint64_t chance(uint64_t n) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (dice >> 33) % n;
}

#ifdef GR_FAULTS
void gr_fault(const char *name);
void gr_fault(const char *name) {
    (void)name;
    if (chance(4) == 0) usleep(1); /* a yield would wait for whatever else this core runs */
    if (chance(64) == 0) usleep((unsigned)chance(200));
}
#endif

struct meddler {
    struct gr_peer *me;
    gr_verb verb;
    bool keeps;
    uint64_t seed;
    _Atomic int rounds;
};

static enum gr_result end(struct gr_peer *me, uint32_t index, uint64_t seq) {
    uint64_t value = gr_promise(me, index, seq);
    if (value == 0) return GR_REAPED;
    gr_raise_to(fence_of(ring, index, me->self.number), value);
    if (me->self.role == GR_PRODUCER) return chance(2) ? gr_publish(me, index, seq, value, 0, NULL) : gr_abandon(me, index, seq);
    return chance(2) ? gr_release(me, index, seq) : gr_give_back(me, index, seq);
}

static void *meddle(void *argument) {
    struct meddler *meddler = argument;
    struct gr_peer *me = meddler->me;
    dice = meddler->seed;
    for (;;) {
        me->wait.deadline_ns = gr_now_ns() + 1000 * 1000; /* a whole slice if it keeps all slots */
        enum gr_result result = meddler->verb(me);
        if (result == GR_BLOCKED) result = chance(2) ? gr_sleep(me, meddler->verb) : GR_BLOCKED;
        atomic_fetch_add(&meddler->rounds, 1);
        if (result == GR_OK && !meddler->keeps) result = end(me, me->last.index, me->last.seq);
        if (result == GR_REAPED) return NULL;
        REQUIRE(result == GR_OK || result == GR_BLOCKED || result == GR_SIGNAL);
    }
}

static bool names(uint64_t word, uint32_t p, unsigned phase) { return owner_of(word) == p && phase_of(word) == phase; }

/* Looks for words that name this number. Its owner now is nobody, or has just joined and has
 * nothing. */
static void look_for_words_of(uint32_t p) {
    for (uint32_t i = 0; i < SLOTS; i++) {
        REQUIRE(!names(gr_load_sc(&ring->slot[i].word), p, GR_WRITING));
        for (uint32_t u = 0; u < ring->max_subscriptions; u++)
            REQUIRE(!names(gr_load_sc(&take_of(ring, i, u)->word), p, GR_HELD));
    }
}

/* One turn of the peers that stay: a frame, if there is room, and all that can be read. */
static void keep_going(void) {
    if (gr_claim(&writer) == GR_OK) REQUIRE(end(&writer, writer.last.index, writer.last.seq) == GR_OK);
    while (gr_acquire(&reader) == GR_OK) {
        uint32_t index = reader.last.index;
        uint64_t seq = reader.last.seq, value = gr_promise(&reader, index, seq);
        gr_raise_to(fence_of(ring, index, reader.self.number), value);
        REQUIRE(gr_release(&reader, index, seq) == GR_OK);
    }
}

static void join(struct gr_peer *me, unsigned kind) {
    static const char shared[GR_NAME_WORDS * 8] = "shared", newest[GR_NAME_WORDS * 8] = "newest";
    if (kind == 0) REQUIRE(gr_join_producer(ring, me) == GR_OK);
    else if (kind == 1) REQUIRE(gr_join_consumer(ring, shared, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, me) == GR_OK);
    else REQUIRE(gr_join_consumer(ring, newest, GR_LOSSY, GR_REDELIVER, GR_START_NEXT, 0, me) == GR_OK);
}

static void play(uint64_t n) {
    static const gr_verb verbs[] = {gr_claim, gr_acquire, gr_latest};
    unsigned kind = (unsigned)chance(3);
    struct gr_peer me, heir;
    join(&me, kind);
    struct meddler meddler = {.me = &me, .verb = verbs[kind], .keeps = chance(2), .seed = n};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, meddle, &meddler) == 0);
    int rounds = (int)chance(3);
    while (atomic_load(&meddler.rounds) < rounds) keep_going();
    if (chance(2)) keep_going();
    uint32_t number = me.self.number;
    REQUIRE(gr_leave(&me) == GR_OK);
    look_for_words_of(number);
    join(&heir, kind); /* the thread may still be in a verb */
    look_for_words_of(heir.self.number);
    for (int k = 0; k < 4; k++) {
        keep_going();
        if (verbs[kind](&heir) != GR_OK) continue;
        uint64_t seq, index = heir.last.index;
        sched_yield();
        REQUIRE(gr_holds(&heir, (uint32_t)index, &seq) && seq == heir.last.seq);
        REQUIRE(end(&heir, (uint32_t)index, heir.last.seq) == GR_OK);
    }
    pthread_join(thread, NULL);
    look_for_words_of(heir.self.number);
    REQUIRE(gr_leave(&heir) == GR_OK);
    for (int k = 0; k < 2 * SLOTS; k++) keep_going();
    REQUIRE(atomic_load(&ring->head->waiters) == 0);
}

/* Makes what a peer leaves behind that was taken for dead while it lived: a word of a FREE
 * entry. */
static void orphan(struct gr_peer *me, uint64_t *word) {
    struct gr_peer_entry *entry = &ring->peer[me->self.number];
    *word = gr_load_sc(&entry->word);
    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));
}

static void clear_orphans(void) {
    struct gr_peer claimer, holder, more;
    uint64_t word, seq;
    for (int by_join = 0; by_join < 2; by_join++) {
        join(&claimer, 0);
        REQUIRE(gr_claim(&claimer) == GR_OK);
        orphan(&claimer, &word);
        if (by_join) {
            join(&more, 0);
            look_for_words_of(claimer.self.number);
            REQUIRE(gr_leave(&more) == GR_OK);
            REQUIRE(gr_leave(&claimer) == GR_REAPED);
        } else {
            REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
            look_for_words_of(claimer.self.number);
            gr_store_sc(&ring->peer[claimer.self.number].word, word);
            REQUIRE(gr_leave(&claimer) == GR_OK);
        }

        join(&holder, 1);
        REQUIRE(gr_claim(&writer) == GR_OK);
        REQUIRE(end(&writer, writer.last.index, writer.last.seq) == GR_OK);
        if (gr_acquire(&holder) != GR_OK) { /* it was abandoned, or the other member gets it */
            REQUIRE(gr_leave(&holder) == GR_OK);
            by_join--;
            keep_going();
            continue;
        }
        seq = holder.last.seq;
        REQUIRE(gr_acquire(&reader) == GR_BLOCKED); /* it has passed the frame */
        orphan(&holder, &word);
        REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
        look_for_words_of(holder.self.number);
        REQUIRE(gr_acquire(&reader) == GR_OK && reader.last.seq == seq && reader.last.redelivered);
        REQUIRE(end(&reader, reader.last.index, seq) == GR_OK);
        gr_store_sc(&ring->peer[holder.self.number].word, word);
        REQUIRE(gr_leave(&holder) == GR_OK);
        keep_going();
    }
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
    struct gr_config config = {.slots = SLOTS, .max_peers = 4, .max_subscriptions = 4, .slot_nbytes = 64, .spec_nbytes = 2};
    static const uint8_t zeros[64];
    ring = gr_create(memfd_create("threads", MFD_CLOEXEC), &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL);
    alarm(DEADLINE_S);
    join(&writer, 0);
    join(&reader, 1);
    clear_orphans();
    for (uint64_t n = 0; n < rounds; n++) play(n);
    REQUIRE(gr_leave(&writer) == GR_OK && gr_leave(&reader) == GR_OK);
    REQUIRE(gr_load_sc(&ring->head->peer_mask[0]) == 0 && gr_load_sc(&ring->head->sub_mask[0]) == 0);
    printf("%llu rounds: nothing was left behind\n", (unsigned long long)rounds);
    gr_detach(ring);
    return 0;
}

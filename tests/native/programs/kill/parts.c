/* The parts: what each process of a round does from its fork to its end, and how it dies.
 *
 * A survivor is not told of the death. A mortal (the victim, or the corpse that a reaper finds)
 * goes on until it dies, its point is given up, or the ring ends. The auditor comes when all others
 * are gone. No handle is used across a fork: each process attaches for itself.
 */
#include "kill.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

enum { K_PATIENCE_NS = 5 * 1000 * 1000 }; /* after this time any hit will do, whatever k says */

struct self self;
struct gr_ring *ring;
int fd;
_Thread_local uint64_t chance_state;

/* The time is taken before the signal, so a recovery time includes all of the death. */
static void die(void) {
    if (self.stop) kill(getpid(), SIGSTOP);
    else {
        if (self.victim) atomic_store(&book->died_ns, gr_now_ns());
        kill(getpid(), SIGKILL);
    }
    for (;;) pause();
}

/* It kills, and otherwise it delays at random. The windows between two stores are nanoseconds wide,
 * and what has to happen in them (a producer passing a reader, for one) would else not happen once
 * in a thousand rounds. */
void gr_fault(const char *name) {
    if (self.target && !self.elsewhere && atomic_load(&book->armed_ns) && strcmp(name, self.target) == 0) {
        bool late = gr_now_ns() > atomic_load(&book->armed_ns) + K_PATIENCE_NS;
        if (++self.hits >= self.k || late) die();
    }
    if (chance_state == 0) chance_state = mix((uint64_t)gr_now_ns());
    bool slow = self.role == LOSSY && strcmp(name, "acquire: looked") == 0;
    if (chance(slow ? 8 : 512) == 0) nap(slow ? 400 : 20);
    else if (chance(64) == 0) sched_yield();
}

void attach(void) {
    char text[256];
    const char *why;
    ring = gr_attach(fd, &why, text, sizeof text);
    REQUIRE(ring != NULL, "%s", why ? why : strerror(errno));
}

/* Joins, says so, and waits until all have joined: a late one would miss frames in the books. */
static void assemble(void) {
    atomic_fetch_add(&book->joined, 1);
    while (!atomic_load(&book->go)) nap(20);
}

void survivor(int which) {
    struct gr_peer me;
    char name[GR_NAME_WORDS * 8] = "lone";
    enum gr_result result;
    self.survivor = &book->survivor[which];
    attach();
    if (which == S_PRODUCER || which == S_MEMBER) result = join_as(&me, which == S_MEMBER ? MEMBER : PRODUCER);
    else {
        if (which == S_LOSSY) strcpy(name, "lossy"), self.role = LOSSY;
        result = gr_join_consumer(ring, name, which == S_LOSSY ? GR_LOSSY : GR_LOSSLESS, GR_REDELIVER,
                                  GR_START_OLDEST, 0, &me);
    }
    REQUIRE(result == GR_OK, "join: %d", result);
    assemble();
    if (which == S_PRODUCER) {
        while (!atomic_load(&book->stop) && produce(&me))
            if (chance(4) == 0 || me.last.seq > MAX_SEQ / 4) nap(me.last.seq > MAX_SEQ / 4 ? 1000 : 40);
    } else {
        enum of of = which == S_LONE ? OF_LONE : which == S_MEMBER ? OF_SHARED : OF_LOSSY;
        while ((result = consume(&me, of == OF_LOSSY && chance(2) ? gr_latest : gr_acquire, of)) == GR_OK) {
        }
        REQUIRE(result == GR_ENDED, "the end: %d", result);
    }
    if (now.role == CLOSER) progress();
    result = gr_leave(&me);
    REQUIRE(result == GR_OK, "leave: %d", result);
}

void create(void) {
    struct gr_config config = {.slots = now.slots, .max_peers = MAX_PEERS + now.crowd,
                               .max_subscriptions = 6 + now.crowd,
                               .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .gate = GR_GATE_STREAM,
                               .slot_nbytes = sizeof book->data[0], .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL, "%s", strerror(errno));
}

/* Another thread of a leaver: it never ends what it gets. */
static void *meddle(void *argument) {
    struct gr_peer *me = argument;
    enum gr_result result = me->self.role == GR_PRODUCER ? gr_claim(me) : gr_acquire(me);
    REQUIRE(result == GR_OK || result == GR_BLOCKED || result == GR_ENDED || result == GR_CLOSED || result == GR_REAPED,
            "meddle: %d", result);
    return NULL;
}

/* It ends by itself only if its point is not reached, or if the ring was closed. */
void mortal(enum role role, const char *target) {
    struct gr_peer me;
    self.role = role;
    self.target = target;
    if (role == CREATOR) create();
    else attach();
    enum role part = role;
    if (role == CREATOR || role == CLOSER) part = PRODUCER;
    if (role == REAPER) part = MEMBER;
    if (role == SLEEPER) part = target[0] == 'c' || (target[0] != 'a' && chance(2)) ? PRODUCER : CONSUMER;
    self.sleepy = role == SLEEPER;
    self.impatient = role == REAPER;
    self.elsewhere = role == JOINER || role == LEAVER || role == REAPER;
    bool guest = role == JOINER || role == LEAVER || (role == CLOSER && chance(2));
    if (!guest) REQUIRE(join_as(&me, part) == GR_OK);
    if (self.victim) assemble();
    while (!atomic_load(&book->quit)) {
        if (role == JOINER || role == LEAVER) {
            static const enum role parts[] = {PRODUCER, CONSUMER, MEMBER, LOSSY};
            part = parts[chance(4)];
            self.elsewhere = role != JOINER;
            REQUIRE(join_as(&me, part) == GR_OK);
            self.elsewhere = true;
            for (uint64_t n = chance(3); n && turn(&me, part); n--) {
            }
            pthread_t other;
            const bool meddled = role == LEAVER && chance(2);
            me.wait.deadline_ns = 0;
            if (meddled) REQUIRE(pthread_create(&other, NULL, meddle, &me) == 0);
            self.elsewhere = role != LEAVER;
            REQUIRE(gr_leave(&me) == GR_OK);
            self.elsewhere = true;
            if (meddled) pthread_join(other, NULL);
        } else if (role == CLOSER) {
            while (!atomic_load(&book->armed_ns)) nap(20);
            for (int n = 0; n < 1000 && atomic_load(&ring->head->waiters) == 0; n++) nap(5);
            gr_close(ring);
            break;
        } else if (role == REAPER) {
            self.elsewhere = false;
            REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
            self.elsewhere = true;
            if (chance(8) == 0) turn(&me, part);
        } else if (!turn(&me, part)) break;
    }
    self.target = NULL;
    if (!guest) REQUIRE(gr_leave(&me) == GR_OK);
}

/* Runs when all others are gone: the ring has to be as good as new. */
void audit(void) {
    struct gr_peer peers[MAX_PEERS + CROWD];
    attach();
    struct gr_head *head = ring->head;
    /* If it was closed, the others ended at once. */
    if (gr_load_sc(&head->closed)) REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
    REQUIRE(gr_creator_alive(ring) == (now.role != CREATOR));
    REQUIRE(atomic_load(&head->waiters) <= now.deaths, "%u waiters", atomic_load(&head->waiters));
    REQUIRE(gr_load_sc(&head->producers) >> 16 == 0);
    for (uint32_t p = 0; p < ring->max_peers; p++)
        REQUIRE(state_of(gr_load_sc(&ring->peer[p].word)) == GR_FREE, "entry %u", p);
    for (uint32_t u = 0; u < ring->max_subscriptions; u++)
        REQUIRE(mode_of(gr_load_sc(&ring->sub[u].word)) == GR_SUB_FREE, "subscription %u", u);
    for (uint32_t i = 0; i < ring->slots; i++) {
        REQUIRE(phase_of(gr_load_sc(&ring->slot[i].word)) != GR_WRITING, "slot %u", i);
        for (uint32_t u = 0; u < ring->max_subscriptions; u++)
            REQUIRE(phase_of(gr_load_sc(&take_of(ring, i, u)->word)) != GR_HELD, "slot %u subscription %u", i, u);
    }
    struct gr_watermark mark;
    if (gr_link(ring, &mark)) {
        REQUIRE(mark.seq >= atomic_load(&book->linked) && mark.seq < MAX_SEQ, "link %llu", LL mark.seq);
        REQUIRE(atomic_load(&book->frame[mark.seq].published), "link %llu", LL mark.seq);
    } else REQUIRE(atomic_load(&book->linked) == 0);
    if (gr_load_sc(&head->closed)) {
        REQUIRE(now.role == CLOSER && gr_join_producer(ring, &peers[0]) == GR_CLOSED);
        return;
    }
    for (uint32_t p = 0; p < ring->max_peers; p++)
        REQUIRE(gr_join_producer(ring, &peers[p]) == GR_OK && peers[p].self.number == p, "number %u", p);
    /* One after another, none given back: no slot was lost. */
    for (uint32_t i = 0; i < ring->slots; i++) {
        enum gr_result result = gr_claim(&peers[0]);
        REQUIRE(result == GR_OK && peers[0].last.pendings == 0, "claim %u: %d", i, result);
    }
    for (uint32_t i = 0; i < ring->slots; i++)
        REQUIRE(gr_abandon(&peers[0], i, seq_of(gr_load_sc(&ring->slot[i].word))) == GR_OK);
    for (uint32_t p = 0; p < ring->max_peers; p++) REQUIRE(gr_leave(&peers[p]) == GR_OK);
    REQUIRE(atomic_load(&head->waiters) <= now.deaths);
}

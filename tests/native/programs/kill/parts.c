/* The ring of the kill matrix, in host memory: how a process comes to it and goes, and the auditor,
 * who comes when all others are gone.
 */
#include "kill.h"

#include <errno.h>
#include <pthread.h>

void attach(void) {
    char text[256];
    const char *why;
    ring = gr_attach(fd, &why, text, sizeof text);
    REQUIRE(ring != NULL, "%s", why ? why : strerror(errno));
}

void create(void) {
    struct gr_config config = {.slots = now.slots, .max_peers = MAX_PEERS + now.crowd,
                               .max_subscriptions = 7 + now.crowd,
                               .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .gate = GR_GATE_STREAM,
                               .slot_nbytes = sizeof book->data[0], .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL, "%s", strerror(errno));
    keep_one();
    trace_it();
}

struct gr_peer *nobody(void) {
    static struct gr_peer me;
    return &me;
}
void settle_in(struct gr_peer *me) { (void)me; }

/* Another thread of a process that leaves. It takes slots, and never ends them. */
static void *meddle(void *argument) {
    struct gr_peer *me = argument;
    enum gr_result result = me->self.role == GR_PRODUCER ? gr_claim(me) : gr_acquire(me);
    REQUIRE(result == GR_OK || result == GR_BLOCKED || result == GR_ENDED || result == GR_CLOSED || result == GR_REAPED,
            "meddle: %d", result);
    return NULL;
}

void leave(struct gr_peer *me) {
    pthread_t other;
    const bool meddled = self.role == LEAVER && chance(2);
    me->wait.deadline_ns = 0;
    if (meddled) REQUIRE(pthread_create(&other, NULL, meddle, me) == 0);
    enum gr_result result = gr_leave(me);
    REQUIRE(result == GR_OK, "leave: %d", result);
    if (meddled) pthread_join(other, NULL);
}
void depart(void) {}
void before_death(void) {}

/* Runs when all others are gone: the ring has to be as good as new. */
void audit(void) {
    struct gr_peer peers[MAX_PEERS + CROWD];
    attach();
    struct gr_head *head = ring->head;
    /* If it was closed, the others ended at once. */
    if (gr_load_sc(&head->closed)) REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
    REQUIRE(gr_creator_alive(ring) == (now.role != CREATOR));
    REQUIRE(atomic_load(&head->waiters) <= now.deaths, "%u waiters", atomic_load(&head->waiters));
    REQUIRE(live_of(gr_load_sc(&head->producers)) == 0);
    for (uint32_t p = 0; p < ring->max_peers; p++)
        REQUIRE(state_of(gr_load_sc(&ring->peer[p].word)) == GR_FREE, "entry %u", p);
    bool found;
    REQUIRE(gr_unsubscribe(ring, kept, &found) == GR_OK && found);
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
    /* Claims all slots one after the other, and gives none back: so no slot was lost. */
    for (uint32_t i = 0; i < ring->slots; i++) {
        enum gr_result result = gr_claim(&peers[0]);
        REQUIRE(result == GR_OK && peers[0].last.pendings == 0, "claim %u: %d", i, result);
    }
    for (uint32_t i = 0; i < ring->slots; i++)
        REQUIRE(gr_abandon(&peers[0], i, seq_of(gr_load_sc(&ring->slot[i].word))) == GR_OK);
    for (uint32_t p = 0; p < ring->max_peers; p++) REQUIRE(gr_leave(&peers[p]) == GR_OK);
    REQUIRE(atomic_load(&head->waiters) <= now.deaths);
}

/* The kill matrix on host memory: what the survivors of a death at every fault point are left with.
 *
 * A round: four survivors in processes of their own (producer, lossless reader, member of a shared
 * subscription, lossy reader) keep a stream going through a ring of 2 to 4 slots; a victim plays its
 * role among them and dies at the k-th hit of one fault point, at once (kill) or stopped first (stop).
 * Then the survivors have to go on, end in good order, and leave books that balance.
 *
 * Two points are the harness's own.  "device: unfinished" stands for GPU work: a frame is published, or
 * a slot released, before its fence is reached, and the death leaves the fence to the reaper.
 *
 * The victim of role "reaper" clears a process that died before it (a corpse).  Nothing here holds a
 * handle over a fork: each process attaches for itself.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kill.h"

static struct book *book;
static struct gr_ring *ring; /* of this process */
static int fd;

/* What the whole run has seen.  Of the parent alone. */
static char points[MAX_POINTS][32];
static int point_count;
static unsigned killed[MAX_POINTS][ROLES], missed[MAX_POINTS][ROLES];
static struct samples { int64_t *ns; size_t count; } recovery[MAX_POINTS];
static struct round now;
static pid_t children[CHILDREN];
static int64_t deadline_ms = 3000;

/* ---- this process ------------------------------------------------------------------------------- */

static struct {
    enum role role;
    const char *target; /* NULL: it is to survive */
    unsigned k, hits;
    bool stop, sleepy, impatient;
    struct survivor *survivor;
    uint64_t last; /* frame of an own subscription */
} self;

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static _Thread_local uint64_t chance_state;
static uint64_t chance(uint64_t n) { return (chance_state = mix(chance_state)) % n; }
static void nap(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

/* The first complaint is the one to read: what follows may be its consequence. */
static void complain(const char *format, ...) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&book->failed, &none, 1)) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(book->complaint, sizeof book->complaint, format, arguments);
    va_end(arguments);
}
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char text_[256];                                                                       \
            snprintf(text_, sizeof text_, "" __VA_ARGS__);                                         \
            complain("%s:%d: not so: %s  %s", __func__, __LINE__, #condition, text_);              \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

/* The time is taken before the signal, so a recovery time holds all of the death. */
static void die(void) {
    if (self.stop) kill(getpid(), SIGSTOP);
    else {
        if (self.survivor) atomic_store(&book->died_ns, gr_now_ns());
        kill(getpid(), SIGKILL);
    }
    for (;;) pause();
}

/* Besides killing, it shakes: the windows between two stores are nanoseconds wide, and what has to
 * happen in them (a producer passing a reader, say) would not once in a thousand rounds. */
void gr_fault(const char *name) {
    if (self.target && atomic_load(&book->armed_ns) && strcmp(name, self.target) == 0) {
        bool late = gr_now_ns() > atomic_load(&book->armed_ns) + K_PATIENCE_NS;
        if (++self.hits >= self.k || late) die();
    }
    if (chance_state == 0) chance_state = mix((uint64_t)gr_now_ns());
    bool slow = self.role == LOSSY && strcmp(name, "acquire: looked") == 0;
    if (chance(slow ? 8 : 512) == 0) nap(slow ? 400 : 20);
    else if (chance(64) == 0) sched_yield();
}

/* ---- verbs -------------------------------------------------------------------------------------- */

static enum gr_result run(struct gr_peer *me, gr_verb verb) {
    me->deadline_ns = INT64_MAX;
    enum gr_result result = self.sleepy ? gr_sleep(me, verb) : verb(me);
    if (self.impatient) return result;
    if (result == GR_BLOCKED && self.survivor) self.survivor->blocked = true;
    if (result == GR_BLOCKED) result = gr_spin(me, verb);
    while (result == GR_BLOCKED || result == GR_SIGNAL) result = gr_sleep(me, verb);
    return result;
}

/* Recovered: at the end of the longest pause of the laps after the death.  The first frame after it
 * would not do: a frame or two may lie between a survivor and the place where the dead is in its way. */
static void progress(void) {
    struct survivor *s = self.survivor;
    int64_t died = atomic_load(&book->died_ns), at = gr_now_ns();
    if (!s) return;
    if (died && s->after < 2 * ring->slots + 2) {
        int64_t from = s->last_ns > died ? s->last_ns : died;
        if (at - from > s->pause_ns) {
            s->pause_ns = at - from;
            s->recovered_ns = s->blocked ? at - died : 0;
        }
        s->after++;
    }
    s->blocked = false;
    s->last_ns = at;
    atomic_fetch_add(&s->frames, 1);
}

static uint64_t content(uint64_t seq, int k) { return mix(seq * WORDS + (uint64_t)k); }
static void write_frame(const struct gr_peer *me) {
    for (int k = 0; k < WORDS; k++) book->data[me->index][k] = content(me->seq, k);
}
static void await_fences(struct gr_peer *me) {
    for (uint32_t k = 0; k < me->pendings; k++)
        while (gr_wait_fence(me, me->pending[k].peer, me->index, me->pending[k].value) != GR_OK) {
        }
}

/* False: the ring was closed. */
static bool produce(struct gr_peer *me) {
    enum gr_result result = run(me, gr_claim);
    if (result == GR_CLOSED || result == GR_BLOCKED) return false;
    REQUIRE(result == GR_OK, "claim: %d", result);
    REQUIRE(me->seq < MAX_SEQ, "the book is full");
    await_fences(me);
    struct frame *frame = &book->frame[me->seq];
    gr_word *fence = fence_of(ring, me->index, me->number);
    bool unfinished = self.target && chance(4) == 0;
    if (!unfinished) write_frame(me);
    uint64_t value = gr_promise(me, me->index, me->seq);
    if (!unfinished) raise_to(fence, value);
    if (!unfinished && chance(13) == 0) {
        REQUIRE(gr_abandon(me, me->index, me->seq) == GR_OK);
        return true;
    }
    atomic_store(&frame->published, IN_FLIGHT);
    REQUIRE(gr_publish(me, me->index, me->seq, value, 0, NULL) == GR_OK);
    if (unfinished) {
        gr_fault("device: unfinished");
        write_frame(me);
        raise_to(fence, value);
    }
    atomic_store(&frame->published, PUBLISHED);
    progress();
    return true;
}

enum of { OF_LONE, OF_SHARED, OF_LOSSY, OF_OWN };

static enum gr_result consume(struct gr_peer *me, gr_verb verb, enum of of) {
    gr_word *torn = &ring->peer[me->number].torn;
    uint64_t torn_before = load_relaxed(torn);
    me->lost = 0;
    enum gr_result result = run(me, verb);
    if (result != GR_OK) return result;
    REQUIRE(me->seq < MAX_SEQ);
    struct frame *frame = &book->frame[me->seq];
    gr_word *fence = fence_of(ring, me->index, me->number);
    await_fences(me);
    if (of != OF_SHARED) {
        REQUIRE(me->seq > self.last, "%llu after %llu", (unsigned long long)me->seq, (unsigned long long)self.last);
        uint64_t gap = self.last ? me->seq - self.last - 1 : me->lost;
        REQUIRE(of != OF_LOSSY || me->lost + load_relaxed(torn) - torn_before == gap, "%llu lost, %llu skipped",
                (unsigned long long)me->lost, (unsigned long long)gap);
        for (uint64_t s = self.last + 1; of == OF_OWN && self.last && s < me->seq; s++)
            REQUIRE(atomic_load(&book->frame[s].published) != PUBLISHED, "%llu skipped", (unsigned long long)s);
        self.last = me->seq;
    }
    REQUIRE(of == OF_LOSSY || me->lost == 0);
    if (load_acquire(&ring->slot[me->index].torn) >= me->seq) {
        REQUIRE(atomic_load(&frame->published) == IN_FLIGHT, "frame %llu torn", (unsigned long long)me->seq);
        gr_skip_torn(me);
        return GR_OK;
    }
    if (of == OF_LONE) atomic_fetch_add(&frame->lone, 1);
    if (of == OF_SHARED) {
        if (me->redelivered) atomic_store(&frame->redelivered, 1);
        atomic_fetch_add(self.target ? &frame->mortal : &frame->shared, 1);
    }
    for (int k = 0; k < WORDS; k++)
        REQUIRE(book->data[me->index][k] == content(me->seq, k), "frame %llu word %d", (unsigned long long)me->seq, k);
    if (of == OF_SHARED && self.target && chance(4) == 0) { /* as if its stream could not be ordered */
        atomic_fetch_add(&frame->given, 1);
        REQUIRE(gr_give_back(me, me->index, me->seq) == GR_OK);
        return GR_OK;
    }
    if (chance(of == OF_LOSSY ? 4 : 32) == 0) nap(100); /* lossy: long enough to be met by claims (H1) */
    bool unfinished = self.target && chance(4) == 0;
    uint64_t value = gr_promise(me, me->index, me->seq), seq = me->seq;
    if (!unfinished) raise_to(fence, value);
    if (of == OF_SHARED && self.target) atomic_store(&frame->released, RELEASING);
    REQUIRE(gr_release(me, me->index, seq) == GR_OK);
    if (of == OF_SHARED && self.target) atomic_store(&frame->released, RELEASED);
    if (unfinished) {
        gr_fault("device: unfinished");
        raise_to(fence, value);
    }
    progress();
    return GR_OK;
}

static enum gr_result join_as(struct gr_peer *me, enum role role) {
    static const char names[][GR_NAME_WORDS * 8] = {"own", "shared", "own lossy"};
    self.last = 0;
    if (role == PRODUCER) return gr_join_producer(ring, me);
    return gr_join_consumer(ring, names[role == MEMBER ? 1 : role == LOSSY ? 2 : 0],
                            role == LOSSY ? GR_LOSSY : GR_LOSSLESS, GR_REDELIVER, GR_START_OLDEST, 0, me);
}

/* One turn of a role; false when the stream is over. */
static bool turn(struct gr_peer *me, enum role role) {
    if (role == PRODUCER) return produce(me);
    enum gr_result result = consume(me, role == LOSSY && chance(2) ? gr_latest : gr_acquire,
                                    role == MEMBER ? OF_SHARED : role == LOSSY ? OF_LOSSY : OF_OWN);
    REQUIRE(result == GR_OK || result == GR_BLOCKED || result == GR_ENDED, "consume: %d", result);
    return result == GR_OK;
}

/* ---- processes ---------------------------------------------------------------------------------- */

static void attach(void) {
    char text[256];
    const char *why;
    ring = gr_attach(fd, &why, text, sizeof text);
    REQUIRE(ring != NULL, "%s", why ? why : strerror(errno));
}

/* Joins, says so, and waits until everybody is there: who came later would miss frames in the books. */
static void assemble(void) {
    atomic_fetch_add(&book->joined, 1);
    while (!atomic_load(&book->go)) nap(20);
}

static void survivor(int which) {
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
            if (chance(4) == 0 || me.seq > MAX_SEQ / 4) nap(me.seq > MAX_SEQ / 4 ? 1000 : 40);
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

/* Ends by itself only if its point is never reached, or if the ring was closed. */
static void mortal(enum role role, const char *target, unsigned k, bool stop, bool corpse) {
    struct gr_peer me;
    self.role = role;
    self.stop = stop;
    self.k = k;
    self.target = target;
    if (!corpse) die_records();
    if (role != CREATOR) attach();
    enum role part = role == CREATOR || (role == SLEEPER && chance(2)) ? PRODUCER : role == SLEEPER ? CONSUMER : role;
    if (role == REAPER) part = MEMBER;
    self.sleepy = role == SLEEPER;
    bool guest = role == JOINER || role == LEAVER || (role == CLOSER && chance(2));
    if (role == CLOSER) part = PRODUCER;
    if (!guest) REQUIRE(join_as(&me, part) == GR_OK);
    if (!corpse) assemble();
    while (!atomic_load(&book->quit)) {
        if (role == JOINER || role == LEAVER) {
            static const enum role parts[] = {PRODUCER, CONSUMER, MEMBER, LOSSY};
            part = parts[chance(4)];
            REQUIRE(join_as(&me, part) == GR_OK);
            for (uint64_t n = chance(3); n && turn(&me, part); n--) {
            }
            REQUIRE(gr_leave(&me) == GR_OK);
            nap(50); /* a storm of joins would keep LOCK from the reapers, and is not the question here */
        } else if (role == CLOSER) {
            while (!atomic_load(&book->armed_ns)) nap(20);
            for (int n = 0; n < 1000 && atomic_load(&ring->head->waiters) == 0; n++) nap(5);
            gr_close(ring);
            return;
        } else if (role == REAPER) {
            uint64_t reaped;
            self.impatient = true;
            REQUIRE(gr_reap_dead(ring, &reaped) == GR_OK);
            if (chance(8) == 0) turn(&me, part);
        } else if (!turn(&me, part)) break;
    }
    if (!guest) REQUIRE(gr_leave(&me) == GR_OK);
}

/* Comes when everybody has gone: the ring has to be as good as new. */
static void audit(void) {
    struct gr_peer peers[MAX_PEERS];
    attach();
    struct gr_head *head = ring->head;
    REQUIRE(gr_creator_alive(ring) == (now.role != CREATOR));
    REQUIRE(atomic_load(&head->waiters) <= now.deaths, "%u waiters", atomic_load(&head->waiters));
    REQUIRE(load_sc(&head->producers) >> 16 == 0);
    for (uint32_t p = 0; p < ring->max_peers; p++)
        REQUIRE(state_of(load_sc(&ring->peer[p].word)) == GR_FREE, "entry %u", p);
    for (uint32_t u = 0; u < ring->max_subscriptions; u++)
        REQUIRE(mode_of(load_sc(&ring->sub[u].word)) == GR_SUB_FREE, "subscription %u", u);
    for (uint32_t i = 0; i < ring->slots; i++) {
        REQUIRE(phase_of(load_sc(&ring->slot[i].word)) != GR_WRITING, "slot %u", i);
        for (uint32_t u = 0; u < ring->max_subscriptions; u++)
            REQUIRE(phase_of(load_sc(&take_of(ring, i, u)->word)) != GR_HELD, "slot %u subscription %u", i, u);
    }
    if (load_sc(&head->closed)) {
        REQUIRE(now.role == CLOSER && gr_join_producer(ring, &peers[0]) == GR_CLOSED);
        return;
    }
    for (uint32_t p = 0; p < ring->max_peers; p++)
        REQUIRE(gr_join_producer(ring, &peers[p]) == GR_OK && peers[p].number == p, "number %u", p);
    for (uint32_t i = 0; i < ring->slots; i++) { /* in a row, none given back: no slot was lost */
        enum gr_result result = gr_claim(&peers[0]);
        REQUIRE(result == GR_OK && peers[0].pendings == 0, "claim %u: %d", i, result);
    }
    for (uint32_t i = 0; i < ring->slots; i++)
        REQUIRE(gr_abandon(&peers[0], i, seq_of(load_sc(&ring->slot[i].word))) == GR_OK);
    for (uint32_t p = 0; p < ring->max_peers; p++) REQUIRE(gr_leave(&peers[p]) == GR_OK);
    REQUIRE(atomic_load(&head->waiters) <= now.deaths);
}

#include "kill_rounds.h"

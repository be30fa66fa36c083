/* The lives: what each process of a round does from its fork to its end, and how it dies.
 *
 * A survivor is not told of the death. A mortal (the victim, or the corpse that a reaper finds)
 * goes on until it dies, its point is given up, or the ring ends. No handle is used across a fork:
 * each process attaches for itself.
 */
#include "kill.h"

#include <sched.h>
#include <signal.h>

enum { K_PATIENCE_NS = 5 * 1000 * 1000 }; /* after this time any hit will do, whatever k says */

struct self self;
struct gr_ring *ring;
int fd;
_Thread_local uint64_t chance_state;

/* The time is taken before the signal, so a recovery time includes all of the death. */
static void die(void) {
    before_death();
    if (self.stop) kill(getpid(), SIGSTOP);
    else {
        if (self.victim) atomic_store(&book->died_ns, gr_now_ns());
        kill(getpid(), SIGKILL);
    }
    for (;;) pause();
}

/* Called at each fault point. Kills the process if this is its point, and otherwise sleeps at
 * random. The time between two stores is some nanoseconds. Without these sleeps, what has to happen
 * in between (for example that a producer passes a reader) would not happen once in a thousand
 * rounds. */
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

/* Notes when this survivor has recovered: at the end of the longest pause in the laps after the
 * death. The first frame after the death says too little, because there may be a frame or two
 * before the slot where the dead peer is in the way. */
void progress(void) {
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

const char kept[GR_NAME_WORDS * 8] = "kept";

/* Producers wait for it for 200 us, so it is given up again and again. */
void keep_one(void) {
    const struct gr_terms terms = {.mode = GR_LOSSLESS, .from = GR_START_NEXT, .patience_ns = 200 * 1000,
                                   .earlier = 1};
    REQUIRE(gr_subscribe(ring, kept, &terms) == GR_OK);
}

/* Not with a crowd, whose events would need much memory. */
void trace_it(void) {
    static struct gr_tracer *tracer; /* of the last round */
    const char *why;
    char text[256];
    if (tracer) gr_trace_end(tracer);
    tracer = now.crowd ? NULL : gr_trace_begin(fd, &why, text, sizeof text);
    REQUIRE(tracer || now.crowd);
}

static enum gr_result join_as(struct gr_peer *me, enum role role) {
    static const char names[][GR_NAME_WORDS * 8] = {"own", "shared", "own lossy"};
    self.last = 0;
    enum gr_result result = role == PRODUCER ? gr_join_producer(ring, me)
        : gr_join_consumer(ring, names[role == MEMBER ? 1 : role == LOSSY ? 2 : 0],
                           role == LOSSY ? GR_LOSSY : GR_LOSSLESS, GR_REDELIVER, GR_START_OLDEST, 0, me);
    if (result != GR_OK) return result;
    gr_watch(ring);
    settle_in(me);
    return GR_OK;
}

/* One turn of a role. False when the stream is over. */
static bool turn(struct gr_peer *me, enum role role) {
    if (role == PRODUCER) return produce(me);
    enum gr_result result = consume(me, role == LOSSY && chance(2) ? gr_latest : gr_acquire,
                                    role == MEMBER ? OF_SHARED : role == LOSSY ? OF_LOSSY : OF_OWN);
    REQUIRE(result == GR_OK || result == GR_BLOCKED || result == GR_ENDED, "consume: %d", result);
    return result == GR_OK;
}

/* Joins, says so, and waits until all have joined: a late one would miss frames in the books. */
static void assemble(void) {
    atomic_fetch_add(&book->joined, 1);
    while (!atomic_load(&book->go)) nap(20);
}

void survivor(int which) {
    struct gr_peer *me = nobody();
    char name[GR_NAME_WORDS * 8] = "lone";
    enum gr_result result;
    self.survivor = &book->survivor[which];
    attach();
    if (which == S_PRODUCER || which == S_MEMBER) result = join_as(me, which == S_MEMBER ? MEMBER : PRODUCER);
    else {
        if (which == S_LOSSY) strcpy(name, "lossy"), self.role = LOSSY;
        result = gr_join_consumer(ring, name, which == S_LOSSY ? GR_LOSSY : GR_LOSSLESS, GR_REDELIVER,
                                  GR_START_OLDEST, 0, me);
        if (result == GR_OK) settle_in(me);
    }
    REQUIRE(result == GR_OK, "join: %d", result);
    assemble();
    if (which == S_PRODUCER) {
        while (!atomic_load(&book->stop) && produce(me))
            if (chance(4) == 0 || me->last.seq > MAX_SEQ / 4) nap(me->last.seq > MAX_SEQ / 4 ? 1000 : 40);
    } else {
        enum of of = which == S_LONE ? OF_LONE : which == S_MEMBER ? OF_SHARED : OF_LOSSY;
        while ((result = consume(me, of == OF_LOSSY && chance(2) ? gr_latest : gr_acquire, of)) == GR_OK) {
        }
        REQUIRE(result == GR_ENDED, "the end: %d", result);
    }
    if (now.role == CLOSER) progress();
    leave(me);
    depart();
}

static void join_kept(struct gr_peer *guest) {
    REQUIRE(gr_join_consumer(ring, kept, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, guest) == GR_OK);
}

/* Joins the durable subscription, reads nothing, and leaves. */
static void visit(void) {
    static struct gr_peer guest;
    join_kept(&guest);
    self.elsewhere = self.role != LEAVER;
    REQUIRE(gr_leave(&guest) == GR_OK);
    self.elsewhere = true;
}

/* Settles a frame that an earlier ring owes. There is no such ring; only its number is used. If
 * another process was killed in these steps, this one does the rest. */
static void settle_kept(void) {
    uint32_t unused, u = gr_find_subscription(ring, kept, &unused);
    if (gr_being_settled(ring, u)) REQUIRE(gr_settled(ring, u) == GR_OK);
    enum gr_result result = gr_settle(ring, u, 2 + chance(1000), 1);
    REQUIRE(result == GR_OK || result == GR_CLOSED, "settle: %d", result);
    if (result == GR_OK) REQUIRE(gr_settled(ring, u) == GR_OK);
    REQUIRE(gr_being_settled(ring, u) == 0);
}

/* Reads a frame of the durable subscription, which reports what was lost. */
static void read_kept(struct gr_peer *guest) {
    self.elsewhere = false;
    settle_kept();
    join_kept(guest);
    settle_in(guest);
    self.last = 0;
    enum gr_result result = consume(guest, gr_acquire, OF_OWN);
    REQUIRE(result == GR_OK || result == GR_BLOCKED || result == GR_ENDED, "a guest: %d", result);
    self.elsewhere = true;
    leave(guest);
}

/* The life of a process that has to die. It ends by itself only if it does not come to its point,
 * or if the ring was closed. */
void mortal(enum role role, const char *target) {
    struct gr_peer *me = nobody();
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
    if (!guest) REQUIRE(join_as(me, part) == GR_OK);
    if (self.victim) assemble();
    while (!atomic_load(&book->quit)) {
        if (role == JOINER || role == LEAVER) {
            static const enum role parts[] = {PRODUCER, CONSUMER, MEMBER, LOSSY};
            part = parts[chance(4)];
            if (chance(2)) role == JOINER ? read_kept(me) : visit();
            self.elsewhere = role != JOINER;
            REQUIRE(join_as(me, part) == GR_OK);
            self.elsewhere = true;
            for (uint64_t n = chance(3); n && turn(me, part); n--) {
            }
            self.elsewhere = role != LEAVER;
            leave(me);
            self.elsewhere = true;
        } else if (role == CLOSER) {
            while (!atomic_load(&book->armed_ns)) nap(20);
            for (int n = 0; n < 1000 && atomic_load(&ring->head->waiters) == 0; n++) nap(5);
            gr_close(ring);
            break;
        } else if (role == REAPER) {
            /* The guest may get the number of the last corpse. With events, whoever has not met that
             * one's event by then calls its frames torn (docs/failure.md, the second case). */
            if (ring->config.sync != GR_SYNC_EVENT && chance(8) == 0) visit();
            self.elsewhere = false;
            REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
            self.elsewhere = true;
            if (chance(8) == 0) turn(me, part);
        } else if (!turn(me, part)) break;
    }
    self.target = NULL;
    if (!guest) leave(me);
    depart();
}

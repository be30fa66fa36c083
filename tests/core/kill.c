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
 *
 * Usage, from the root of the repository: kill [--rounds N] [--seed S] [--json FILE] [--first ROUND]
 * [--role NAME] [--point PREFIX] [--core DIRECTORY] [--deadline-ms MS].  A round depends on the seed, its
 * number and the filters alone; what the scheduler adds, it does not repeat.
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

#define LL (unsigned long long)

static struct book *book;
static struct gr_ring *ring; /* of this process */
static int fd;

/* What the whole run has seen.  Of the parent alone. */
static char points[MAX_POINTS][32];
static int point_count;
static unsigned killed[MAX_POINTS][ROLES], missed[MAX_POINTS][ROLES];
static struct samples { int64_t *ns; size_t count; } recovery[MAX_POINTS], known, newcomers;
static struct round now;
static pid_t children[CHILDREN];
static uint64_t deadline_ms = 3000;

/* ---- this process ------------------------------------------------------------------------------- */

static struct {
    enum role role;
    const char *target; /* NULL: it is to survive */
    unsigned k, hits;
    bool victim, stop, sleepy, impatient;
    bool elsewhere; /* not in the verb of its role: a joiner rings bells too, when it leaves */
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
            snprintf(text_, sizeof text_, " " __VA_ARGS__);                                        \
            complain("%s:%d: not so: %s%s", __func__, __LINE__, #condition, text_);                \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

/* The time is taken before the signal, so a recovery time holds all of the death. */
static void die(void) {
    if (self.stop) kill(getpid(), SIGSTOP);
    else {
        if (self.victim) atomic_store(&book->died_ns, gr_now_ns());
        kill(getpid(), SIGKILL);
    }
    for (;;) pause();
}

/* Besides killing, it shakes: the windows between two stores are nanoseconds wide, and what has to
 * happen in them (a producer passing a reader, say) would not once in a thousand rounds. */
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
        REQUIRE(me->seq > self.last, "%llu after %llu", LL me->seq, LL self.last);
        uint64_t gap = me->seq - self.last - 1, known_lost = me->lost + load_relaxed(torn) - torn_before;
        REQUIRE(of != OF_LOSSY || self.last == 0 || known_lost == gap, "%llu of %llu", LL known_lost, LL gap);
        for (uint64_t s = self.last + 1; of == OF_OWN && self.last && s < me->seq; s++)
            REQUIRE(atomic_load(&book->frame[s].published) != PUBLISHED, "%llu skipped", LL s);
        self.last = me->seq;
    }
    REQUIRE(of == OF_LOSSY || me->lost == 0);
    if (load_acquire(&ring->slot[me->index].torn) >= me->seq) {
        REQUIRE(atomic_load(&frame->published) == IN_FLIGHT, "frame %llu torn", LL me->seq);
        gr_skip_torn(me);
        return GR_OK;
    }
    if (of == OF_LONE) atomic_fetch_add(&frame->lone, 1);
    if (of == OF_SHARED) {
        if (me->redelivered) atomic_store(&frame->redelivered, 1);
        atomic_fetch_add(self.target ? &frame->mortal : &frame->shared, 1);
    }
    for (int k = 0; k < WORDS; k++)
        REQUIRE(book->data[me->index][k] == content(me->seq, k), "frame %llu word %d", LL me->seq, k);
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

static void create(void) {
    struct gr_config config = {.slots = now.slots, .max_peers = MAX_PEERS, .max_subscriptions = 6,
                               .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .gate = GR_GATE_STREAM,
                               .slot_nbytes = sizeof book->data[0], .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL, "%s", strerror(errno));
}

/* Ends by itself only if its point is not reached, or if the ring was closed. */
static void mortal(enum role role, const char *target) {
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
            self.elsewhere = role != LEAVER;
            REQUIRE(gr_leave(&me) == GR_OK);
            self.elsewhere = true;
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

/* Comes when everybody has gone: the ring has to be as good as new. */
static void audit(void) {
    struct gr_peer peers[MAX_PEERS];
    attach();
    struct gr_head *head = ring->head;
    if (load_sc(&head->closed)) REQUIRE(gr_reap_dead(ring, NULL) == GR_OK); /* the others ended at once */
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

/* ---- rounds ------------------------------------------------------------------------------------- */

enum part { A_SURVIVOR, A_VICTIM, A_CORPSE, AN_AUDITOR };

static pid_t spawn(enum part what, int which, enum role role, const char *target, unsigned k) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) {
        for (int c = 0; c < CHILDREN; c++)
            if (children[c] == 0) return children[c] = pid;
        abort();
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4);
    memset(&self, 0, sizeof self);
    chance_state = mix(now.seed + 16 * (uint64_t)what + (uint64_t)which);
    self.victim = what == A_VICTIM;
    self.k = k;
    self.stop = now.stop && self.victim;
    if (what == A_SURVIVOR) survivor(which);
    else if (what == AN_AUDITOR) audit();
    else mortal(role, target);
    _exit(0);
}

/* 0: still there.  A stop counts once. */
static int changed(pid_t pid, int *status) {
    pid_t got = waitpid(pid, status, WNOHANG | WUNTRACED);
    if (got == pid && !WIFSTOPPED(*status))
        for (int c = 0; c < CHILDREN; c++)
            if (children[c] == pid) children[c] = 0;
    return got == pid;
}

/* Whatever has to happen happens within the deadline, or the round has failed. */
#define UNTIL(condition, ...)                                                                      \
    for (int64_t end_ = gr_now_ns() + (int64_t)deadline_ms * 1000000; !(condition); nap(30)) {              \
        if (gr_now_ns() > end_) complain("deadline: " #condition " " __VA_ARGS__);                 \
        if (atomic_load(&book->failed)) return false;                                              \
    }
#define EXPECT(condition, ...)                                                                     \
    if (!(condition)) return complain("not so: " #condition " " __VA_ARGS__), false

static bool in_table(pid_t pid) {
    for (uint32_t p = 0; p < MAX_PEERS; p++)
        if (state_of(load_sc(&ring->peer[p].word)) != GR_FREE && load_relaxed(&ring->peer[p].pid) == (uint64_t)pid)
            return true;
    return false;
}

/* Somebody for the reaper to clear, who leaves behind what the reaper is to be killed at. */
static pid_t spawn_corpse(const char *point) {
    static const struct { enum role role; const char *target; } ways[] = {
        {PRODUCER, "promised"}, {PRODUCER, "device: unfinished"}, {CONSUMER, "acquire: confirmed"},
        {MEMBER, "acquire: confirmed"}, {PRODUCER, "claim: claimed"}, {LOSSY, "acquire: held"},
        {SLEEPER, "sleep: marked"}};
    bool owes = strstr(point, "torn") || strstr(point, "fence") || strstr(point, "producers");
    uint64_t n = owes ? chance(2) : chance(7);
    if (strstr(point, "subscription")) n = 2;
    if (strstr(point, "redo")) n = 2 + chance(2);
    return spawn(A_CORPSE, 0, ways[n].role, ways[n].target, 1 + (unsigned)chance(4));
}

static bool books(uint64_t frontier) {
    for (uint64_t s = now.slots; s < frontier && s < MAX_SEQ; s++) {
        struct frame *f = &book->frame[s];
        bool gone = f->released; /* by a member who may have died over it */
        unsigned long long at = s;
        EXPECT(f->lone <= 1 && f->shared <= 1, "frame %llu: %u %u", at, f->lone, f->shared);
        EXPECT(f->mortal <= f->given + now.deaths, "frame %llu", at);
        EXPECT(!(f->shared && f->mortal) || f->redelivered || f->given, "frame %llu", at);
        EXPECT(!(f->shared && f->released == RELEASED), "frame %llu", at);
        EXPECT(f->published != PUBLISHED || f->lone, "frame %llu", at);
        EXPECT(f->published != PUBLISHED || f->shared || gone, "frame %llu", at);
        EXPECT(f->published || !(f->lone || f->shared || f->mortal), "frame %llu", at);
    }
    return true;
}

static void keep(struct samples *of, int64_t ns) {
    if ((of->count & (of->count - 1)) == 0) of->ns = realloc(of->ns, (of->count + 1) * 2 * sizeof *of->ns);
    of->ns[of->count++] = ns;
}

static bool play(void) {
    const char *point = points[now.point];
    pid_t survivors[SURVIVORS], victim = 0, corpse = 0, dead[8] = {0};
    int status, there = 0;
    uint64_t at_death[SURVIVORS];
    if (now.role != CREATOR) create();
    if (now.victim_first) {
        victim = spawn(A_VICTIM, 0, now.role, point, now.k);
        there++;
        UNTIL(atomic_load(&book->joined) == there);
        if (now.role == CREATOR) attach();
    }
    for (int s = 0; s < SURVIVORS; s++) survivors[s] = spawn(A_SURVIVOR, s, ROLES, NULL, 0);
    there += SURVIVORS;
    UNTIL(atomic_load(&book->joined) == there);
    if (!victim) {
        victim = spawn(A_VICTIM, 0, now.role, point, now.k);
        UNTIL(atomic_load(&book->joined) == there + 1);
    }
    atomic_store(&book->go, 1);
    uint64_t first = now.slots + chance(8);
    UNTIL(atomic_load(&book->survivor[S_PRODUCER].frames) >= first);
    atomic_store(&book->armed_ns, gr_now_ns());

    int64_t give_up = gr_now_ns() + GIVE_UP_NS, next_corpse = 0;
    while (!changed(victim, &status)) {
        if (now.role == REAPER && corpse && changed(corpse, &status)) {
            EXPECT(status == SIGKILL || (status == 0 && atomic_load(&book->quit)), "corpse: %#x", status);
            corpse = 0;
            next_corpse = gr_now_ns() + 3 * 1000 * 1000; /* the survivors may have been quicker */
        } else if (now.role == REAPER && !corpse && now.deaths < 6 && gr_now_ns() > next_corpse)
            dead[now.deaths++] = corpse = spawn_corpse(point);
        if (gr_now_ns() > give_up) atomic_store(&book->quit, 1);
        if (gr_now_ns() > give_up + (int64_t)deadline_ms * 1000000) complain("the victim does not end");
        if (atomic_load(&book->failed)) return false;
        nap(20);
    }
    if (WIFSTOPPED(status)) { /* which is no death: nobody may touch what it has */
        uint64_t reaps = load_sc(&ring->head->reaps);
        nap((long)chance(2000));
        EXPECT(now.role == REAPER || load_sc(&ring->head->reaps) == reaps, "a stopped process was reaped");
        atomic_store(&book->died_ns, gr_now_ns());
        kill(victim, SIGKILL);
        UNTIL(changed(victim, &status));
    }
    if (WIFSIGNALED(status)) {
        EXPECT(WTERMSIG(status) == SIGKILL, "victim: %#x", status);
        dead[now.deaths++] = victim;
        killed[now.point][now.role]++;
    } else {
        EXPECT(status == 0, "victim: %#x", status);
        missed[now.point][now.role]++;
    }
    for (int s = 0; s < SURVIVORS; s++) at_death[s] = atomic_load(&book->survivor[s].frames);
    if (corpse) UNTIL(changed(corpse, &status));
    for (unsigned d = 0; d < now.deaths && !load_sc(&ring->head->closed); d++) UNTIL(!in_table(dead[d]));
    for (int s = 0; s < SURVIVORS && !load_sc(&ring->head->closed); s++)
        UNTIL(atomic_load(&book->survivor[s].frames) >= at_death[s] + 2 * now.slots + 2, "(survivor %d)", s);
    atomic_store(&book->stop, 1);
    for (int s = 0; s < SURVIVORS; s++) {
        UNTIL(changed(survivors[s], &status), "(survivor %d)", s);
        EXPECT(status == 0, "survivor %d: %#x", s, status);
        struct survivor *who = &book->survivor[s];
        if (!who->recovered_ns || !atomic_load(&book->died_ns)) continue;
        bool new = !now.victim_first || now.role == JOINER || now.role == LEAVER;
        keep(&recovery[now.point], who->recovered_ns);
        keep(new ? &newcomers : &known, who->recovered_ns); /* watchdogs look for newcomers by tick */
    }
    uint64_t frontier = gr_frontier(ring);
    pid_t auditor = spawn(AN_AUDITOR, 0, ROLES, NULL, 0);
    UNTIL(changed(auditor, &status));
    EXPECT(status == 0, "auditor: %#x", status);
    return books(frontier);
}

static void end_children(void) {
    for (int c = 0; c < CHILDREN; c++)
        if (children[c] > 0) kill(children[c], SIGKILL), waitpid(children[c], NULL, 0), children[c] = 0;
}

static void dump(void) {
    if (!ring) return;
    struct gr_head *head = ring->head;
    fprintf(stderr, "hint %llu bell %u waiters %u closed %llu producers %#llx", LL head->claim_hint, head->bell,
            head->waiters, LL head->closed, LL head->producers);
    fprintf(stderr, " sub_mask %#llx peer_mask %#llx reaps %llu", LL head->sub_mask, LL head->peer_mask,
            LL head->reaps);
    for (uint32_t p = 0; p < ring->max_peers; p++)
        fprintf(stderr, "\npeer %u: %#llx pid %llu waiting %llu", p, LL ring->peer[p].word, LL ring->peer[p].pid,
                LL ring->peer[p].waiting);
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t w = load_sc(&ring->slot[i].word), t;
        fprintf(stderr, "\nslot %u: (%llu, %u, %u) torn %llu; takes", i, LL seq_of(w), owner_of(w), phase_of(w),
                LL ring->slot[i].torn);
        for (uint32_t u = 0; u < ring->max_subscriptions; u++) {
            t = load_sc(&take_of(ring, i, u)->word);
            fprintf(stderr, " (%llu, %u, %u)", LL seq_of(t), owner_of(t), phase_of(t));
        }
    }
    fputc('\n', stderr);
}

/* ---- the run ------------------------------------------------------------------------------------ */

static void add_point(const char *name, size_t n) {
    for (int p = 0; p < point_count; p++)
        if (strlen(points[p]) == n && memcmp(points[p], name, n) == 0) return;
    if (n < sizeof *points && point_count < MAX_POINTS) memcpy(points[point_count++], name, n);
}

/* Every FAULT("name") of the sources: one that is added there and reached nowhere fails the run. */
static void scan(const char *core) {
    char pattern[512], line[1024];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.c", core);
    if (glob(pattern, 0, NULL, &found) != 0) fprintf(stderr, "no sources in %s\n", core), exit(2);
    for (size_t k = 0; k < found.gl_pathc; k++) {
        FILE *file = fopen(found.gl_pathv[k], "r");
        while (file && fgets(line, sizeof line, file)) {
            char *at = strstr(line, "FAULT(\"");
            if (at) add_point(at + 7, strcspn(at + 7, "\""));
        }
        if (file) fclose(file);
    }
    globfree(&found);
    add_point("device: unfinished", 18);
}

static bool comes(enum role role, const char *point) {
    for (int k = 0; k < 12 && comes_to[role][k]; k++)
        if (strncmp(point, comes_to[role][k], strlen(comes_to[role][k])) == 0) return true;
    return false;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The same to the table and to the JSON. */
static void quantiles(struct samples *of, const char *name, FILE *json) {
    static const double at[] = {.5, .99, 1};
    if (of->count) qsort(of->ns, of->count, sizeof *of->ns, by_value);
    double us[3] = {0};
    for (int k = 0; k < 3 && of->count; k++)
        us[k] = (double)of->ns[(size_t)(at[k] * (double)(of->count - 1))] / 1000;
    printf("%-24s %7zu %8.0f %8.0f %8.0f ", name, of->count, us[0], us[1], us[2]);
    fprintf(json, "\"recovery_us\": {\"samples\": %zu, \"p50\": %.0f, \"p99\": %.0f, \"max\": %.0f}", of->count,
            us[0], us[1], us[2]);
}

#define WHERE                                                                                      \
    "printf '\"date\": \"%s\", \"commit\": \"%s\", \"cpu\": \"%s\", \"cores\": %s, \"load\": %s'"            \
    " \"$(date -u +%FT%TZ)\" \"$(git rev-parse HEAD 2>/dev/null)\""                                \
    " \"$(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo)\" $(nproc) $(cut -d' ' -f1 /proc/loadavg)"

/* Returns how many points nobody died at. */
static int report(FILE *json, uint64_t rounds, uint64_t seed, double seconds) {
    char where[512] = "";
    int unreached = 0;
    FILE *pipe = popen(WHERE, "r");
    if (!pipe || !fgets(where, sizeof where, pipe) || pclose(pipe) != 0) strcpy(where, "\"date\": null");
    fprintf(json, "{\"rounds\": %llu, \"seed\": %llu, \"seconds\": %.1f, %s,\n \"points\": {", LL rounds, LL seed,
            seconds, where);
    printf("%-24s %7s %8s %8s %8s  µs; rounds by role\n", "fault point", "samples", "p50", "p99", "max");
    for (int p = 0; p < point_count; p++) {
        const char *comma = "";
        unsigned total = 0;
        fprintf(json, "%s\n  \"%s\": {", p ? "," : "", points[p]);
        quantiles(&recovery[p], points[p], json);
        fprintf(json, ", \"roles\": {");
        for (enum role r = 0; r < ROLES; r++) {
            if (!comes(r, points[p])) continue;
            total += killed[p][r];
            if (killed[p][r]) printf(" %s %u", role_names[r], killed[p][r]);
            else printf(" %s %s", role_names[r], missed[p][r] ? "NOT REACHED" : "not tried");
            fprintf(json, "%s\"%s\": {\"killed\": %u, \"not_reached\": %u}", comma, role_names[r], killed[p][r],
                    missed[p][r]);
            comma = ", ";
        }
        fprintf(json, "}}");
        puts(total ? "" : " NOBODY DIED HERE");
        unreached += total == 0;
    }
    fprintf(json, "},\n \"known\": {");
    quantiles(&known, "all known for a while", json);
    fprintf(json, "},\n \"newcomers\": {");
    quantiles(&newcomers, "\nall newcomers", json);
    fprintf(json, "}}\n");
    printf("\n%llu rounds in %.1f s, seed %llu, %d points not reached\n", LL rounds, seconds, LL seed, unreached);
    return unreached;
}

int main(int argc, char **argv) {
    uint64_t rounds = 300, seed = 1, first = 0;
    const char *core = "gpuring/core", *json = "/dev/null", *role = "", *point = "";
    struct { const char *name, **text; uint64_t *number; } options[] = {
        {"--rounds", NULL, &rounds}, {"--seed", NULL, &seed},  {"--first", NULL, &first},
        {"--json", &json, NULL},     {"--core", &core, NULL},  {"--deadline-ms", NULL, &deadline_ms},
        {"--role", &role, NULL},     {"--point", &point, NULL}};
    for (int k = 1; k < argc; k += 2) {
        size_t o = 0;
        while (o < 8 && strcmp(argv[k], options[o].name) != 0) o++;
        if (o == 8 || k + 1 == argc) return fprintf(stderr, "see tests/core/kill.c: %s\n", argv[k]), 2;
        if (options[o].text) *options[o].text = argv[k + 1];
        else *options[o].number = strtoull(argv[k + 1], NULL, 0);
    }
    scan(core);
    static struct { enum role role; int point; bool stop; } plan[2 * ROLES * MAX_POINTS];
    uint64_t planned = 0;
    for (enum role r = 0; r < ROLES; r++)
        for (int p = 0; p < point_count; p++)
            for (int stop = 0; stop < 2; stop++)
                if (comes(r, points[p]) && strstr(role_names[r], role) && strstr(points[p], point))
                    plan[planned].role = r, plan[planned].point = p, plan[planned++].stop = stop;
    if (!planned) return fprintf(stderr, "nothing to do\n"), 2;
    chance_state = mix(seed);
    for (uint64_t k = planned - 1; k > 0; k--) { /* shuffled, so that a short run is a fair sample */
        uint64_t other = chance(k + 1);
        __typeof__(plan[0]) swapped = plan[k];
        plan[k] = plan[other];
        plan[other] = swapped;
    }
    book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (book == MAP_FAILED) return perror("mmap"), 2;
    atexit(end_children);
    int64_t began = gr_now_ns();
    for (uint64_t n = first; n < first + rounds; n++) {
        chance_state = mix(seed ^ mix(n)); /* a round depends on these two alone, and can be played by itself */
        now = (struct round){.number = n, .seed = chance_state, .role = plan[n % planned].role,
                             .point = plan[n % planned].point, .stop = plan[n % planned].stop};
        now.slots = 2 + (unsigned)chance(MAX_SLOTS - 1);
        now.victim_first = now.role == CREATOR || chance(4) != 0;
        const char *name = points[now.point]; /* a reaper passes most points once, a closer all of them */
        bool lap = strstr(name, "reap: slot") || strstr(name, "reap: take");
        bool many = now.role == REAPER ? lap : now.role != CLOSER;
        now.k = 1 + (unsigned)chance(many ? 2 * now.slots : 1);
        memset(book, 0, offsetof(struct book, frame));
        fd = memfd_create("kill", MFD_CLOEXEC);
        ring = NULL;
        if (!play()) {
            fprintf(stderr, "round %llu of seed %llu: %s dies at \"%s\" (%s, hit %u, %u slots, joins %s): %s\n", LL n,
                    LL seed, role_names[now.role], name, now.stop ? "stopped, then killed" : "killed", now.k,
                    now.slots, now.victim_first ? "first" : "last", book->complaint);
            dump();
            return 1;
        }
        uint64_t used = gr_frontier(ring);
        memset(book->frame, 0, (used < MAX_SEQ ? used : MAX_SEQ) * sizeof book->frame[0]);
        gr_detach(ring);
        close(fd);
    }
    FILE *file = fopen(json, "w");
    if (!file) return perror(json), 2;
    int unreached = report(file, rounds, seed, (double)(gr_now_ns() - began) / 1e9);
    fclose(file);
    return unreached && !*role && !*point && rounds >= planned ? 1 : 0;
}

/* The kill matrix on host memory: a process dies at each fault point, and the survivors must go on.
 *
 * A round: four survivors in processes of their own (producer, lossless reader, member of a shared
 * subscription, lossy reader) keep a stream going through a ring of 2 to 4 slots. A victim plays
 * its role among them and dies at the k-th hit of one fault point, at once (kill) or stopped first
 * (stop). Then the survivors have to go on, end cleanly, and leave books that balance.
 *
 * In some rounds idle peers join first, so that all others have numbers and subscriptions beyond the
 * first word of the masks.
 *
 * One point belongs to the harness. "device: unfinished" represents GPU work: a frame is published,
 * or a slot released, before its fence is reached, and the death leaves the fence to the reaper.
 *
 * matrix.c lists the deaths and plays them, round.c plays one of them, life.c is what its
 * processes do, parts.c and verbs.c are how they use the ring, book.c is what they write down,
 * report.c tells the results. This header declares what these files share.
 */
#pragma once

#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../core.h"

#define LL (unsigned long long)

enum role { PRODUCER, CONSUMER, MEMBER, LOSSY, JOINER, LEAVER, CLOSER, CREATOR, REAPER, SLEEPER, ROLES };
enum { S_PRODUCER, S_LONE, S_MEMBER, S_LOSSY, SURVIVORS };
enum { MAX_POINTS = 128, MAX_SEQ = 1 << 16, MAX_PEERS = 10, CROWD = 70, MAX_SLOTS = 4, WORDS = 8 };

/* ---- matrix.c: the run. Set by the parent before it forks, read by all. ---------------------- */

struct round {
    uint64_t number, seed;
    enum role role;
    int point;
    bool stop, victim_first;
    unsigned k, slots, deaths, patience;
    unsigned crowd; /* how many idle peers there are: none, or CROWD */
};
extern struct round now;
extern uint64_t deadline_ms;
extern const char *const role_names[ROLES];
extern char points[MAX_POINTS][32];
extern int point_count;
bool comes(enum role role, const char *point);

/* ---- book.c: what the processes of a round write down, in memory that outlives them ---------- */

enum { UNPUBLISHED, IN_FLIGHT, PUBLISHED };
enum { RELEASING = 1, RELEASED };

/* What is known of one sequence. Processes write it before and after their calls, so it shows in
 * which call a process died. */
struct frame {
    _Atomic uint8_t published;
    _Atomic uint8_t lone, shared;            /* confirmed by the survivors */
    /* How often members that may die have got the frame, have given it back, and have released
     * it. */
    _Atomic uint8_t mortal, given, released;
    _Atomic uint8_t redelivered;             /* some member of `shared` was told so */
};

struct survivor {
    _Atomic uint64_t frames;
    unsigned after; /* frames since the death */
    bool blocked;
    int64_t last_ns, pause_ns, recovered_ns;
};

struct book {
    _Atomic int joined, go, stop, quit, failed;
    _Atomic int64_t armed_ns, died_ns;
    _Atomic uint64_t linked; /* the last frame that the link was set to */
    char complaint[512];
    struct survivor survivor[SURVIVORS];
    uint64_t data[MAX_SLOTS][WORDS]; /* the frames, in plain words */
    struct frame frame[MAX_SEQ];
};
extern struct book *book;
bool open_book(void);
void clear_book(uint64_t frontier);
bool balances(uint64_t frontier);
void complain(const char *format, ...);

/* For a process of a round: complains, and ends the process. */
#define NOT_SO(...) (complain(__VA_ARGS__), _exit(3))
#include "../require.h"

/* For the parent: if the condition is false, the round has failed. */
#define EXPECT(condition, ...)                                                                     \
    if (!(condition)) return complain("not so: " #condition " " __VA_ARGS__), false

/* ---- life.c: this process -------------------------------------------------------------------- */

struct self {
    enum role role;
    const char *target; /* NULL: it is to survive */
    unsigned k, hits;
    bool victim, stop, sleepy, impatient;
    /* The process is not in the verb of its role now, and must not die at its point. A joiner, for
     * example, also rings bells when it leaves. */
    bool elsewhere;
    struct survivor *survivor;
    uint64_t last; /* the last frame of a subscription of its own */
};
extern struct self self;
extern struct gr_ring *ring;
extern int fd; /* of its header */
/* The durable subscription, of which mortals are members for a moment. */
extern const char kept[GR_NAME_WORDS * 8];
void keep_one(void);
void trace_it(void); /* so that peers write events */
void survivor(int which);
void mortal(enum role role, const char *target);
void progress(void);

/* ---- parts.c and verbs.c, one pair for each kind of ring: the ring, used and written down ------ */

void create(void);
void attach(void);
struct gr_peer *nobody(void);        /* a peer that has not joined */
void settle_in(struct gr_peer *me);  /* it has joined */
void leave(struct gr_peer *me);
void depart(void);                   /* before the process ends */
void before_death(void);             /* of this process, which must not take along what others need */
void audit(void);

enum of { OF_LONE, OF_SHARED, OF_LOSSY, OF_OWN };
bool produce(struct gr_peer *me);
enum gr_result consume(struct gr_peer *me, gr_verb verb, enum of of);

/* ---- round.c --------------------------------------------------------------------------------- */

bool play(void);
void end_children(void);

/* ---- report.c -------------------------------------------------------------------------------- */

void note_end(bool died);
bool was_reached(int point); /* somebody died there */
void note_recovery(int64_t ns, bool newcomer);
int report(FILE *json, uint64_t rounds, uint64_t seed, double seconds);
void report_failure(uint64_t seed);

/* ---- chance: a round's is its number's and the seed's; each thread draws its own ------------- */

extern _Thread_local uint64_t chance_state;
static inline uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static inline uint64_t chance(uint64_t n) { return (chance_state = mix(chance_state)) % n; }
static inline void nap(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

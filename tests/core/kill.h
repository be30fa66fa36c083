/* The kill matrix: who dies where, and the books in shared memory that outlive him. */
#ifndef GPURING_KILL_H
#define GPURING_KILL_H

#include "../../gpuring/core/ring.h"

enum role { PRODUCER, CONSUMER, MEMBER, LOSSY, JOINER, LEAVER, CLOSER, CREATOR, REAPER, SLEEPER, ROLES };
static const char *const role_names[ROLES] = {"producer", "consumer", "member", "lossy", "joiner", "leaver",
                                              "closer", "creator", "reaper", "sleeper"};

/* The points (or their prefixes) that a role comes to.  One of them never hit is reported. */
static const char *const comes_to[ROLES][12] = {
    [PRODUCER] = {"claim:", "promised", "publish:", "bell:", "sleep:", "device:"},
    [CONSUMER] = {"acquire: looked", "acquire: held", "acquire: confirmed", "promised", "release:", "bell:",
                  "sleep:", "device:"},
    [MEMBER] = {"acquire: looked", "acquire: held", "acquire: confirmed", "promised", "release:", "bell:",
                "sleep:", "device:", "give back:"},
    [LOSSY] = {"acquire:", "promised", "release:", "bell:", "sleep:", "device:"},
    [JOINER] = {"join:", "producers counted"},
    [LEAVER] = {"leave:", "producers counted", "subscription removed", "bell:"},
    [CLOSER] = {"close:", "bell:"},
    [CREATOR] = {"claim:", "promised", "publish:", "bell:", "device:"},
    [REAPER] = {"reap:", "producers counted", "subscription removed", "bell:"},
    [SLEEPER] = {"sleep:", "claim: looked", "claim: claimed", "acquire: looked", "acquire: confirmed"},
};

enum { MAX_POINTS = 128, MAX_SEQ = 1 << 16, MAX_PEERS = 10, MAX_SLOTS = 4, WORDS = 8, CHILDREN = 16 };
enum { S_PRODUCER, S_LONE, S_MEMBER, S_LOSSY, SURVIVORS };
enum { UNPUBLISHED, IN_FLIGHT, PUBLISHED };
enum { RELEASING = 1, RELEASED };
#define K_PATIENCE_NS (5 * 1000 * 1000)  /* after it the next hit will do, whatever k says */
#define GIVE_UP_NS (200 * 1000 * 1000)   /* the point is not reached in this round */

/* Of one sequence.  Written around the calls, so what is in flight at a death shows as such. */
struct frame {
    _Atomic uint8_t published;
    _Atomic uint8_t lone, shared;                   /* confirmed by the survivors */
    _Atomic uint8_t mortal, given, released;        /* by members who may die: confirmed, given back, released */
    _Atomic uint8_t redelivered;                    /* some member of `shared` was told so */
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
    char complaint[512];
    struct survivor survivor[SURVIVORS];
    uint64_t data[MAX_SLOTS][WORDS]; /* plain words: the frames */
    struct frame frame[MAX_SEQ];
};

struct round {
    uint64_t number, seed;
    enum role role;
    int point;
    bool stop, victim_first;
    unsigned k, slots, deaths;
};

#endif

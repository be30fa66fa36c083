/* What a header holds, and the one ring and the one peer of this process.
 *
 * This folder is a client of gpuring that knows of it what docs/abi.md says, and nothing else. No
 * header and no source of gpuring was used. Whoever changes it reads that page alone. What is
 * missing there is added there first.
 */
#pragma once
#define _GNU_SOURCE
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* ---- what lies where ------------------------------------------------------------------------- */

typedef _Atomic uint64_t word; /* C's own operators on it are sequentially consistent */
typedef _Atomic uint32_t half;

struct death {
    word time_ns, pid, peer, number, voided, torn, reopened, raised, label[8];
};
struct head {
    word magic;
    uint32_t version, memory, sync, gate;
    uint64_t nbytes;
    uint8_t epoch[16];
    uint32_t slots, max_peers, max_subscriptions, spec_nbytes;
    uint64_t slot_nbytes, meta_nbytes, created_ns, creator_pid, creator_start, creator_pidns;
    uint8_t device_uuid[16], memory_handle[64];
    uint32_t producers_in_all;
    alignas(64) word claim_hint;
    alignas(64) half bell;
    half waiters;
    alignas(64) word closed;
    word producers, sub_mask[4], reaps, traced_until_ns;
    alignas(64) word peer_mask[4];
    word joins;
    alignas(64) word dropped;
    alignas(64) struct death deaths[8];
};
struct sub {
    word word, redo, lost, created_ns, name[8], far[4];
    word patience_ns, unread_ns, resume, owed, earlier, dropped, unused[2];
};
struct peer {
    word word, id, pid, start, pidns, joined_ns, waiting, ends, frames, lost, torn, asked_ns, gpu[2];
    word dropped, ended_at, label[8], untold, unregistered, unused[6];
};
struct slot {
    word word, producer, fence, time_ns, since_ns;
    half ndim, lost_before;
    word origin_seq, origin_time_ns, shape[8];
};
struct take {
    word word, since_ns;
};
struct tear {
    word id, reached;
};
_Static_assert(offsetof(struct head, producers_in_all) == 192, "head");
_Static_assert(offsetof(struct head, claim_hint) == 256, "head");
_Static_assert(offsetof(struct head, peer_mask) == 448, "head");
_Static_assert(offsetof(struct head, deaths) == 576, "head");
_Static_assert(sizeof(struct sub) == 192 && sizeof(struct peer) == 256, "sub, peer");
_Static_assert(sizeof(struct slot) == 128 && sizeof(struct death) == 128, "slot, death");

#define MAGIC UINT64_C(0x676e697275706701)
enum { VERSION = 9, TRACED = 266240 };
enum { NOBODY = 255 };
enum { VOID = 0, WRITING = 1, READY = 2, TORN = 3 }; /* of a slot word */
enum { DONE = 0, OPEN = 1, HELD = 2 };               /* of a take word */
enum { FREE = 0, LIVE = 1, LEAVING = 2 };
enum { PRODUCER = 1, CONSUMER = 2 };
enum { LOSSLESS = 1, LOSSY = 2 };
enum { DROP = 1, DURABLE = 2 };
enum { LEFT = 1, DIED = 2 };
enum { HOST = 0, PINNED = 4 };   /* kinds of memory */
enum { LOCK = 256, CREATOR = 257, ATTACHED = 259, NAME = 260 }; /* bytes that are locks */

static inline uint64_t claim_word(uint64_t seq, uint64_t owner, uint64_t phase) {
    return seq << 16 | owner << 8 | phase;
}
static inline uint64_t seq_of(uint64_t w) { return w >> 16; } /* also the start of a subscription */
static inline uint64_t owner_of(uint64_t w) { return w >> 8 & 255; } /* also its policy */
static inline uint64_t phase_of(uint64_t w) { return w & 255; }      /* also its mode */
static inline bool is(uint64_t w, uint64_t seq, uint64_t phase) {
    return seq_of(w) == seq && phase_of(w) == phase;
}
static inline uint64_t state_of(uint64_t w) { return w >> 16 & 255; } /* of a peer word */
static inline uint64_t role_of(uint64_t w) { return w >> 8 & 255; }
static inline uint64_t sub_of(uint64_t w) { return w & 255; }

static inline bool cas(word *at, uint64_t old, uint64_t new) {
    return atomic_compare_exchange_strong(at, &old, new);
}
static inline uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; } /* at least 0 */
static inline uint64_t up_to(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* ---- ring.c: the ring ------------------------------------------------------------------------ */

extern struct head *head;
extern struct sub *sub;
extern struct peer *peer;
extern struct slot *slot;
extern struct take *take;
extern struct tear *tear;
extern word *work, *fence;
extern uint8_t *meta, *spec, *payload;
extern uint64_t n, peers, subs; /* slots, max_peers, max_subscriptions */
extern uint64_t words;          /* of a frame */
extern int lock_fd;

static inline struct take *take_of(uint64_t i, uint64_t v) { return &take[i * subs + v]; }
static inline word *work_of(uint64_t i, uint64_t p) { return &work[i * peers + p]; }
static inline word *fence_of(uint64_t i, uint64_t p) { return &fence[i * peers + p]; }
static inline bool has(word *mask, uint64_t k) { return mask[k / 64] >> k % 64 & 1; }
static inline void set(word *mask, uint64_t k) { mask[k / 64] |= UINT64_C(1) << k % 64; }
static inline void clear(word *mask, uint64_t k) { mask[k / 64] &= ~(UINT64_C(1) << k % 64); }

_Noreturn void fail(const char *what);
uint64_t now_ns(clockid_t clock);
void nap(void);
uint64_t start_of_process(void);
uint64_t pid_namespace(void);

bool lock_byte(int fd, short kind, int64_t byte);
bool is_locked(int64_t byte); /* by another process */
bool try_lock(void);
void take_lock(void);
void unlock(void);
void ring_bell(void);

/* Finds the tables of a header at `base` that has such a head. Returns its size in bytes. */
uint64_t find_tables(const struct head *of, uint8_t *base);
int open_again(int fd);
uint8_t *map(int fd, uint64_t nbytes);
void path_of_header(char path[256], const char *name);
void path_of_slots(char path[256], const char *name, const uint8_t epoch[16]);
bool map_header(const char *name); /* false: nothing has the name */
void unmap_header(void);
bool attach(const char *name); /* false: it is not there, or is about to go */

/* ---- exchange.c ------------------------------------------------------------------------------ */

/* Hands this process's pidfd to all others of the ring. Returns the slots that the first of them
 * hands on, or -1. */
int hand_over(void);

/* ---- create.c -------------------------------------------------------------------------------- */

void create(const char *name, uint32_t slots, uint64_t words_of_a_frame);
void close_and_remove(const char *name);
void remove_ring(const char *name);

/* ---- members.c: the peer --------------------------------------------------------------------- */

extern uint64_t me, my_id, u;    /* its number, its id, and its subscription, or NOBODY */
extern uint64_t at, seen, high;  /* the position of a consumer */
extern bool lossy;

bool join(uint64_t role, const char *subscription, const char *from); /* false: it was closed */
bool is_mine(void);                                                  /* its entry */
void leave(void);
void clear_the_dead(void);
bool has_other_member(uint64_t v, uint64_t p); /* a LIVE one other than p */

/* ---- subscriptions.c: where they begin, and durable ones ------------------------------------- */

uint64_t frontier(void);
uint64_t find_subscription(const char *name, uint64_t *unused); /* NOBODY: there is none */
void begin_subscription(uint64_t v, const char *name, uint64_t policy, uint64_t mode,
                        const char *from, uint64_t patience_ns);
void lose_last_member(uint64_t v);
bool take_up(uint64_t v); /* whether it was announced again */
void give_up_late(void);
void tell_what_is_owed(void); /* at a join */
void told_with(uint64_t s);   /* this frame reports it */
void tell_later(uint64_t s);  /* this frame is given back */
void pay(uint64_t s);         /* this frame is released */
void subscribe(const char *name, uint64_t mode, const char *from, uint64_t patience_ns);
void unsubscribe(const char *name);

/* ---- verbs.c --------------------------------------------------------------------------------- */

enum answer { GOT, BLOCKED, ENDED, PEER_LOST, CLOSED, CLEARED };

extern uint64_t taken, lost; /* the sequence that it has, and how many it was made to skip */
extern bool again;           /* whether that one was redelivered */
extern volatile sig_atomic_t ending; /* this process was told to end: nothing waits any more */

enum answer claim(void);
enum answer acquire(void);
enum answer latest(void);
bool end_claim(uint64_t phase); /* READY or VOID. false: it was cleared */
bool end_hold(uint64_t phase);  /* DONE or OPEN */
enum answer wait_for(enum answer (*verb)(void));

/* The process side of a ring: handles, verbs and their results.  No Python, no CUDA.
 *
 *   header.c  create, attach, read, validate
 *   process.c identity, the handles of a process, its fork
 *   bell.c    clock, doorbell
 *   members.c join, leave: membership, under LOCK
 *   reap.c    clears what the dead, and those who left, had in hand: under LOCK, too
 *   claim.c   the frontier, promise, claim, publish, abandon
 *   frames.c  acquire, latest, release, give back; would a verb be blocked? torn?
 *   wait.c    spin, sleep at one ring or at many
 *   watchdog.c a thread that clears dead peers
 *   notify.c  a thread that turns doorbells into file descriptors, for event loops
 *
 * claim, acquire and latest of a gr_peer belong to one thread at a time; its slots are ended by whoever has them.  gr_leave
 * may come at any time, from another thread too: it waits for the verbs in progress.  Nothing here allocates after
 * join, but a notifier.
 */
#ifndef GPURING_RING_H
#define GPURING_RING_H

#include <pthread.h>
#include <sys/types.h>

#include "layout.h"
#include "words.h"

enum gr_result {
    GR_OK = 0,
    GR_BLOCKED,       /* not now; gr_peer.culprit says who is in the way */
    GR_CLOSED,        /* the ring was closed */
    GR_ENDED,         /* everything was read, the last producer left or the ring was closed */
    GR_PEER_LOST,     /* everything was read, the last producer died */
    GR_REAPED,        /* this peer was taken for dead and cleared; nothing was changed */
    GR_FORKED,        /* this handle belongs to the parent process */
    GR_DAMAGED,       /* the header holds what no build of this version writes */
    GR_SIGNAL,        /* a wait returned to let signals be handled; call again */
    GR_FULL_PEERS,    /* no free entry in the peer table */
    GR_FULL_SUBS,     /* no free entry in the subscription table */
    GR_MODE_MISMATCH, /* the subscription exists with the other mode */
    GR_LOCK_TIMEOUT,  /* somebody holds LOCK for seconds: a stopped process */
    GR_SYSTEM,        /* errno says why */
    GR_DEVICE,        /* the GPU's driver refused; device/device.h, gd_trouble, says what */
    GR_TORN_BEHIND,   /* frames that this consumer has released turned out torn */
};

/* Who is in the way of a blocked verb.  A diagnosis: true when it was looked at. */
enum gr_reason {
    GR_NOBODY = 0,
    GR_BY_PRODUCER,     /* peer is writing seq */
    GR_BY_HOLDER,       /* peer of subscription holds seq */
    GR_BY_SUBSCRIPTION, /* nobody of subscription has taken seq yet */
    GR_BY_NO_FRAME,     /* seq was not published yet */
    GR_BY_FENCE         /* peer's GPU has not finished with the slot of seq */
};
struct gr_culprit {
    enum gr_reason reason;
    uint32_t peer, subscription; /* GR_NONE where it does not apply */
    uint64_t seq, since_ns;
};

struct gr_ring {
    struct gr_head *head;
    struct gr_sub *sub;
    struct gr_peer_entry *peer;
    struct gr_slot *slot;
    struct gr_take *take;
    struct gr_tear *tear;
    gr_word *work, *fence;
    uint8_t *event, *meta, *spec;
    uint32_t slots, max_peers, max_subscriptions; /* checked copies; the header's are never read again */
    uint64_t sub_bits, peer_bits; /* of the shared masks: the bits that have an entry */
    struct gr_layout layout;
    struct gr_config config;

    int lock_fd;           /* own open file description of the header, never mapped, close-on-exec */
    pthread_mutex_t mutex; /* threads of this process share lock_fd, so LOCK alone does not part them */
    gr_word mine;          /* bits of the peers joined through this handle; written under LOCK */
    gr_word inside[GR_MAX_PEERS * (GR_LINE / 8)]; /* [number * 8]: its verbs in progress, in all threads (gr_begin) */
    uint64_t pid, start, pidns;
    unsigned generation;   /* of the process: a fork makes the handle void in the child */

    /* Guarded by gr_lock_handles, but that anybody may read the first two.  Those from joins_seen on are the watchdog's. */
    _Atomic bool watched;
    gr_word joins_seen; /* head.joins when it looked last */
    struct gr_ring *next, *prev; /* all handles of the process */
    uint64_t unwatchable; /* peers to be looked at every tick */
    uint64_t watched_id[GR_MAX_PEERS];
    int pidfd[GR_MAX_PEERS]; /* -1: none */
};

struct gr_pending {
    uint32_t peer;
    uint64_t value;
};

/* What a peer's sleeps say about when its next answer comes (wait.c).  Each average has its mean error. */
struct gr_rhythm {
    int64_t last_ns;                   /* when the last answer came that was slept for */
    int64_t period_ns, period_off_ns;  /* distance of two answers */
    int64_t late_ns, late_off_ns;      /* how late a timer wakes us; 0: not known yet */
    int64_t saved_ns, counted_ns;      /* what may be spun now; when that was counted */
    unsigned strange;                  /* distances in a row that did not fit */
};

struct gr_peer {
    struct gr_ring *ring;
    uint32_t number, role, u, mode, policy;
    uint64_t id;

    /* consumer: private position and the redo count it has seen; sequences below high were met once */
    uint64_t pos, seen, high;
    uint64_t frames;
    int64_t deadline_ns; /* of the call in progress */

    int64_t wait_ns;     /* when the wait in progress began */
    int64_t spin_ns;     /* how long a wait spins: adapts between GR_SPIN_MIN_NS and GR_SPIN_MAX_NS, */
    bool spin_fixed;     /* or what gr_set_spin said */
    struct gr_rhythm rhythm;

    /* the frame that the last successful claim, acquire or latest returned */
    uint64_t seq, lost;
    uint32_t index;
    uint32_t producer; /* of the frame: a claim may void its slot while a lossy reader holds it */
    uint64_t producer_id, value; /* of the frame's record: who published it; the fence value that says it is written */
    bool redelivered;
    _Atomic bool left; /* it has left: the number may be somebody else's */
    gr_word32 stopping; /* it is about to leave: claim and acquire are refused.  Writer: any thread (gr_stop) */
    bool told; /* lost has been handed out with a frame: the next call counts anew */
    uint32_t pendings; /* fences the stream (or the host) has to wait for */
    struct gr_pending pending[GR_MAX_PEERS + 1];

    struct gr_culprit culprit;
};

static inline struct gr_take *take_of(const struct gr_ring *ring, uint64_t i, uint64_t u) {
    return &ring->take[i * ring->max_subscriptions + u];
}
static inline struct gr_tear *tear_of(const struct gr_ring *ring, uint64_t i, uint64_t p) {
    return &ring->tear[i * ring->max_peers + p];
}
static inline gr_word *work_of(const struct gr_ring *ring, uint64_t i, uint64_t p) {
    return &ring->work[i * ring->max_peers + p];
}
static inline gr_word *fence_of(const struct gr_ring *ring, uint64_t i, uint64_t p) {
    return &ring->fence[i * ring->max_peers + p];
}

/* The header's masks.  A bit beyond the table comes from no build of ours, and would be an index. */
static inline uint64_t sub_mask_of(const struct gr_ring *ring) {
    return gr_load_sc(&ring->head->sub_mask) & ring->sub_bits;
}
static inline uint64_t peer_mask_of(const struct gr_ring *ring) {
    return gr_load_acquire(&ring->head->peer_mask) & ring->peer_bits;
}

/* Whether this peer is still itself: not leaving, and not taken for dead.  The word first: the next owner's says LIVE
 * after his id was written (A9). */
static inline bool is_mine(const struct gr_peer *me) {
    const struct gr_peer_entry *entry = &me->ring->peer[me->number];
    return state_of(gr_load_sc(&entry->word)) == GR_LIVE && gr_load_relaxed(&entry->id) == me->id;
}

static inline gr_word *inside_of(const struct gr_peer *me) {
    return &me->ring->inside[me->number * (GR_LINE / 8)];
}

/* In a forked child only the copy of a handle is left, whose locks are the parent's. */
bool gr_forked(const struct gr_ring *ring);

/* Around whatever puts the peer's number into a word, or takes it out, or writes on its behalf.  Another thread may be
 * leaving: [edge L, verb] counted first, then the entry; partner: gr_leave, which says LEAVING, and then waits until
 * nobody is counted (A12).  So no verb is under way when the number goes to somebody else (A7).
 * GR_OK: the peer is itself, and stays so until gr_end.  Anything else: nothing was begun. */
static inline void gr_end(const struct gr_peer *me) {
    atomic_fetch_sub_explicit(inside_of(me), 1, memory_order_release); /* carries all that the verb wrote */
}
static inline enum gr_result gr_begin(const struct gr_peer *me) {
    if (gr_forked(me->ring)) return GR_FORKED;
    atomic_fetch_add_explicit(inside_of(me), 1, memory_order_seq_cst);
    if (is_mine(me)) return GR_OK;
    gr_end(me);
    return GR_REAPED;
}

/* Whether it may claim and acquire.  [edge D] a stopper stores, then rings: whoever sleeps looks again. */
static inline bool may_take(const struct gr_peer *me) {
    return !gr_load_sc(&((struct gr_peer *)me)->stopping) && is_mine(me);
}
static inline enum gr_result gr_begin_taking(const struct gr_peer *me) {
    enum gr_result result = gr_begin(me);
    if (result != GR_OK || !gr_load_sc(&((struct gr_peer *)me)->stopping)) return result;
    gr_end(me);
    return GR_REAPED;
}

/* Loaded before the look at a slot: only "gone seen, then nothing there" is the end (H3). */
static inline enum gr_result end_of(const struct gr_head *head) {
    if (gr_load_sc(&head->closed)) return GR_ENDED;
    uint64_t producers = gr_load_sc(&head->producers);
    if (producers >> 16 || !(producers >> 8 & 1)) return GR_BLOCKED;
    return (producers & 0xff) == GR_DIED ? GR_PEER_LOST : GR_ENDED;
}

/* Bytes of lock_fd: peer p locks byte p for as long as it lives. */
enum {
    GR_LOCK_BYTE = 256,     /* the membership lock */
    GR_CREATOR_BYTE = 257,  /* held by the creator's handle */
    GR_ATTACHED_BYTE = 259, /* shared by every handle that maps the header */
    GR_NAME_BYTE = 260,     /* segment.py's: held while the file's name is given or taken away */
};

/* header.c */
struct gr_ring *gr_create(int fd, const struct gr_config *config, const uint8_t epoch[16],
                          const uint8_t device_uuid[16],
                          const uint8_t memory_handle[GR_MEMORY_HANDLE], const void *spec);
struct gr_ring *gr_attach(int fd, const char **why, char *text, size_t text_nbytes);
struct gr_ring *gr_read(int fd, const char **why, char *text, size_t text_nbytes); /* a copy: getters only */
void gr_retire(struct gr_ring *ring); /* magic = 0: nobody attaches any more */

/* process.c */
void gr_mind_forks(void);
void gr_enlist(struct gr_ring *ring);
void gr_disown(struct gr_ring *ring);
void gr_detach(struct gr_ring *ring);
struct gr_ring *gr_lock_handles(void); /* the first of the list, which does not change until they are unlocked */
void gr_unlock_handles(void);
int gr_pidfd(pid_t pid); /* -1: errno */
uint64_t gr_process_start(pid_t pid, char *state);

/* bell.c */
int64_t gr_now_ns(void);
int64_t gr_now_coarse_ns(void);
void gr_ring_bell(struct gr_ring *ring);
enum { GR_SLEEPING = 1, GR_ARMED = 2 }; /* bits of peer.waiting: who is counted in head.waiters for it */
void gr_announce(const struct gr_peer *me, uint64_t bit);
void gr_withdraw(const struct gr_peer *me, uint64_t bit);

/* members.c.  A join starts no watchdog: call gr_watch, too. */
enum gr_start { GR_START_NEXT, GR_START_OLDEST, GR_START_AT };
enum gr_result gr_join_producer(struct gr_ring *ring, struct gr_peer *me);
enum gr_result gr_join_consumer(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                                unsigned mode, unsigned policy, enum gr_start from,
                                uint64_t start, struct gr_peer *me);
enum gr_result gr_leave(struct gr_peer *me);
void gr_stop(struct gr_peer *me, bool stop); /* from any thread: a claim or acquire in progress ends with GR_REAPED */
bool gr_peer_alive(struct gr_ring *ring, uint32_t number); /* its byte is locked, or it is one of ours */
bool gr_creator_alive(struct gr_ring *ring);
bool gr_attached(struct gr_ring *ring); /* some other handle, here or in another process */
enum gr_result gr_close(struct gr_ring *ring);

/* reap.c */
enum gr_result gr_reap_dead(struct gr_ring *ring, uint64_t *reaped); /* mask of the numbers */
void gr_reap_one(struct gr_ring *ring, uint32_t number);

/* claim.c, frames.c: one call is one whole transition */
uint64_t gr_frontier(struct gr_ring *ring);
enum gr_result gr_claim(struct gr_peer *me);
uint64_t gr_promise(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_publish(struct gr_peer *me, uint32_t index, uint64_t seq, uint64_t value,
                          uint32_t ndim, const uint64_t *shape);
enum gr_result gr_abandon(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_acquire(struct gr_peer *me);
enum gr_result gr_latest(struct gr_peer *me);
enum gr_result gr_release(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_give_back(struct gr_peer *me, uint32_t index, uint64_t seq);
void gr_skip_torn(struct gr_peer *me);
bool gr_torn(const struct gr_ring *ring, uint32_t index, uint32_t producer, uint64_t producer_id, uint64_t value);
bool gr_holds(struct gr_peer *me, uint32_t index, uint64_t *seq);
void gr_list_pending(struct gr_peer *me, uint32_t index);
enum gr_result gr_look(const struct gr_peer *me, uint64_t *seq, struct gr_culprit *culprit);

/* GR_BLOCKED, or anything else where claim or acquire would have an answer at once. */
static inline enum gr_result gr_ready(const struct gr_peer *me) {
    uint64_t seq;
    struct gr_culprit culprit;
    return gr_look(me, &seq, &culprit);
}

/* wait.c */
#ifndef GR_SLICE_NS /* tests/core/stress.c runs without the backstop, which would hide a lost wake-up */
#define GR_SLICE_NS (INT64_C(50) * 1000 * 1000)
#endif
#define GR_SECOND_NS (INT64_C(1000) * 1000 * 1000)
#define GR_SLICE_MAX_NS (GR_SLICE_NS > GR_SECOND_NS ? GR_SLICE_NS : GR_SECOND_NS)
enum { GR_NAP_NS = 1000 * 1000, GR_SPIN_MAX_NS = 50 * 1000, GR_SPIN_MIN_NS = 1000,
       GR_WAKE_NS = 50 * 1000 /* what a wake-up by futex may take */,
       GR_LATE_NS = 65 * 1000 /* what a wake-up by a timer takes, as a first guess: 50 µs are its slack */,
       GR_SPIN_SHARE = 50 /* one part in so many of a core is spun at the end of sleeps */,
       GR_SAVED_MAX_NS = 1000 * 1000 };
typedef enum gr_result (*gr_verb)(struct gr_peer *me);
enum gr_result gr_spin(struct gr_peer *me, gr_verb verb);
enum gr_result gr_sleep(struct gr_peer *me, gr_verb verb); /* one slice at the most, then GR_SIGNAL */
enum gr_result gr_spin_ready(struct gr_peer *me, int64_t at_most_ns); /* gr_ready for as long as its fixed spin */
void gr_set_spin(struct gr_peer *me, int64_t ns); /* after a join.  -1: adaptive; INT64_MAX: it never sleeps */

static inline void gr_pause(void) { /* between two looks */
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Several bells at once.  The wait ends when one of them is not at its value any more. */
enum { GR_MAX_WAITED = 128 }; /* what futex_waitv takes */
struct gr_waited {            /* struct futex_waitv of linux/futex.h, which headers before 5.16 lack */
    uint64_t value, address;
    uint32_t flags, reserved;
};
enum { GR_WAITED_U32 = 2, GR_WAITED_PRIVATE = 128 };
bool gr_wait_bells(struct gr_waited *waited, uint32_t n, int64_t until_ns); /* true: a signal came */
enum gr_result gr_select(struct gr_peer *const *peers, uint32_t n, int64_t begun_ns, int64_t deadline_ns, bool *ready);

/* watchdog.c */
void gr_watch(struct gr_ring *ring); /* somebody has joined through this handle, or wants the dead cleared */
bool gr_is_watched(const struct gr_ring *ring);
void gr_tell_of_joins(struct gr_ring *ring);

/* notify.c: a descriptor per peer that can be read when its verb would not be blocked */
struct gr_notifier;
struct gr_notifier *gr_notifier_open(void); /* NULL: errno */
enum gr_result gr_notifier_arm(struct gr_notifier *notifier, const struct gr_peer *me);
void gr_notifier_disarm(struct gr_notifier *notifier);
void gr_notifier_raise(struct gr_notifier *notifier); /* readable from now on, and not armed */
void gr_notifier_close(struct gr_notifier *notifier);
int gr_notifier_fd(const struct gr_notifier *notifier);

#endif

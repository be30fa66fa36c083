/* The process side of a ring: handles, verbs and their results. No Python and no CUDA.
 *
 *   header.c    creates, attaches, copies and validates a header
 *   process.c   the process's identity, its handles, what a fork does to them
 *   bell.c      clock and doorbell
 *   members.c   membership: join and leave, under LOCK
 *   reap.c      clears what dead peers, and peers that leave, still had; under LOCK, too
 *   claim.c     the frontier, promise, claim, publish, abandon
 *   frames.c    acquire, latest, release, give back; whether a verb would block; torn frames
 *   link.c      what a bridge from another host writes down: origins of frames, and how far it is
 *   wait.c      spins, then sleeps, at one ring or at several
 *   watchdog.c  a thread that clears dead peers
 *   notify.c    a thread that turns doorbells into file descriptors, for event loops
 *   offer.c     descriptors that processes hand to each other: of the slots, and of themselves
 *   talk.c      what they say to each other when they do
 *
 * claim, acquire and latest of a gr_peer belong to one thread at a time; a slot is ended by the
 * thread that has it. gr_leave may come from another thread at any time: it waits for the verbs in
 * progress. After a join nothing here allocates, except a notifier.
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
    GR_ENDED,         /* everything was read, and the last producer left or the ring was closed */
    GR_PEER_LOST,     /* everything was read, and the last producer died */
    GR_REAPED,        /* this peer is not LIVE any more (reaped or leaving); nothing was changed */
    GR_FORKED,        /* this handle belongs to the parent process */
    GR_DAMAGED,       /* the header holds what no build of this version writes */
    GR_SIGNAL,        /* a wait returned so that signals can be handled; call again */
    GR_FULL_PEERS,    /* no free entry in the peer table */
    GR_FULL_SUBS,     /* no free entry in the subscription table */
    GR_MODE_MISMATCH, /* the subscription exists with the other mode */
    GR_LOCK_TIMEOUT,  /* another process, probably a stopped one, has held LOCK for seconds */
    GR_SYSTEM,        /* errno says why */
    GR_DEVICE,        /* the GPU's driver refused; gd_trouble (device/device.h) says what */
    GR_TORN_BEHIND,   /* frames that this consumer has released have turned out torn */
};

/* Who is in the way of a blocked verb. It is a diagnosis: it was true when the verb looked. */
enum gr_reason {
    GR_NOBODY = 0,
    GR_BY_PRODUCER,     /* peer is writing seq */
    GR_BY_HOLDER,       /* peer, a member of subscription, holds seq */
    GR_BY_SUBSCRIPTION, /* nobody of subscription has taken seq yet */
    GR_BY_NO_FRAME,     /* seq has not been published yet */
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
    uint32_t slots, max_peers, max_subscriptions; /* checked copies of the header's */
    /* The bits of the shared masks that have an entry, and how many of their words have any. */
    uint64_t sub_bits[GR_MASK_WORDS], peer_bits[GR_MASK_WORDS];
    uint32_t sub_words, peer_words;
    struct gr_layout layout;
    struct gr_config config;

    /* An open file description of the header of its own, never mapped, close-on-exec. */
    int lock_fd;
    uint64_t lock_dev, lock_ino; /* of the header's file */
    /* LOCK alone does not exclude the threads of one process, because they share lock_fd. */
    pthread_mutex_t mutex;
    gr_word mine[GR_MASK_WORDS]; /* bits of the peers of this handle; written under LOCK */
    /* [number * 8]: how many verbs of that peer are in progress, in all threads (gr_begin). */
    gr_word inside[GR_MAX_PEERS * (GR_LINE / 8)];
    uint64_t pid, start, pidns;
    uint64_t gpu[2]; /* UUID of the GPU on which this process has the slots, else 0 */
    unsigned generation;   /* of the process; in a forked child the handle is void */

    /* The descriptor of the slots, if this process has offered it, and the socket at which it is
     * to be had; -1 if not. Written under gr_lock_handles. Any thread may read the first one. */
    _Atomic int slots_fd;
    int listen_fd;
    uint64_t listen_ino; /* of that socket */

    /* Written under gr_lock_handles. Any thread may read the first two. From joins_seen on, all but
     * the list belongs to the watchdog. */
    _Atomic bool watched;
    gr_word joins_seen; /* head.joins at the last look */
    struct gr_ring *next, *prev; /* all handles of the process */
    bool unwatchable; /* it has a peer that must be looked at every tick */
    /* By number: the id of a peer that nobody has any more, and that has not left yet because LOCK
     * was not to be had. 0: none. Writers: gr_leave, in any thread, and the watchdog. */
    gr_word unleft[GR_MAX_PEERS];
    /* By number: the id of a peer of another pid namespace whose process has exited, as its pidfd
     * has said. Writer: the watchdog. */
    gr_word exited[GR_MAX_PEERS];
};

struct gr_pending {
    uint32_t peer;
    uint64_t value;
};

/* What a peer's earlier sleeps say about when its next answer comes (wait.c). Each average comes
 * with its mean error. */
struct gr_rhythm {
    int64_t last_ns;                   /* when the last answer came that the peer had slept for */
    int64_t period_ns, period_off_ns;  /* time between two answers */
    int64_t late_ns, late_off_ns;      /* how late a timer wakes us; 0 if not known yet */
    int64_t saved_ns, counted_ns;      /* how long it may spin now, and when that was counted */
    unsigned strange;                  /* number of intervals in a row that did not fit */
};

struct gr_peer {
    struct gr_ring *ring;
    uint32_t number, role, u, mode, policy;
    uint64_t id;

    /* Of a consumer: its private position, the redo count that it has seen, and `high`: it has met
     * every sequence below that one already. */
    uint64_t pos, seen, high;
    /* How many sequences there were before the subscription that its join has made. 0 if the
     * subscription was there already. */
    uint64_t before;
    uint64_t frames;
    int64_t deadline_ns; /* of the call in progress */

    int64_t wait_ns;     /* when the wait in progress began */
    /* How long a wait spins: what gr_set_spin said, or a value that adapts between GR_SPIN_MIN_NS
     * and GR_SPIN_MAX_NS. */
    int64_t spin_ns;
    bool spin_fixed;
    struct gr_rhythm rhythm;

    /* The frame that the last successful claim, acquire or latest returned; how many sequences were
     * skipped before it, and how many frames were lost otherwise: before they came into this ring,
     * or before this peer came here from another ring. */
    uint64_t seq, lost, upstream;
    uint32_t index;
    /* Of the frame. It is kept here, because a claim may void the slot while a lossy reader holds
     * it. */
    uint32_t producer;
    /* Of the frame's record: who published it, and the fence value that says it is written. */
    uint64_t producer_id, value;
    bool redelivered;
    _Atomic bool left; /* it has left, and the number may belong to another peer */
    bool dropped; /* nobody has it any more: gr_leave does not wait for LOCK */
    /* Set when it is about to leave: claim and acquire are refused. Writer: any thread
     * (gr_stop). */
    gr_word32 stopping;
    bool told; /* `lost` was handed out with a frame, so the next call counts from 0 */
    /* Of the last frame with an origin that this peer had: origin_lost. Later losses count from
     * there. */
    uint32_t origin_lost;
    bool had_origin;
    bool first; /* its join has made a subscription that begins with the ring */
    uint32_t pendings; /* number of fences that the stream (or the host) has to wait for */
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

/* The words of the header's masks. A bit beyond the table comes from no build of ours, and would be
 * a wild index. sub_mask_of is sc for the claim that looks again after its swap (M1: a subscription
 * that appeared between its gate and its swap must be seen). A stale peer bit costs a look at an
 * unused entry. */
static inline uint64_t sub_mask_of(const struct gr_ring *ring, uint64_t word) {
    return gr_load_sc(&ring->head->sub_mask[word]) & ring->sub_bits[word];
}
static inline uint64_t peer_mask_of(const struct gr_ring *ring, uint64_t word) {
    return gr_load_acquire(&ring->head->peer_mask[word]) & ring->peer_bits[word];
}

/* Loops over the subscriptions, or the peers, whose bits are set.
 *
 * The words are loaded one after the other, so together they may show a set that never was: one
 * joins in a word that was passed, and another one leaves in a word that comes later. No reader
 * draws a conclusion from two bits, so each bit may be argued alone. What has to be seen is
 * one subscription, or one peer: its bit was set before its announcement, and the reader loads the
 * bit's word after its own (edges H and J, M1; for peers edges P and R). It does not matter what
 * the other words show then. Who changes masks, or clears by them, has LOCK, under which they stand
 * still. */
#define gr_each_sub(u, ring) gr_each_bit(u, (ring)->sub_words, sub_mask_of(ring, u##_at))
#define gr_each_peer(p, ring) gr_each_bit(p, (ring)->peer_words, peer_mask_of(ring, p##_at))

/* Whether the peer has joined through this handle. Partner: set_mine (members.c). */
static inline bool gr_is_ours(const struct gr_ring *ring, uint32_t p) {
    return gr_load_acquire(&ring->mine[p / 64]) & bit_of(p);
}

/* Whether this peer is still LIVE: neither leaving nor taken for dead. The word is read before the
 * id. The number's next owner writes its id before its word says LIVE, so a LIVE of that owner
 * comes with its id (A9: read the other way round, another peer's LIVE was taken for one's own). */
static inline bool is_mine(const struct gr_peer *me) {
    const struct gr_peer_entry *entry = &me->ring->peer[me->number];
    return state_of(gr_load_sc(&entry->word)) == GR_LIVE && gr_load_relaxed(&entry->id) == me->id;
}

static inline gr_word *inside_of(const struct gr_peer *me) {
    return &me->ring->inside[me->number * (GR_LINE / 8)];
}

/* True in a forked child. It has only a copy of the handle, whose locks are the parent's. */
bool gr_forked(const struct gr_ring *ring);
/* False after the program has closed its descriptors. */
bool gr_has_its_files(const struct gr_ring *ring);

/* gr_begin and gr_end enclose whatever puts the peer's number into a word, takes it out, or writes
 * on the peer's behalf, because another thread may be leaving at that moment.
 *
 * [edge L, verb] The verb is counted first, and looks at its entry second (A12: the other way
 * round, the leaver sees nobody). Partner: gr_leave stores LEAVING, and then waits until no verb is
 * counted. So no verb is in progress when the number goes to another peer (A7). A stale count or
 * entry would let a verb leave a word under a FREE entry, which nobody clears.
 *
 * GR_OK: the peer is LIVE, and keeps its number until gr_end. Anything else: nothing was begun.
 */
static inline void gr_end(const struct gr_peer *me) {
    /* Carries all that the verb wrote; partner: wait_for_verbs. */
    atomic_fetch_sub_explicit(inside_of(me), 1, memory_order_release);
}
static inline enum gr_result gr_begin(const struct gr_peer *me) {
    if (gr_forked(me->ring)) return GR_FORKED;
    atomic_fetch_add_explicit(inside_of(me), 1, memory_order_seq_cst);
    if (is_mine(me)) return GR_OK;
    gr_end(me);
    return GR_REAPED;
}

/* Whether it may claim and acquire. [edge D] gr_stop stores `stopping`, then rings the bell, so a
 * sleeper that missed the store looks again. */
static inline bool may_take(const struct gr_peer *me) {
    return !gr_load_sc(&((struct gr_peer *)me)->stopping) && is_mine(me);
}
static inline enum gr_result gr_begin_taking(const struct gr_peer *me) {
    enum gr_result result = gr_begin(me);
    if (result != GR_OK || !gr_load_sc(&((struct gr_peer *)me)->stopping)) return result;
    gr_end(me);
    return GR_REAPED;
}

/* Whether the stream is over. A reader loads this before it looks at a slot: only if the producers
 * were gone first, and nothing was there afterwards, has it reached the end (H3). Partners:
 * gr_close and gr_count_producers. A stale value costs another look, after their bell. */
static inline enum gr_result end_of(const struct gr_head *head) {
    if (gr_load_sc(&head->closed)) return GR_ENDED;
    uint64_t producers = gr_load_sc(&head->producers);
    if (producers >> 16 || !(producers >> 8 & 1)) return GR_BLOCKED;
    return (producers & 0xff) == GR_DIED ? GR_PEER_LOST : GR_ENDED;
}

/* Bytes of lock_fd. Peer p locks byte p for as long as it lives. */
enum {
    GR_LOCK_BYTE = 256,     /* the membership lock */
    GR_CREATOR_BYTE = 257,  /* held by the creator's handle */
    GR_ATTACHED_BYTE = 259, /* shared by every handle that maps the header */
    GR_NAME_BYTE = 260,     /* used by segment.py while the file's name is given or taken away */
};

/* header.c */
struct gr_ring *gr_create(int fd, const struct gr_config *config, const uint8_t epoch[16],
                          const uint8_t device_uuid[16],
                          const uint8_t memory_handle[GR_MEMORY_HANDLE], const void *spec);
struct gr_ring *gr_attach(int fd, const char **why, char *text, size_t text_nbytes);
/* Reads a copy, for getters only. */
struct gr_ring *gr_read(int fd, const char **why, char *text, size_t text_nbytes);
void gr_retire(struct gr_ring *ring); /* sets magic to 0, so that nobody attaches any more */

/* process.c */
void gr_mind_forks(void);
void gr_enlist(struct gr_ring *ring);
void gr_disown(struct gr_ring *ring);
void gr_detach(struct gr_ring *ring);
/* Returns the first of the list, which does not change until gr_unlock_handles. */
struct gr_ring *gr_lock_handles(void);
void gr_unlock_handles(void);
int gr_pidfd(pid_t pid); /* -1: errno */
uint64_t gr_process_start(pid_t pid, char *state);

/* bell.c */
int64_t gr_now_ns(void);
int64_t gr_now_coarse_ns(void);
void gr_ring_bell(struct gr_ring *ring);
/* Bits of peer.waiting: what is counted in head.waiters for the peer. */
enum { GR_SLEEPING = 1, GR_ARMED = 2 };
void gr_announce(const struct gr_peer *me, uint64_t bit);
void gr_withdraw(const struct gr_peer *me, uint64_t bit);

/* members.c. A join starts no watchdog: call gr_watch, too. */
enum gr_start { GR_START_NEXT, GR_START_OLDEST, GR_START_AT };
enum gr_result gr_join_producer(struct gr_ring *ring, struct gr_peer *me);
enum gr_result gr_join_consumer(struct gr_ring *ring, const char name[GR_NAME_WORDS * 8],
                                unsigned mode, unsigned policy, enum gr_start from,
                                uint64_t start, struct gr_peer *me);
enum gr_result gr_leave(struct gr_peer *me);
bool gr_leave_late(struct gr_ring *ring); /* for the watchdog */
/* From any thread: a claim or acquire in progress ends with GR_REAPED. */
void gr_stop(struct gr_peer *me, bool stop);
void gr_set_far(struct gr_ring *ring, uint32_t u, const char far[8 * GR_FAR_WORDS]);
/* For people: notes that the peer is about to ask for frames, or asks for them still. */
void gr_ask(const struct gr_peer *me);
bool gr_peer_alive(struct gr_ring *ring, uint32_t number); /* its byte is locked, or it is ours */
bool gr_creator_alive(struct gr_ring *ring);
bool gr_attached(struct gr_ring *ring); /* whether there is another handle, in any process */
enum gr_result gr_close(struct gr_ring *ring);

/* reap.c */
/* reaped: NULL, or a mask for the numbers that were cleared. */
enum gr_result gr_reap_dead(struct gr_ring *ring, uint64_t reaped[GR_MASK_WORDS]);
void gr_reap_one(struct gr_ring *ring, uint32_t number);

/* claim.c and frames.c: one call is one whole transition. */
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
/* For a reader that comes here from another ring, before its first verb: me->before is lost. */
void gr_count_before(struct gr_peer *me);
void gr_skip_torn(struct gr_peer *me);
bool gr_torn(const struct gr_ring *ring, uint32_t index, uint32_t producer, uint64_t producer_id,
             uint64_t value);
bool gr_holds(struct gr_peer *me, uint32_t index, uint64_t *seq);
void gr_list_pending(struct gr_peer *me, uint32_t index);
enum gr_result gr_look(const struct gr_peer *me, uint64_t *seq, struct gr_culprit *culprit);

/* GR_BLOCKED if claim or acquire would be blocked now; anything else is an answer that it would
 * have. */
static inline enum gr_result gr_ready(const struct gr_peer *me) {
    uint64_t seq;
    struct gr_culprit culprit;
    return gr_look(me, &seq, &culprit);
}

/* link.c */
struct gr_origin {
    uint64_t seq, time_ns;
    uint32_t lost;
};
/* How far a link has come: everything up to `seq` of the near ring was published or skipped. */
struct gr_watermark {
    uint8_t epoch[16];
    uint64_t seq, lost;
};
enum gr_result gr_set_origin(struct gr_peer *me, uint32_t index, uint64_t seq,
                             const struct gr_origin *origin);
bool gr_origin(const struct gr_slot *slot, struct gr_origin *origin);
void gr_set_link(struct gr_ring *ring, const struct gr_watermark *mark);
bool gr_link(const struct gr_ring *ring, struct gr_watermark *mark);
void gr_keep_origin(struct gr_ring *ring, const struct gr_slot *slot, uint64_t seq);

/* wait.c */
/* tests/core/stress.c sets a longer slice, because sleeps that end by themselves hide lost
 * wake-ups. */
#ifndef GR_SLICE_NS
#define GR_SLICE_NS (INT64_C(50) * 1000 * 1000)
#endif
#define GR_SECOND_NS (INT64_C(1000) * 1000 * 1000)
#define GR_SLICE_MAX_NS (GR_SLICE_NS > GR_SECOND_NS ? GR_SLICE_NS : GR_SECOND_NS)
enum { GR_NAP_NS = 1000 * 1000, GR_SPIN_MAX_NS = 50 * 1000, GR_SPIN_MIN_NS = 1000,
       GR_WAKE_NS = 50 * 1000 /* what a wake-up by futex may take */,
       GR_LATE_NS = 65 * 1000 /* what one by timer may take, 50 µs of it slack */,
       GR_SPIN_SHARE = 50 /* one part in so many of a core may be spun at the ends of sleeps */,
       GR_SAVED_MAX_NS = 1000 * 1000 };
typedef enum gr_result (*gr_verb)(struct gr_peer *me);
enum gr_result gr_spin(struct gr_peer *me, gr_verb verb);
enum gr_result gr_sleep(struct gr_peer *me, gr_verb verb); /* at most one slice, then GR_SIGNAL */
/* gr_ready, again and again for as long as the peer's fixed spin. */
enum gr_result gr_spin_ready(struct gr_peer *me, int64_t at_most_ns);
/* Call it after a join. -1: adaptive; INT64_MAX: never sleeps. */
void gr_set_spin(struct gr_peer *me, int64_t ns);

static inline void gr_pause(void) { /* between two looks */
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waiting for several bells at once: the wait ends when one of them has left its value. */
enum { GR_MAX_WAITED = 128 }; /* what futex_waitv takes */
/* struct futex_waitv of linux/futex.h, which headers before Linux 5.16 lack. */
struct gr_waited {
    uint64_t value, address;
    uint32_t flags, reserved;
};
enum { GR_WAITED_U32 = 2, GR_WAITED_PRIVATE = 128 };
/* True: a signal interrupted the sleep. */
bool gr_wait_bells(struct gr_waited *waited, uint32_t n, int64_t until_ns);
enum gr_result gr_select(struct gr_peer *const *peers, uint32_t n, int64_t begun_ns,
                         int64_t deadline_ns, bool *ready);

/* watchdog.c */
/* Call it when a peer has joined through this handle, or to have the dead cleared. */
void gr_watch(struct gr_ring *ring);
bool gr_is_watched(const struct gr_ring *ring);
void gr_tell_of_joins(struct gr_ring *ring);

/* offer.c. The header must not be a copy. */
enum gr_result gr_offer(struct gr_ring *ring, int fd);
void gr_withdraw_offer(struct gr_ring *ring, struct gr_ring *handles);
void gr_remove_stale(const struct gr_ring *ring, const struct gr_peer_entry *entry);
/* A process as it names itself in headers. */
struct gr_who {
    uint64_t pid, start, pidns;
};
struct gr_fetch {
    uint32_t n;
    struct gr_asked {
        struct gr_who who;
        int fd;         /* -1: not connected */
        bool met, gone; /* it was there; it cannot answer any more */
        bool without;   /* it has answered that it cannot hand the slots on just now */
        int64_t next_ns; /* when to ask it again */
    } asked[GR_MAX_PEERS + 1];
};
void gr_fetch_begin(struct gr_fetch *fetch, struct gr_ring *ring);
int gr_fetch_go_on(struct gr_fetch *fetch, struct gr_ring *ring, int64_t until_ns);
void gr_fetch_end(struct gr_fetch *fetch);

/* notify.c: a file descriptor for each peer, readable when the peer's verb would not be blocked */
struct gr_notifier;
struct gr_notifier *gr_notifier_open(void); /* NULL: errno */
enum gr_result gr_notifier_arm(struct gr_notifier *notifier, const struct gr_peer *me);
enum gr_result gr_notifier_arm_at_end(struct gr_notifier *notifier, const struct gr_peer *me);
void gr_notifier_disarm(struct gr_notifier *notifier);
void gr_notifier_clear(struct gr_notifier *notifier); /* not readable before it is armed again */
void gr_notifier_raise(struct gr_notifier *notifier); /* readable from now on, and not armed */
void gr_notifier_close(struct gr_notifier *notifier);
int gr_notifier_fd(const struct gr_notifier *notifier);

#endif

/* gpuring: rings of frames in shared memory, for programs in C, C++, Rust and whatever calls C.
 *
 * A program attaches to a ring by its name, and joins it as a producer or as a consumer. It may be
 * in a ring together with programs in Python: all of them use this library. docs/c.md explains it.
 *
 * Status and errors. A call that can fail returns a gpuring_status, and GPURING_OK is 0. What it
 * says of that in words is in the gpuring_error that its caller gives, which may be NULL. A call that
 * succeeds leaves it as it was. A call that fails has changed nothing and holds nothing, unless it says so here.
 *
 * Structures. Each one begins with its size. Its caller sets that, most simply with the macro of
 * the same name, as in
 *
 *     gpuring_slot slot = GPURING_SLOT;
 *
 * The library fills or reads no more than this size. So a program that was built with an older
 * header works with a newer library. In an array the size of the first one counts for all.
 *
 * Threads. One thread at a time uses a producer or a consumer. Different ones may be used by
 * different threads. A ring may be used by all threads.
 *
 * fork. A forked child cannot use the handles of its parent: it gets GPURING_FORKED, and attaches
 * itself.
 *
 * GPUs. Nothing here is linked to CUDA. The driver is loaded when the first ring on a GPU is made or
 * opened. A stream is a CUstream, or a cudaStream_t, which is the same: NULL is the default stream.
 * It must be one of the primary context, which CUDA's runtime uses.
 *
 * Signals. A wait goes on when a signal handler returns. Give it a timeout, or wait with poll() on
 * a descriptor, to look at what a handler has noted.
 */
#ifndef GPURING_H
#define GPURING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rises with each addition to this header. gpuring_api_version() is that of the library. */
#define GPURING_API_VERSION 1
uint32_t gpuring_api_version(void);

/* ---- errors ---------------------------------------------------------------------------------- */

/* In brackets: the exception that Python raises. */
typedef enum gpuring_status {
    GPURING_OK = 0,
    GPURING_TIMEOUT = 1,          /* nothing came in time; or LOCK was not had (RingTimeout) */
    GPURING_FULL = 2,             /* no slot could be claimed in time (RingFull) */
    GPURING_NOT_FOUND = 3,        /* there is no such ring, or none yet (RingNotFound) */
    GPURING_EXISTS = 4,           /* there is a ring of that name (RingExists) */
    GPURING_INCOMPATIBLE = 5,     /* damaged, or of another version (RingIncompatible) */
    GPURING_TOO_MANY_PEERS = 6,   /* a table of the ring is full (TooManyPeers) */
    GPURING_CLOSED = 7,           /* the ring was closed (RingClosed) */
    GPURING_END_OF_STREAM = 8,    /* everything was read (EndOfStream) */
    GPURING_PEER_LOST = 9,        /* the other side died, or we were taken for dead (PeerLost) */
    GPURING_PRODUCER_DIED = 10,   /* and the stream goes on (ProducerDied) */
    GPURING_FRAME_TORN = 11,      /* frames were not written to their end (FrameTorn) */
    GPURING_NOT_PERMITTED = 12,   /* it is another user's (PermissionError) */
    GPURING_NO_ROOM = 13,         /* the system gave no memory or no room (RingError) */
    GPURING_DEVICE = 14,          /* the GPU or its driver (DeviceError) */
    GPURING_INVALID = 15,         /* an argument cannot be (ValueError, TypeError) */
    GPURING_FORKED = 16,          /* the handle is that of the parent process (RingError) */
    GPURING_UNSUPPORTED = 17,     /* this library cannot do that yet */
    GPURING_SYSTEM = 18,          /* see sys_errno (OSError) */
    GPURING_FAILED = 19           /* anything else (RingError) */
} gpuring_status;

typedef struct gpuring_error {
    gpuring_status status;
    int sys_errno;     /* with GPURING_SYSTEM and the like; else 0 */
    int device_status; /* a CUresult; 0 if the GPU has nothing to do with it */
    char text[512];    /* UTF-8: the ring, the culprit and the next step, in a sentence or two */
} gpuring_error;

/* A name such as "GPURING_FULL". */
const char *gpuring_status_name(gpuring_status status);

/* ---- rings ----------------------------------------------------------------------------------- */

typedef struct gpuring_ring gpuring_ring;
typedef struct gpuring_producer gpuring_producer;
typedef struct gpuring_consumer gpuring_consumer;

/* A timeout without end. 0 does not wait. Any other negative timeout is GPURING_INVALID: who computes
 * one from a deadline that may have passed makes it 0. */
#define GPURING_FOREVER INT64_C(-1)

/* The GPU that is current in this thread, or GPU 0; and for a pinned ring none, so that the CPU uses
 * the slots. */
#define GPURING_DEVICE_DEFAULT (-1)
/* The same GPU, for a pinned ring as well. */
#define GPURING_DEVICE_CURRENT (-2)
/* None: the CPU uses the slots, and a ring on a GPU is refused with GPURING_UNSUPPORTED. */
#define GPURING_DEVICE_HOST (-3)

typedef struct gpuring_attach_options {
    size_t size;
    /* For how long to wait for a ring that lives: its creator lives, or a producer is in it. 0
     * takes the ring that is there, also that of the dead. */
    int64_t timeout_ns;
    /* The id of the user whose ring it must be. -1: this process's own user, or root. Another user
     * can write every slot, and can end this process. */
    int64_t owner;
    /* The GPU under which this process uses the slots: its number here, or one of those above. It
     * may be any GPU that reaches that of the ring, and for a pinned ring any at all. */
    int device;
    const uint8_t *device_uuid; /* NULL, or the 16 bytes of CUDA that name the GPU instead */
} gpuring_attach_options;
#define GPURING_ATTACH_OPTIONS {sizeof(gpuring_attach_options), 0, -1, GPURING_DEVICE_DEFAULT, NULL}

/* Opens the ring of this name. options: NULL is GPURING_ATTACH_OPTIONS. For a ring on a GPU it may
 * wait for up to 5 s for a process that hands the memory on. */
gpuring_status gpuring_attach(const char *name, const gpuring_attach_options *options,
                              gpuring_ring **ring, gpuring_error *error);
/* Gives the ring up. Close its producers and consumers first: with one of them open this returns
 * GPURING_INVALID, and the ring stays attached. If this process has created the ring, that is closed
 * for all: they read what is there, and then get the end of the stream. NULL is fine. */
gpuring_status gpuring_detach(gpuring_ring *ring, gpuring_error *error);
/* Returns the same ring, which then has one more owner: it stays attached until it has been detached
 * once more. The last detach does what gpuring_detach says. For a ring of gpuring_consumer_ring or
 * gpuring_producer_ring that is to be kept over a restart. */
gpuring_ring *gpuring_retain(gpuring_ring *ring);

/* Where the slots are. docs/memory.md says which kind suits you. */
typedef enum gpuring_memory {
    GPURING_MEMORY_HOST = 0,
    GPURING_MEMORY_IPC = 1,    /* on a GPU, by legacy CUDA IPC */
    GPURING_MEMORY_VMM = 2,    /* on a GPU, as a descriptor: consumers can only read */
    GPURING_MEMORY_POOL = 3,   /* on a GPU, in a pool of cudaMallocAsync */
    GPURING_MEMORY_PINNED = 4, /* in host memory, for CPUs and GPUs */
    GPURING_MEMORY_GIVEN = 254, /* `given` of gpuring_create_options; only to create */
    GPURING_MEMORY_AUTO = 255  /* what suits the GPU; only to create */
} gpuring_memory;

/* How streams wait for each other: by interprocess events, or by words that they write and wait
 * for. A ring in host memory has none. AUTO takes the timeline where the GPU has it. */
typedef enum gpuring_sync {
    GPURING_SYNC_AUTO = 0,
    GPURING_SYNC_NONE = 0,
    GPURING_SYNC_EVENT = 1,
    GPURING_SYNC_TIMELINE = 2
} gpuring_sync;

/* Where a peer waits for the GPU work of others: in its stream, or in the calling thread. AUTO is
 * that of the ring, and for a new ring the stream, but for what has no timeline. */
typedef enum gpuring_gate {
    GPURING_GATE_AUTO = 0,
    GPURING_GATE_STREAM = 1,
    GPURING_GATE_HOST = 2
} gpuring_gate;

typedef struct gpuring_info {
    size_t size;
    const char *name; /* valid until the ring is detached */
    uint32_t slots, max_peers, max_subscriptions;
    uint32_t producers; /* of how many producers the stream is made */
    uint64_t slot_nbytes, meta_nbytes; /* the distance of two slots; the metadata of a frame */
    uint32_t fields, meta_fields;      /* how many there are */
    gpuring_memory memory;
    uint8_t epoch[16]; /* tells it from other rings of the same name */
    uint64_t creator_pid;
    bool closed, creator_alive;
    uint32_t live_producers, live_consumers;
    uint64_t next_seq; /* the smallest sequence that nobody has claimed */
    uint64_t dropped;  /* frames for which no slot was free (try_claim) */
    uint64_t deaths;   /* of peers, which were cleared */
    gpuring_sync sync;
    gpuring_gate gate;
    int device;        /* the GPU under which this process uses the slots, or -1: by the CPU */
    /* Whether that GPU reaches the slots. Of a pinned ring it may not: then slot.data is for the CPU,
     * and copies between it and the GPU have to be waited for before a slot is ended. */
    bool mapped;
    uint8_t device_uuid[16]; /* of the GPU that has the memory; else zeros */
} gpuring_info;
#define GPURING_INFO                                                                               \
    {sizeof(gpuring_info), NULL, 0, 0, 0, 0, 0, 0, 0, 0, GPURING_MEMORY_HOST, {0}, 0, false,       \
     false, 0, 0, 0, 0, 0, GPURING_SYNC_NONE, GPURING_GATE_STREAM, -1, false, {0}}

/* What the ring is, and what it is doing just now. */
gpuring_status gpuring_get_info(const gpuring_ring *ring, gpuring_info *info);


#define GPURING_MAX_DIMENSIONS 8

/* An array of a slot, or a field of a frame's metadata. */
typedef struct gpuring_field {
    size_t size;
    const char *name;  /* UTF-8, valid until the ring is detached; so is the next one */
    /* As NumPy writes it: "|u1", "<f4"; "bfloat16"; JSON for a structure. For a new ring "u1" and "=f4"
     * will do, and the ring has "|u1" and "<f4". */
    const char *dtype;
    uint64_t offset, itemsize, nbytes; /* from the start of the slot, or of the metadata */
    uint32_t dimensions;
    uint64_t shape[GPURING_MAX_DIMENSIONS];
} gpuring_field;
#define GPURING_FIELD {sizeof(gpuring_field), NULL, NULL, 0, 0, 0, 0, {0}}

/* By number from 0, or by name. A ring that was created with shape= and dtype= has one field,
 * "array". GPURING_INVALID: there is none. */
gpuring_status gpuring_field_at(const gpuring_ring *ring, uint32_t number, gpuring_field *field);
gpuring_status gpuring_field_named(const gpuring_ring *ring, const char *name,
                                   gpuring_field *field);
gpuring_status gpuring_meta_at(const gpuring_ring *ring, uint32_t number, gpuring_field *field);
gpuring_status gpuring_meta_named(const gpuring_ring *ring, const char *name,
                                  gpuring_field *field);

/* Which ring of the same name makes way for a new one. Who is still in it reads what is there and
 * gets the end of the stream, as if its creator had closed it. */
typedef enum gpuring_replace {
    GPURING_REPLACE_DEAD = 0, /* one whose creator is dead: so a program can be started again */
    GPURING_REPLACE_NONE = 1,
    GPURING_REPLACE_ANY = 2   /* any of this user, whoever is in it */
} gpuring_replace;

/* Of a new ring. The fields need name, dtype and shape. */
typedef struct gpuring_create_options {
    size_t size;
    uint32_t slots;              /* how many frames are in flight at most, 1 to 1024 */
    const gpuring_field *fields; /* the arrays of a slot; call a single one "array" */
    uint32_t field_count;
    const gpuring_field *meta;   /* the fields of a frame's metadata, one behind the other */
    uint32_t meta_count;
    uint32_t producers;          /* of how many the stream is made */
    uint32_t max_peers, max_subscriptions; /* at the same time, 1 to 250 */
    uint32_t mode;               /* permissions: 0600 keeps it to one user */
    gpuring_replace replace;
    /* The names of lossless durable subscriptions that the ring has from its first frame on. */
    const char *const *subscriptions;
    uint32_t subscription_count;
    gpuring_memory memory;
    int device;                  /* for all but host memory: see gpuring_attach_options */
    const uint8_t *device_uuid;
    gpuring_sync sync;           /* of a ring on a GPU; a pinned one has a timeline */
    gpuring_gate gate;           /* of all but host memory */
    /* With GPURING_MEMORY_GIVEN: memory of a GPU that the program has allocated, and how many bytes
     * it has. The slots lie at its beginning. It is a whole allocation of cudaMalloc, which becomes
     * GPURING_MEMORY_IPC, or virtual memory that can be exported as a descriptor, which becomes
     * GPURING_MEMORY_VMM. See gpuring_has_given. */
    void *given;
    uint64_t given_nbytes;
} gpuring_create_options;
#define GPURING_CREATE_OPTIONS                                                                     \
    {sizeof(gpuring_create_options), 8, NULL, 0, NULL, 0, 1, 32, 16, 0600, GPURING_REPLACE_DEAD,    \
     NULL, 0, GPURING_MEMORY_HOST, GPURING_DEVICE_DEFAULT, NULL, GPURING_SYNC_AUTO,                 \
     GPURING_GATE_AUTO, NULL, 0}

/* Creates a ring and owns it. It appears whole: whoever finds its name can attach.
 * If several processes start at once, one of them creates the ring, and the others get
 * GPURING_EXISTS. Durable subscriptions of a ring that makes way are those of the new one, too; what
 * nobody of them has read there is counted as lost. The old ring is closed when the new one is
 * whole, so there has to be room for both. A ring that nobody uses any more is removed first. */
gpuring_status gpuring_create(const char *name, const gpuring_create_options *options,
                              gpuring_ring **ring, gpuring_error *error);
/* Whether a ring that this process has created still has memory that was given to it: its slots are
 * there until the ring is detached here and no other process has it. Do not free the memory before. */
bool gpuring_has_given(const void *given);
/* Removes the name of a ring. Who is in it goes on, and nobody else finds it any more. */
gpuring_status gpuring_unlink(const char *name, gpuring_error *error);

/* ---- durable subscriptions ------------------------------------------------------------------- */

#define GPURING_START_NEXT INT64_C(-1)   /* the next frame to be claimed */
#define GPURING_START_OLDEST INT64_C(-2) /* the oldest one that is still there */

typedef struct gpuring_subscribe_options {
    size_t size;
    int64_t start; /* of a new one: one of the two above, or a sequence */
    bool lossy;    /* producers do not wait for it; slot.lost counts */
    bool drop;     /* a frame with which a member dies goes to nobody else */
    /* For how long producers wait for it while it has no member. Then it is given up: they go on,
     * and whoever joins next is told in slot.lost how many frames it has missed. 0: as somebody has
     * said before, and at first GPURING_FOREVER. */
    int64_t patience_ns;
} gpuring_subscribe_options;
#define GPURING_SUBSCRIBE_OPTIONS                                                                  \
    {sizeof(gpuring_subscribe_options), GPURING_START_NEXT, false, false, 0}

/* Makes a durable subscription, which needs no consumer, or makes an existing one durable. It stays
 * when its last member leaves or dies. Who joins it later goes on at the frame after the last one
 * that was released, also in the next ring of this name. Waits as a join does. */
gpuring_status gpuring_subscribe(gpuring_ring *ring, const char *subscription,
                                 const gpuring_subscribe_options *options, gpuring_error *error);
/* The subscription goes with its last member, and so at once if it has none. *found, which may be
 * NULL: whether there is one of this name. */
gpuring_status gpuring_unsubscribe(gpuring_ring *ring, const char *subscription, bool *found,
                                   gpuring_error *error);

/* ---- slots ----------------------------------------------------------------------------------- */

/* A slot that a producer has claimed, or whose frame a consumer holds. */
typedef struct gpuring_slot {
    size_t size;
    uint64_t seq;
    uint32_t number; /* which slot of the ring it is */
    /* The first byte of the slot, and of the frame's metadata (NULL if there is none). A consumer
     * only reads them. On a GPU `data` is a pointer of the device. Between claim or acquire and the end
     * of the slot it is for the stream of its producer or consumer. */
    void *data, *meta;
    /* host: the same bytes for the CPU, NULL if only a GPU has them. mapped: a GPU reaches `data`
     * (gpuring_info). */
    void *host;
    bool mapped;
    /* The first slot after a restart, for who has joined with `reattach`. It may be one of another
     * ring: gpuring_producer_ring or gpuring_consumer_ring says which, and what its slots hold. */
    bool restarted;
    /* The shape of a frame that is smaller than the slot. dimensions is 0 for a whole one. */
    uint32_t dimensions;
    uint64_t shape[GPURING_MAX_DIMENSIONS];
    /* What follows is about a frame that is read. */
    /* How many sequences were passed over before this one. Those are frames that were lost, and
     * sequences that carried none: a claim was abandoned, or the slot was still held by a lossy
     * consumer, this one or another. */
    uint64_t lost;
    uint32_t producer;    /* the number of the peer that has written it */
    bool redelivered;     /* another member, or this one, had it before */
    int64_t published_ns; /* CLOCK_MONOTONIC */
} gpuring_slot;
#define GPURING_SLOT                                                                               \
    {sizeof(gpuring_slot), 0, 0, NULL, NULL, NULL, false, false, 0, {0}, 0, 0, false, 0}

/* ---- producers ------------------------------------------------------------------------------- */

/* How long a wait spins before it sleeps. ADAPTIVE is what GPURING_SPIN of the environment says, in
 * seconds; where that is not set, at most 50 us. */
#define GPURING_SPIN_ADAPTIVE INT64_C(-1)
#define GPURING_SPIN_FOREVER INT64_MAX

typedef struct gpuring_producer_options {
    size_t size;
    const char *label; /* what people see of it, at most 64 bytes. NULL: the program's name */
    int64_t spin_ns;
    /* Goes on over restarts of a ring that another process has created. If that makes it again, or
     * replaces it, the next claim waits for the new ring within its timeout, and joins there. A
     * producer of the ring's creator stays, and gets GPURING_CLOSED. The new ring is used under the
     * same GPU, on the same stream. */
    bool reattach;
    void *stream; /* see gpuring_producer_stream */
    gpuring_gate gate;
} gpuring_producer_options;
#define GPURING_PRODUCER_OPTIONS                                                                   \
    {sizeof(gpuring_producer_options), NULL, GPURING_SPIN_ADAPTIVE, false, NULL, GPURING_GATE_AUTO}

/* Joins as a producer. options: NULL is GPURING_PRODUCER_OPTIONS. Does not wait, but up to 5 s for
 * another process that joins or leaves at the moment. */
gpuring_status gpuring_join_producer(gpuring_ring *ring, const gpuring_producer_options *options,
                                     gpuring_producer **producer, gpuring_error *error);
/* Abandons what is claimed, and leaves the ring. GPURING_TIMEOUT: another process has held the
 * membership lock for 5 s, and the producer is still open. NULL is fine. */
gpuring_status gpuring_close_producer(gpuring_producer *producer, gpuring_error *error);

/* Claims the next slot, to be written and then published or abandoned. Waits while a lossless
 * subscription still needs the slot. Several slots may be claimed at once. */
gpuring_status gpuring_claim(gpuring_producer *producer, int64_t timeout_ns, gpuring_slot *slot,
                             gpuring_error *error);
/* Claims the next slot if it is free. Else it returns GPURING_FULL, and counts the frame as
 * dropped: readers learn of it. */
gpuring_status gpuring_try_claim(gpuring_producer *producer, gpuring_slot *slot,
                                 gpuring_error *error);
/* Says that the frame is smaller than the slot. For rings of one field, before the publish. */
gpuring_status gpuring_set_shape(gpuring_producer *producer, gpuring_slot *slot,
                                 uint32_t dimensions, const uint64_t *shape,
                                 gpuring_error *error);
/* Lets readers see the frame. The slot is not the caller's any more, also if this fails. */
gpuring_status gpuring_publish(gpuring_producer *producer, gpuring_slot *slot,
                               gpuring_error *error);
/* Gives the claim up: its sequence carries no frame. */
gpuring_status gpuring_abandon(gpuring_producer *producer, gpuring_slot *slot,
                               gpuring_error *error);
/* Up to `wanted` slots at once, and at least one: waits for the first one only. *got says how
 * many. */
gpuring_status gpuring_claim_many(gpuring_producer *producer, int64_t timeout_ns,
                                  gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                  gpuring_error *error);
gpuring_status gpuring_publish_many(gpuring_producer *producer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error);

/* ---- consumers ------------------------------------------------------------------------------- */

typedef struct gpuring_consumer_options {
    size_t size;
    /* Members of the same subscription share its frames. NULL: one for this consumer alone. */
    const char *subscription;
    int64_t start;  /* of a new subscription: one of the two above, or a sequence */
    bool lossy;     /* producers do not wait for it; slot.lost counts */
    bool drop;      /* a frame with which a member dies goes to nobody else */
    bool deaths;    /* GPURING_PRODUCER_DIED tells of each producer that died */
    const char *label;
    int64_t spin_ns;
    /* Goes on over restarts. At the end of the stream, or if the last producer or the creator died,
     * a call then waits, within its timeout, for another producer or for a ring of the same name, and
     * joins the same subscription there, under the same GPU and on the same stream. Frames of the old
     * ring that are held stay valid until they are released. */
    bool reattach;
    /* Makes the subscription durable; see gpuring_subscribe. It needs a name. */
    bool durable;
    int64_t patience_ns; /* of gpuring_subscribe_options */
    void *stream; /* see gpuring_producer_stream */
    gpuring_gate gate;
} gpuring_consumer_options;
#define GPURING_CONSUMER_OPTIONS                                                                   \
    {sizeof(gpuring_consumer_options), NULL, GPURING_START_NEXT, false, false, false, NULL,        \
     GPURING_SPIN_ADAPTIVE, false, false, 0, NULL, GPURING_GATE_AUTO}

/* Joins as a consumer. options: NULL is GPURING_CONSUMER_OPTIONS. Waits as a join of a producer
 * does.
 *
 * One that joins after the last producer has gone waits for the next one, as long as the ring's
 * creator lives, unless the ring says of how many producers its stream is made. But if there are
 * frames left that it begins with (`start`), it reads those, and then gets the end of that
 * stream. */
gpuring_status gpuring_join_consumer(gpuring_ring *ring, const gpuring_consumer_options *options,
                                     gpuring_consumer **consumer, gpuring_error *error);
/* Releases what is held, and leaves the ring; see gpuring_close_producer. */
gpuring_status gpuring_close_consumer(gpuring_consumer *consumer, gpuring_error *error);

/* Acquires the next frame of the subscription. Several frames may be held at once. */
gpuring_status gpuring_acquire(gpuring_consumer *consumer, int64_t timeout_ns, gpuring_slot *slot,
                               gpuring_error *error);
/* Acquires the newest frame that this consumer has not had yet. For lossy ones. */
gpuring_status gpuring_latest(gpuring_consumer *consumer, int64_t timeout_ns, gpuring_slot *slot,
                              gpuring_error *error);
/* Says that the frame has been read. The slot is not the caller's any more, also if this fails. */
gpuring_status gpuring_release(gpuring_consumer *consumer, gpuring_slot *slot,
                               gpuring_error *error);
/* See gpuring_claim_many. */
gpuring_status gpuring_acquire_many(gpuring_consumer *consumer, int64_t timeout_ns,
                                    gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                    gpuring_error *error);
gpuring_status gpuring_release_many(gpuring_consumer *consumer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error);

/* The number of the peer, as `gpuring inspect` shows it. */
uint32_t gpuring_producer_number(const gpuring_producer *producer);
uint32_t gpuring_consumer_number(const gpuring_consumer *consumer);
/* The ring that it has joined. With `reattach` it is another one from the first slot after a restart
 * on. It is valid until a call that hands out a slot says that that is `restarted`, and is not to be
 * detached. gpuring_retain keeps it for longer. */
gpuring_ring *gpuring_producer_ring(const gpuring_producer *producer);
gpuring_ring *gpuring_consumer_ring(const gpuring_consumer *consumer);

/* ---- streams --------------------------------------------------------------------------------- */

/* The stream of the calls from now on, as cublasSetStream sets one. Where the CPU uses the slots it does
 * nothing. A call costs next to nothing, so each verb may have a stream of its own.
 *
 * Claim and acquire make it wait for those who used the slot before, unless their work is done. What
 * is then put into it comes behind them. Publish, abandon and release make others wait for the stream
 * of the claim or acquire, for this one, and for those that were named by use_on. So nobody waits for a
 * GPU on the host, but for a peer with GPURING_GATE_HOST. Who leaves a ring waits for its own work
 * there. With `reattach` that is a call that goes on in the next ring, or the release of the last
 * frame that is held in the earlier one. */
void gpuring_producer_stream(gpuring_producer *producer, void *stream);
void gpuring_consumer_stream(gpuring_consumer *consumer, void *stream);
/* Says that an open slot will be used on another stream, too. That stream waits for all work on the
 * slot so far, and the slot's end will wait for it. */
gpuring_status gpuring_producer_use_on(gpuring_producer *producer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error);
gpuring_status gpuring_consumer_use_on(gpuring_consumer *consumer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error);

/* ---- waiting for several --------------------------------------------------------------------- */

/* Either a producer, of which a claim is wanted, or a consumer. */
typedef struct gpuring_waited {
    size_t size;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    bool ready; /* its verb has an answer: a slot, or an error other than a timeout */
} gpuring_waited;
#define GPURING_WAITED {sizeof(gpuring_waited), NULL, NULL, false}

/* Waits until one of 1 to 128 has an answer, and says which ones have. GPURING_TIMEOUT: none. */
gpuring_status gpuring_select(gpuring_waited *waited, uint32_t count, int64_t timeout_ns,
                              gpuring_error *error);

/* A descriptor for poll(), select() and event loops. It is readable when gpuring_claim, or
 * gpuring_acquire, with timeout 0 may have an answer. It stays readable until such a call times
 * out. It is the library's: do not read or close it. */
gpuring_status gpuring_producer_fd(gpuring_producer *producer, int *fd, gpuring_error *error);
gpuring_status gpuring_consumer_fd(gpuring_consumer *consumer, int *fd, gpuring_error *error);

#ifdef __cplusplus
}
#endif

#endif

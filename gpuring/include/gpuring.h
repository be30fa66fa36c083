/* gpuring: rings of frames in shared memory, for programs in C, C++, Rust and any language that can
 * call C.
 *
 * A program attaches to a ring by its name, and joins it as a producer or as a consumer. Programs
 * in Python use this library, too, so the peers of a ring may be in any of these languages.
 * docs/c.md explains how.
 *
 * Status and errors. A call that can fail returns a gpuring_status, which is GPURING_OK (0) if it
 * has succeeded. If it fails, it describes the failure in the gpuring_error that its caller passes,
 * which may be NULL. A call that succeeds does not change the gpuring_error. Unless its comment
 * says otherwise, a call that fails has changed nothing, and its caller has nothing to give back.
 * But where it would have put a handle or a number, such as in *ring, there may be NULL, 0 or -1.
 * A call that needs a pointer and gets NULL returns GPURING_INVALID.
 *
 * Structures. The first member of each is its size. The caller sets it, most simply with the macro
 * of the same name, as in
 *
 *     gpuring_slot slot = GPURING_SLOT;
 *
 * The library writes or reads no more than this size. So a program that was built with an older
 * header works with a newer library. In an array, the size of the first element counts for all.
 *
 * Threads. Only one thread at a time may use a producer or a consumer. A call that ends one of its
 * slots is such a use. Different threads may use different ones at the same time, and all threads
 * may use the same ring.
 *
 * fork. A forked child cannot use the handles of its parent: calls with them return GPURING_FORKED.
 * The child has to attach to the ring itself.
 *
 * GPUs. The library is not linked to CUDA. It loads the driver when the first ring on a GPU is
 * created or opened. A stream is a CUstream or a cudaStream_t, which are the same type; NULL is the
 * default stream. It must belong to the primary context, which is the one that CUDA's runtime uses.
 *
 * Signals. A wait goes on when a signal handler returns. If the program has to react to a signal,
 * give the wait a timeout, or wait with poll() for a descriptor of the library.
 */
#ifndef GPURING_H
#define GPURING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header, which rises with each addition. gpuring_api_version() returns the
 * version of the library. If that is lower, the library ignores the members that it does not
 * know. */
#define GPURING_API_VERSION 1
uint32_t gpuring_api_version(void);

/* ---- errors ---------------------------------------------------------------------------------- */

/* The exception that Python raises is in brackets. */
typedef enum gpuring_status {
    GPURING_OK = 0,
    GPURING_TIMEOUT = 1,          /* nothing came in time, or a lock was not free (RingTimeout) */
    GPURING_FULL = 2,             /* no slot could be claimed in time (RingFull) */
    GPURING_NOT_FOUND = 3,        /* there is no ring of that name, or none yet (RingNotFound) */
    GPURING_EXISTS = 4,           /* there is already a ring of that name (RingExists) */
    GPURING_INCOMPATIBLE = 5,     /* it is damaged, or of another version (RingIncompatible) */
    GPURING_TOO_MANY_PEERS = 6,   /* a table of the ring is full (TooManyPeers) */
    GPURING_CLOSED = 7,           /* the ring was closed (RingClosed) */
    GPURING_END_OF_STREAM = 8,    /* all frames were read, and no more will come (EndOfStream) */
    GPURING_PEER_LOST = 9,        /* the other side died, or we were taken for dead (PeerLost) */
    GPURING_PRODUCER_DIED = 10,   /* a producer died, and the stream goes on (ProducerDied) */
    GPURING_FRAME_TORN = 11,      /* the producer died before it had written it (FrameTorn) */
    GPURING_NOT_PERMITTED = 12,   /* it belongs to another user (PermissionError) */
    GPURING_NO_ROOM = 13,         /* the system has no memory or no room left (RingError) */
    GPURING_DEVICE = 14,          /* the GPU or its driver reported an error (DeviceError) */
    GPURING_INVALID = 15,         /* an argument is not valid (ValueError, TypeError) */
    GPURING_FORKED = 16,          /* the handle belongs to the parent process (RingError) */
    GPURING_UNSUPPORTED = 17,     /* this library cannot do that yet */
    GPURING_SYSTEM = 18,          /* a system call failed; see sys_errno (OSError) */
    GPURING_FAILED = 19           /* anything else (RingError) */
} gpuring_status;

typedef struct gpuring_error {
    gpuring_status status;
    int sys_errno;     /* the errno of a system call that failed; else 0 */
    int device_status; /* the CUresult of a call of CUDA that failed; else 0 */
    char text[512];    /* UTF-8: which ring, who is in the way, and what can be done */
} gpuring_error;

/* A name such as "GPURING_FULL". It belongs to the library. */
const char *gpuring_status_name(gpuring_status status);

/* ---- rings ----------------------------------------------------------------------------------- */

typedef struct gpuring_ring gpuring_ring;
typedef struct gpuring_producer gpuring_producer;
typedef struct gpuring_consumer gpuring_consumer;

/* As a timeout: wait without end. A timeout of 0 does not wait. Any other negative timeout is
 * GPURING_INVALID. If you compute a timeout from a deadline that may have passed, use 0 then. */
#define GPURING_FOREVER INT64_C(-1)

/* The GPU that is current in this thread, or else GPU 0. For a pinned ring: no GPU, so that the CPU
 * uses the slots. */
#define GPURING_DEVICE_DEFAULT (-1)
/* The GPU that is current in this thread, or else GPU 0, for a pinned ring as well. */
#define GPURING_DEVICE_CURRENT (-2)
/* No GPU: the CPU uses the slots. A ring on a GPU is refused with GPURING_UNSUPPORTED. */
#define GPURING_DEVICE_HOST (-3)

typedef struct gpuring_attach_options {
    size_t size;
    /* For how long to wait for a ring that is alive: its creator lives, or it has a producer. With
     * 0 the call takes the ring that is there, even if all its processes are dead. */
    int64_t timeout_ns;
    /* The id of the user whose ring it must be. -1: this process's own user, or root. The owner of
     * a ring can write every slot, and can crash this process. */
    int64_t owner;
    /* The GPU on which this process uses the slots: its number in this process, or one of the
     * values above. It may be any GPU that can reach the memory of the ring, and for a pinned ring
     * any GPU at all. */
    int device;
    const uint8_t *device_uuid; /* instead of `device`: the UUID (16 bytes) of the GPU; or NULL */
} gpuring_attach_options;
#define GPURING_ATTACH_OPTIONS {sizeof(gpuring_attach_options), 0, -1, GPURING_DEVICE_DEFAULT, NULL}

/* Opens the ring of this name, until gpuring_detach. If options is NULL, GPURING_ATTACH_OPTIONS are
 * used. Returns GPURING_NOT_FOUND if no ring comes in time. For a ring on a GPU the call may wait up
 * to 5 s more for a process that hands over the memory. */
gpuring_status gpuring_attach(const char *name, const gpuring_attach_options *options,
                              gpuring_ring **ring, gpuring_error *error);
/* Detaches from the ring. Close its producers and consumers first: while one of them is open, this
 * returns GPURING_INVALID, and the ring stays attached. If this process has created the ring, the
 * ring is closed for all: readers get the frames that are there, and then the end of the stream.
 * `ring` may be NULL. */
gpuring_status gpuring_detach(gpuring_ring *ring, gpuring_error *error);
/* Counts one more owner of the ring, and returns the ring. Each owner calls gpuring_detach, and the
 * ring stays attached until the last of them has done so. Use it to keep a ring of
 * gpuring_consumer_ring or gpuring_producer_ring over a restart. */
gpuring_ring *gpuring_retain(gpuring_ring *ring);

/* Where the slots are. docs/memory.md says which kind suits you. */
typedef enum gpuring_memory {
    GPURING_MEMORY_HOST = 0,
    GPURING_MEMORY_IPC = 1,    /* on a GPU, by legacy CUDA IPC */
    GPURING_MEMORY_VMM = 2,    /* on a GPU, shared as a file descriptor: consumers can only read */
    GPURING_MEMORY_POOL = 3,   /* on a GPU, in a pool of cudaMallocAsync */
    GPURING_MEMORY_PINNED = 4, /* in host memory, for CPUs and GPUs */
    GPURING_MEMORY_GIVEN = 254, /* only to create: `given` of gpuring_create_options */
    GPURING_MEMORY_AUTO = 255  /* only to create: the kind that suits the GPU */
} gpuring_memory;

/* How streams of different processes wait for each other. EVENT: by interprocess events of CUDA.
 * TIMELINE: by words in memory that streams write and wait for. NONE: a ring in host memory. AUTO
 * takes the timeline if the GPU supports it. */
typedef enum gpuring_sync {
    GPURING_SYNC_AUTO = 0,
    GPURING_SYNC_NONE = 0,
    GPURING_SYNC_EVENT = 1,
    GPURING_SYNC_TIMELINE = 2
} gpuring_sync;

/* Where a peer waits for the GPU work of others. STREAM: its stream waits. HOST: the calling thread
 * waits. AUTO for a peer: as for the ring. AUTO for a new ring: STREAM, or HOST if `sync` is AUTO
 * and the GPU has no timeline. */
typedef enum gpuring_gate {
    GPURING_GATE_AUTO = 0,
    GPURING_GATE_STREAM = 1,
    GPURING_GATE_HOST = 2
} gpuring_gate;

typedef struct gpuring_info {
    size_t size;
    const char *name; /* valid until the ring is detached */
    uint32_t slots, max_peers, max_subscriptions;
    uint32_t producers; /* how many producers the stream has; 1 unless its creator said otherwise */
    uint64_t slot_nbytes, meta_nbytes; /* from one slot to the next; of the metadata of a frame */
    uint32_t fields, meta_fields;      /* the number of fields of a slot, and of the metadata */
    gpuring_memory memory;
    uint8_t epoch[16]; /* distinguishes it from other rings of the same name */
    uint64_t creator_pid;
    bool closed, creator_alive;
    uint32_t live_producers, live_consumers;
    uint64_t next_seq; /* the smallest sequence that nobody has claimed */
    uint64_t dropped;  /* frames for which no slot was free (try_claim) */
    uint64_t deaths;   /* how many peers have died and were cleared */
    gpuring_sync sync;
    gpuring_gate gate;
    int device;        /* the GPU on which this process uses the slots; -1: the CPU uses them */
    /* Whether that GPU can reach the slots. It may not reach those of a pinned ring. Then slot.data
     * is an address for the CPU. Wait for copies between it and the GPU before you end the slot. */
    bool mapped;
    uint8_t device_uuid[16]; /* of the GPU that has the memory; zeros if none has it */
} gpuring_info;
#define GPURING_INFO                                                                               \
    {sizeof(gpuring_info), NULL, 0, 0, 0, 0, 0, 0, 0, 0, GPURING_MEMORY_HOST, {0}, 0, false,       \
     false, 0, 0, 0, 0, 0, GPURING_SYNC_NONE, GPURING_GATE_STREAM, -1, false, {0}}

/* Describes the ring, and its state at the moment. Does not wait. */
gpuring_status gpuring_get_info(const gpuring_ring *ring, gpuring_info *info);

#define GPURING_MAX_DIMENSIONS 8

/* An array of a slot, or a field of a frame's metadata. */
typedef struct gpuring_field {
    size_t size;
    const char *name; /* UTF-8. `name` and `dtype` are valid until the ring is detached */
    /* As NumPy writes it: "|u1" or "<f4", or else "bfloat16". A structure is JSON. For a new ring
     * you may also write "u1" and "=f4", which become "|u1" and "<f4". */
    const char *dtype;
    /* In bytes. The offset is from the start of the slot, or of the metadata. */
    uint64_t offset, itemsize, nbytes;
    uint32_t dimensions;
    uint64_t shape[GPURING_MAX_DIMENSIONS];
} gpuring_field;
#define GPURING_FIELD {sizeof(gpuring_field), NULL, NULL, 0, 0, 0, 0, {0}}

/* Describes a field of the slots, or of the metadata, by its number from 0 or by its name. A ring
 * that was created with shape= and dtype= has one field, "array". Returns GPURING_INVALID if there
 * is no such field. */
gpuring_status gpuring_field_at(const gpuring_ring *ring, uint32_t number, gpuring_field *field);
gpuring_status gpuring_field_named(const gpuring_ring *ring, const char *name,
                                   gpuring_field *field);
gpuring_status gpuring_meta_at(const gpuring_ring *ring, uint32_t number, gpuring_field *field);
gpuring_status gpuring_meta_named(const gpuring_ring *ring, const char *name,
                                  gpuring_field *field);

/* Which existing ring of the same name a new ring may replace. The readers of the old ring get the
 * frames that are there, and then the end of the stream, as if its creator had closed it. */
typedef enum gpuring_replace {
    GPURING_REPLACE_DEAD = 0, /* one whose creator is dead, so that a program can start again */
    GPURING_REPLACE_NONE = 1,
    GPURING_REPLACE_ANY = 2   /* any ring of this user, even one that is in use */
} gpuring_replace;

/* What a new ring is to be. Of each field, set name, dtype, dimensions and shape. */
typedef struct gpuring_create_options {
    size_t size;
    uint32_t slots;              /* how many frames can be in flight, 1 to 1024 */
    const gpuring_field *fields; /* the arrays of a slot; call a single one "array" */
    uint32_t field_count;
    const gpuring_field *meta;   /* the fields of a frame's metadata, packed in this order */
    uint32_t meta_count;
    uint32_t producers;          /* the stream ends when this many producers have left */
    uint32_t max_peers, max_subscriptions; /* how many there can be at a time, 1 to 250 */
    uint32_t mode;               /* permissions, as of a file: 0600 admits only this user */
    gpuring_replace replace;
    /* The names of lossless durable subscriptions that the ring has from its first frame on. */
    const char *const *subscriptions;
    uint32_t subscription_count;
    gpuring_memory memory;
    int device;                  /* not for host memory; see gpuring_attach_options */
    const uint8_t *device_uuid;
    gpuring_sync sync;           /* only for a ring on a GPU; a pinned ring has a timeline */
    gpuring_gate gate;           /* not for host memory */
    /* With GPURING_MEMORY_GIVEN: memory on a GPU that the program has allocated, and its size in
     * bytes. The slots lie at its beginning. It is a whole allocation of cudaMalloc, which becomes
     * GPURING_MEMORY_IPC, or virtual memory that can be exported as a file descriptor, which
     * becomes GPURING_MEMORY_VMM. gpuring_has_given says when it may be freed. */
    void *given;
    uint64_t given_nbytes;
} gpuring_create_options;
#define GPURING_CREATE_OPTIONS                                                                     \
    {sizeof(gpuring_create_options), 8, NULL, 0, NULL, 0, 1, 32, 16, 0600, GPURING_REPLACE_DEAD,    \
     NULL, 0, GPURING_MEMORY_HOST, GPURING_DEVICE_DEFAULT, NULL, GPURING_SYNC_AUTO,                 \
     GPURING_GATE_AUTO, NULL, 0}

/* Creates a ring, which this process then owns. Its name appears when it is complete, so a process
 * that finds the name can attach. If several processes create it at once, one of them succeeds, and
 * the others get GPURING_EXISTS.
 *
 * If the new ring replaces an old one, it takes over its durable subscriptions. Frames of the old
 * ring that such a subscription has not read count as lost. The old ring is closed when the new one
 * is complete, so both need room at the same time, unless nobody uses the old one any more. */
gpuring_status gpuring_create(const char *name, const gpuring_create_options *options,
                              gpuring_ring **ring, gpuring_error *error);
/* Whether a ring that this process has created still uses this memory, which was passed as `given`.
 * Do not free the memory while it does: until the ring is detached here, and no other process has
 * it any more. */
bool gpuring_has_given(const void *given);
/* Removes the name of a ring. Its peers go on, and no other process can attach to it. Returns
 * GPURING_NOT_FOUND if there is none. */
gpuring_status gpuring_unlink(const char *name, gpuring_error *error);

/* ---- durable subscriptions ------------------------------------------------------------------- */

/* Where a subscription begins: one of these, or a sequence. If the frame of that sequence is gone, it
 * begins with the oldest one, and slot.lost does not count those between. */
#define GPURING_START_NEXT INT64_C(-1)   /* the next frame to be claimed */
/* The oldest frame that is still there. In a full ring it is the second one, because the next claim
 * overwrites the oldest. */
#define GPURING_START_OLDEST INT64_C(-2)

typedef struct gpuring_subscribe_options {
    size_t size;
    int64_t start; /* where a new one begins; see GPURING_START_NEXT */
    bool lossy;    /* producers do not wait for it, and slot.lost counts what it has missed */
    bool drop;     /* a frame that a member held when it died goes to no other member */
    /* For how long producers wait for it while it has no member. Then it is given up: producers go
     * on, and slot.lost of the next member's first frame counts what was missed. 0 keeps the value
     * that was set before, which is GPURING_FOREVER for a new one. */
    int64_t patience_ns;
} gpuring_subscribe_options;
#define GPURING_SUBSCRIBE_OPTIONS                                                                  \
    {sizeof(gpuring_subscribe_options), GPURING_START_NEXT, false, false, 0}

/* Makes a durable subscription, which needs no consumer, or makes an existing one durable. It stays
 * when its last member leaves or dies. The next member goes on behind the last frame that was
 * released, also in the next ring of this name. Waits as gpuring_join_producer does. */
gpuring_status gpuring_subscribe(gpuring_ring *ring, const char *subscription,
                                 const gpuring_subscribe_options *options, gpuring_error *error);
/* Makes a durable subscription an ordinary one: it ends when its last member leaves, and at once if
 * it has none. *found is set to whether there is a subscription of this name; `found` may be
 * NULL. */
gpuring_status gpuring_unsubscribe(gpuring_ring *ring, const char *subscription, bool *found,
                                   gpuring_error *error);

/* ---- slots ----------------------------------------------------------------------------------- */

/* A slot that a producer has claimed, or whose frame a consumer holds. */
typedef struct gpuring_slot {
    size_t size;
    uint64_t seq;
    uint32_t number; /* the index of the slot in the ring */
    /* The first byte of the slot, and of the frame's metadata (NULL if there is none). A consumer
     * may only read them. On a GPU `data` is a device pointer. From claim or acquire to the end of
     * the slot, use it in the stream of its producer or consumer. */
    void *data, *meta;
    /* host: the same bytes for the CPU; NULL if only a GPU can reach them. mapped: whether a GPU
     * can reach `data`, as in gpuring_info. */
    void *host;
    bool mapped;
    /* Whether this is the first slot after a restart, if the peer has joined with `reattach`. It
     * may belong to another ring, with other fields. gpuring_producer_ring and
     * gpuring_consumer_ring return that ring. */
    bool restarted;
    /* The shape of a frame that is smaller than the slot. If the frame fills it, dimensions is
     * 0. */
    uint32_t dimensions;
    uint64_t shape[GPURING_MAX_DIMENSIONS];
    /* The rest is set in slots of consumers only. */
    /* How many frames were lost before this one. A lossy consumer also counts sequences that
     * carried no frame, because a claim was abandoned, or because the slot was still held. */
    uint64_t lost;
    uint32_t producer;    /* the number of the peer that has written the frame */
    bool redelivered;     /* a member, maybe this one, had the frame before */
    int64_t published_ns; /* CLOCK_MONOTONIC */
} gpuring_slot;
#define GPURING_SLOT                                                                               \
    {sizeof(gpuring_slot), 0, 0, NULL, NULL, NULL, false, false, 0, {0}, 0, 0, false, 0}

/* ---- producers ------------------------------------------------------------------------------- */

/* For spin_ns: how long a wait spins before it sleeps. ADAPTIVE is at most 50 us, or as many
 * seconds as the environment variable GPURING_SPIN says. */
#define GPURING_SPIN_ADAPTIVE INT64_C(-1)
#define GPURING_SPIN_FOREVER INT64_MAX

typedef struct gpuring_producer_options {
    size_t size;
    const char *label; /* its name in tools and messages, at most 64 bytes. NULL: the program's */
    int64_t spin_ns;
    /* Follows the ring over restarts. If another process has created the ring, and closes or
     * replaces it, the next claim waits for the new ring of the name, for as long as its timeout,
     * and joins it on the same GPU and stream. In the process that has created the ring, the claim
     * returns GPURING_CLOSED instead. */
    bool reattach;
    void *stream; /* see gpuring_producer_stream */
    gpuring_gate gate;
} gpuring_producer_options;
#define GPURING_PRODUCER_OPTIONS                                                                   \
    {sizeof(gpuring_producer_options), NULL, GPURING_SPIN_ADAPTIVE, false, NULL, GPURING_GATE_AUTO}

/* Joins the ring as a producer, until gpuring_close_producer. If options is NULL,
 * GPURING_PRODUCER_OPTIONS are used. Waits only while another process is joining or leaving, for up
 * to 5 s. */
gpuring_status gpuring_join_producer(gpuring_ring *ring, const gpuring_producer_options *options,
                                     gpuring_producer **producer, gpuring_error *error);
/* Abandons all claims, and leaves the ring. Returns GPURING_TIMEOUT if another process has held the
 * membership lock for 5 s; then the producer is still open. `producer` may be NULL. */
gpuring_status gpuring_close_producer(gpuring_producer *producer, gpuring_error *error);

/* Claims the next slot, to be written and then published or abandoned. Waits while a lossless
 * subscription still needs the slot, and returns GPURING_FULL if it is not free in time. A producer
 * may have several claims at a time. If the next slot is one of them, a claim without a timeout
 * returns GPURING_INVALID, because it would wait for ever. */
gpuring_status gpuring_claim(gpuring_producer *producer, int64_t timeout_ns, gpuring_slot *slot,
                             gpuring_error *error);
/* Claims the next slot if it is free, and never waits. If it is not free, returns GPURING_FULL and
 * counts the frame as dropped. Readers see that in slot.lost of the next frame. */
gpuring_status gpuring_try_claim(gpuring_producer *producer, gpuring_slot *slot,
                                 gpuring_error *error);
/* Sets the shape of a frame that is smaller than the slot, also in *slot. Call it before the
 * publish. The ring must have only one field. */
gpuring_status gpuring_set_shape(gpuring_producer *producer, gpuring_slot *slot,
                                 uint32_t dimensions, const uint64_t *shape,
                                 gpuring_error *error);
/* Publishes the frame, so that readers see it. The caller may not use the slot any more, even if
 * this fails. Does not wait for a GPU. */
gpuring_status gpuring_publish(gpuring_producer *producer, gpuring_slot *slot,
                               gpuring_error *error);
/* Gives up the claim. Its sequence carries no frame. The caller may not use the slot any more, even
 * if this fails. Does not wait for a GPU. */
gpuring_status gpuring_abandon(gpuring_producer *producer, gpuring_slot *slot,
                               gpuring_error *error);
/* Claims at least one slot and up to `wanted`. Waits for the first one only. *got is set to how
 * many were claimed. */
gpuring_status gpuring_claim_many(gpuring_producer *producer, int64_t timeout_ns,
                                  gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                  gpuring_error *error);
/* Publishes all of these slots, as gpuring_publish does. If one of them cannot be published, those
 * behind it are abandoned. If one is not open, or is given twice, returns GPURING_INVALID and
 * publishes none. */
gpuring_status gpuring_publish_many(gpuring_producer *producer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error);

/* ---- consumers ------------------------------------------------------------------------------- */

typedef struct gpuring_consumer_options {
    size_t size;
    /* The members of a subscription share its frames. Its name is UTF-8, in at most 64 bytes. NULL: a
     * subscription for this consumer alone. */
    const char *subscription;
    int64_t start;  /* where a new subscription begins; see GPURING_START_NEXT */
    bool lossy;     /* producers do not wait for it, and slot.lost counts what it has missed */
    bool drop;      /* a frame that a member held when it died goes to no other member */
    bool deaths;    /* a call returns GPURING_PRODUCER_DIED once for each producer that has died */
    const char *label;
    int64_t spin_ns;
    /* Follows the ring over restarts. At the end of the stream, or if the last producer or the
     * creator has died, a call waits for another producer, or for a new ring of the same name, for
     * as long as its timeout. There it joins the same subscription, on the same GPU and stream.
     * Frames of the old ring that are held stay valid until they are released. */
    bool reattach;
    bool durable; /* makes the subscription durable; see gpuring_subscribe; it needs a name */
    int64_t patience_ns; /* of a durable one; see gpuring_subscribe_options */
    void *stream; /* see gpuring_producer_stream */
    gpuring_gate gate;
} gpuring_consumer_options;
#define GPURING_CONSUMER_OPTIONS                                                                   \
    {sizeof(gpuring_consumer_options), NULL, GPURING_START_NEXT, false, false, false, NULL,        \
     GPURING_SPIN_ADAPTIVE, false, false, 0, NULL, GPURING_GATE_AUTO}

/* Joins the ring as a consumer, until gpuring_close_consumer. If options is NULL,
 * GPURING_CONSUMER_OPTIONS are used. Waits as gpuring_join_producer does.
 *
 * If the last producer has gone already, the consumer waits for the next one, as long as the ring's
 * creator lives and the stream has only one producer. But if there are frames left from `start` on,
 * it reads those, and then gets the end of the stream. */
gpuring_status gpuring_join_consumer(gpuring_ring *ring, const gpuring_consumer_options *options,
                                     gpuring_consumer **consumer, gpuring_error *error);
/* Releases all frames that are held, and leaves the ring. See gpuring_close_producer. Does not tell of
 * frames that are torn. */
gpuring_status gpuring_close_consumer(gpuring_consumer *consumer, gpuring_error *error);

/* Acquires the next frame of the subscription, to be read and then released. Waits until there is
 * one. Returns GPURING_TIMEOUT if none comes in time. After the last one, returns
 * GPURING_END_OF_STREAM, or GPURING_PEER_LOST if the last producer has died. A consumer may hold
 * several frames at a time. */
gpuring_status gpuring_acquire(gpuring_consumer *consumer, int64_t timeout_ns, gpuring_slot *slot,
                               gpuring_error *error);
/* Acquires the newest frame that this consumer has not had yet. The subscription must be lossy.
 * Waits until there is one. */
gpuring_status gpuring_latest(gpuring_consumer *consumer, int64_t timeout_ns, gpuring_slot *slot,
                              gpuring_error *error);
/* Releases the frame, so that its slot can be used again. The caller may not use the slot any more,
 * even if this fails. Does not wait for a GPU. Returns GPURING_FRAME_TORN if the producer is known
 * to have died before its GPU had written the frame. If that shows only later, the next acquire
 * returns it. */
gpuring_status gpuring_release(gpuring_consumer *consumer, gpuring_slot *slot,
                               gpuring_error *error);
/* Acquires at least one frame and up to `wanted`, as gpuring_claim_many claims slots. */
gpuring_status gpuring_acquire_many(gpuring_consumer *consumer, int64_t timeout_ns,
                                    gpuring_slot *slots, uint32_t wanted, uint32_t *got,
                                    gpuring_error *error);
/* Releases all of these frames, as gpuring_release does, also if some are torn. If one is not open, or
 * is given twice, returns GPURING_INVALID and releases none. */
gpuring_status gpuring_release_many(gpuring_consumer *consumer, gpuring_slot *slots, uint32_t count,
                                    gpuring_error *error);

/* The number of the peer, as `gpuring inspect` shows it. UINT32_MAX: it is NULL. */
uint32_t gpuring_producer_number(const gpuring_producer *producer);
uint32_t gpuring_consumer_number(const gpuring_consumer *consumer);
/* The ring that the peer has joined. With `reattach` a restart may change it, and the first slot of
 * the new ring has `restarted` set. Until then the pointer is valid. Do not detach it. If you need
 * the ring for longer, call gpuring_retain. Returns NULL for NULL. */
gpuring_ring *gpuring_producer_ring(const gpuring_producer *producer);
gpuring_ring *gpuring_consumer_ring(const gpuring_consumer *consumer);

/* ---- streams --------------------------------------------------------------------------------- */

/* Sets the stream of all later calls of this peer, as cublasSetStream does. If the CPU uses the
 * slots, it has no effect. The call is cheap, so you may set another stream before each verb.
 *
 * Claim and acquire make the stream wait for GPU work of others on the slot, unless that is done.
 * Work that you enqueue in the stream afterwards runs behind it. Publish, abandon and release let
 * others wait for your work in three kinds of streams: that of the claim or acquire, the one that
 * is set now, and those that were named by use_on. So no CPU thread waits for a GPU, with two
 * exceptions. A peer with GPURING_GATE_HOST waits in claim and acquire. A peer that leaves a ring
 * waits for its own work; with `reattach` that may happen in a call that goes on in the next ring,
 * or in the release of the last frame of the earlier one. */
void gpuring_producer_stream(gpuring_producer *producer, void *stream);
void gpuring_consumer_stream(gpuring_consumer *consumer, void *stream);
/* Call it before you use an open slot on a further stream. That stream waits for all work on the
 * slot so far. Those who use the slot after its end wait for that stream, too. */
gpuring_status gpuring_producer_use_on(gpuring_producer *producer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error);
gpuring_status gpuring_consumer_use_on(gpuring_consumer *consumer, const gpuring_slot *slot,
                                       void *stream, gpuring_error *error);

/* ---- waiting for several --------------------------------------------------------------------- */

/* Set either the producer, to wait until it can claim, or the consumer, to wait for a frame. */
typedef struct gpuring_waited {
    size_t size;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    bool ready; /* its verb would return at once, with a slot or an error other than a timeout */
} gpuring_waited;
#define GPURING_WAITED {sizeof(gpuring_waited), NULL, NULL, false}

/* Waits until at least one of 1 to 128 peers is ready, and sets `ready` of each. Returns
 * GPURING_TIMEOUT if none is ready in time. */
gpuring_status gpuring_select(gpuring_waited *waited, uint32_t count, int64_t timeout_ns,
                              gpuring_error *error);

/* Sets *fd to a descriptor for poll(), select() and event loops. It becomes readable when
 * gpuring_claim or gpuring_acquire with timeout 0 may have an answer, and stays readable until such
 * a call times out. It belongs to the library: do not read from it, and do not close it. */
gpuring_status gpuring_producer_fd(gpuring_producer *producer, int *fd, gpuring_error *error);
gpuring_status gpuring_consumer_fd(gpuring_consumer *consumer, int *fd, gpuring_error *error);

#ifdef __cplusplus
}
#endif

#endif

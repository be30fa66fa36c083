/* Device order: the verbs of a ring as a program uses them, each with what its GPU stream has to do.
 *
 * The core (core/ring.h) orders hosts; this orders streams.  A peer *promises* a value for its GPU work on a slot,
 * then enqueues the operation that makes its fence reach that value, then lets others see the frame: so whoever is
 * told to wait waits for something that is in a stream already.  docs/protocol.md ("Two orders") is the argument.
 *
 *   driver.c    the CUDA driver: a table of functions
 *   device.c    one process's device order of one ring: open, close, streams, captures, "behind these streams"
 *   timeline.c  fences are 64-bit words that streams write and await       } struct gd_sync: the two
 *   event.c     fences are interprocess events, one for each peer and slot }   synchronisers
 *   order.c     before a slot is used: wait or not, on the stream or on the host
 *   record.c    after a slot was used: promise, record; what is done when the driver refuses
 *   released.c  frames that may still turn out torn after their release
 *   verbs.c     claim, publish, abandon, acquire, latest, release, leave: one call is one transition, whole
 *
 * On host memory there is no device (gd_peer.device is NULL): the CPU stores its fences itself, with the same verbs.
 *
 * Waiting.  No call here waits for longer than a slice (wait.c), but the driver may: for room in a full stream, and
 * for the whole device after a record that it refused, or at close.  One that has to wait on returns GR_SIGNAL:
 * look after signals, then call it again with the same gd_call and GD_AGAIN, or give up with gd_cancel.
 * Without GD_WAIT a call neither sleeps nor enqueues: it returns GR_SIGNAL where it would have to.
 *
 * Threads.  claim, acquire, latest and leave of a peer belong to one thread at a time.  publish, abandon and release
 * of a slot belong to who has the slot, which may be another thread at the same time.
 */
#ifndef GPURING_DEVICE_H
#define GPURING_DEVICE_H

#include "../core/ring.h"
#include "driver.h"

typedef uintptr_t gd_stream; /* a CUstream; these handles are special, and belong to whatever device is current: */
enum { GD_LEGACY = 0, GD_PER_THREAD = 2 };

/* What the driver refused, or what could not be had, for whoever words it. */
enum gd_where {
    GD_NOWHERE = 0,
    GD_ON_STREAM,     /* the stream does not take the operation; status */
    GD_CAPTURED,      /* it is being captured, or a capture elsewhere forbids the operation; status */
    GD_OTHER_DEVICE,  /* a default stream, and another device (value) is current */
    GD_NO_CONTEXT,    /* this thread cannot use the device; status */
    GD_OPEN_EVENT,    /* peer's event for slot index cannot be opened; status */
    GD_MAKE_EVENTS,   /* value of the interprocess events of a peer were to be had; status */
    GD_WORK_FAILED,   /* peer's GPU work on slot index, as far as this process sees it, has failed; status */
    GD_NOT_NOW,       /* the device cannot be waited for while a thread captures; status */
    GD_REGISTER,      /* the header cannot be mapped into the GPU; status */
    GD_NO_MEMORY      /* of the host */
};
struct gd_trouble {
    enum gd_where where;
    int status;
    gd_stream stream;
    uint32_t peer, index;
    uint64_t value;
};

struct gd_peer;
struct gd_call;
struct gd_row;

/* ---- one process's device order of one ring ------------------------------------------------------------------- */

struct gd_promise {
    uint32_t index;
    uint64_t value;
};

/* What the two synchronisers do differently.  Results are the driver's: CU_OK, or why not. */
struct gd_sync {
    /* stream stores fence[index][me] = value behind all its work so far; for n promises in one call, or NULL */
    int (*record)(struct gd_peer *me, gd_stream stream, const struct gd_promise *promise);
    int (*record_many)(struct gd_peer *me, gd_stream stream, const struct gd_promise *promises, uint32_t n);
    /* whether fence[index][peer] >= value: CU_OK, CU_NOT_READY, or an error.  Only for what was recorded. */
    int (*paid)(struct gd_peer *me, uint32_t peer, uint32_t index, uint64_t value, struct gd_trouble *trouble);
    /* the same at once and without an error, or NULL: the word alone tells */
    bool (*seen)(struct gd_peer *me, uint32_t peer, uint32_t index, uint64_t value);
    /* the same for a slot that is not ours, where a promise may not be recorded yet: a hint that raises nothing */
    bool (*hint)(struct gd_peer *me, uint32_t peer, uint32_t index, uint64_t value);
    /* the stream is to wait for it; a timeline collects waits in call->ops */
    int (*wait)(struct gd_peer *me, struct gd_call *call, uint32_t peer, uint32_t index, uint64_t value);
};
extern const struct gd_sync gd_timeline, gd_events;

struct gd_device {
    struct gd_driver *driver;
    struct gr_ring *ring;
    const struct gd_sync *sync;
    int ordinal;    /* of the GPU under which this process has the slots */
    void *context;  /* its primary one */
    uint64_t base;  /* timeline: where the GPU has the fence table */
    pthread_mutex_t mutex; /* guards what follows; held for no driver call that could wait for a stream */
    struct gd_row *rows[GR_MAX_PEERS];
    struct gd_own_event *spare; /* events without interprocess use, by which one stream follows another */
};

/* GR_OK or GR_DEVICE.  Makes no peer. */
enum gr_result gd_open(struct gd_device *device, struct gd_driver *driver, struct gr_ring *ring, int ordinal,
                       struct gd_trouble *trouble);
/* Waits for this process's work on the GPU.  False: a thread captures, and the header must stay mapped for good. */
bool gd_close(struct gd_device *device);
/* Whether `stream` may be used for the ring now, in this thread; a thread without a context is given the device's. */
enum gr_result gd_check_stream(struct gd_device *device, gd_stream stream, struct gd_trouble *trouble);
/* Makes `stream` wait for all work so far on `others`. */
enum gr_result gd_follow(struct gd_device *device, gd_stream stream, const gd_stream *others, uint32_t n,
                         struct gd_trouble *trouble);
int gd_captured(const struct gd_device *device, gd_stream stream);
uint64_t gd_stream_id(const struct gd_device *device, gd_stream stream);
uint64_t gd_this_thread(void);

/* event.c */
enum gr_result gd_take_events(struct gd_peer *me, struct gd_trouble *trouble);
void gd_give_events(struct gd_peer *me);
void gd_drop_rows(struct gd_device *device);
bool gd_event_done(struct gd_device *device, uint32_t peer, uint64_t peer_id, uint32_t index);
int gd_take_spare(struct gd_device *device, struct gd_own_event **spare);
void gd_give_spare(struct gd_device *device, struct gd_own_event *spare);
void gd_drop_spares(struct gd_device *device);

/* ---- a peer ------------------------------------------------------------------------------------------------------ */

enum { GD_STREAMS = 4 }; /* of one slot, before there is an allocation */

/* A slot in this peer's hands, from its claim or acquire to its end.  Whoever has the slot has this. */
struct gd_use {
    uint64_t seq;
    bool open;     /* it is ours */
    bool unpaid;   /* its last promise may be unpaid: it is not given up before the next one is paid */
    bool redelivered;
    uint32_t producer;  /* these four: of a frame that is read; `lost` was skipped just before it */
    uint64_t producer_id, value, lost;
    uint32_t ndim;      /* of a frame smaller than the slot, else 0 */
    uint64_t shape[GR_MAX_NDIM];
    /* On which streams it was used: the one that it was claimed or acquired for first. */
    uint32_t streams, room;
    gd_stream *stream, few[GD_STREAMS];
    uint64_t thread;    /* whose per-thread default stream is among them; 0: none */
    bool of_another;    /* GD_LEGACY among them stands for the per-thread one of another thread */
    /* On which stream the last fence operation is (its id, 0: unknown), and a handle whose id was asked for. */
    uint64_t recorded_on, asked_id;
    gd_stream asked;
};

struct gd_frame { /* released while its producer's GPU was at work on it */
    uint32_t index, producer;
    uint64_t producer_id, seq, value;
    uint64_t own;    /* our own promise of its release */
    uint64_t stream; /* tells the stream of that promise from others; 0: was not asked for */
    uint64_t number; /* of the frames that were remembered */
};
struct gd_released {
    pthread_mutex_t mutex; /* released by one thread, looked at by another */
    struct gd_frame *frames;
    size_t room, limit, reserved; /* reserved: for releases in progress */
    _Atomic size_t n;
    uint64_t reaps;  /* deaths up to which they were looked through */
    uint64_t *torn;  /* sequences that turned out torn and were not told */
    size_t torn_room;
    _Atomic size_t torns;
    uint64_t remembered;
    /* events: one more of our own, behind the frames before number checkpoint_at on one stream */
    struct gd_own_event *checkpoint;
    bool checkpoint_set, setting; /* setting: by some thread, outside the mutex */
    uint64_t checkpoint_at, checkpoint_on;
    uint64_t *done; /* [slots], while frames are dropped */
};

struct gd_peer {
    struct gr_peer me;
    struct gd_device *device; /* NULL: host memory */
    struct gd_use *use;       /* [slots] */
    bool gate_host;           /* waits for others' GPU work on the host, and puts no wait into a stream */
    struct gd_own_event **own; /* events: [slots], made at join */
    struct gd_released released;
    /* order.c, gd_soon: the last promise, the fences it will not look at, and how many those were last time */
    gr_word last_value;
    uint32_t blind, backoff;
    int64_t lap_ns; /* spent on looks at our own work, since it was last less than a lap behind */
};

/* GR_OK, GR_SYSTEM (errno ENOMEM) or GR_DEVICE.  `me->me` has joined; device NULL for host memory. */
enum gr_result gd_prepare(struct gd_peer *me, struct gd_device *device, bool gate_host, struct gd_trouble *trouble);
/* Frees what gd_prepare made.  The peer has left, or is dead. */
void gd_dispose(struct gd_peer *me);

/* ---- a call of a verb -------------------------------------------------------------------------------------------- */

enum { GD_WAIT = 1, GD_AGAIN = 2 };
enum { GD_MAX_OPS = 128 }; /* in one submission (CUDA takes 256); a claim has at most one for each peer */

struct gd_call {
    gd_stream stream;
    int64_t deadline_ns;
    uint32_t n;          /* slots wanted */
    uint32_t *indices;   /* [n] of the slots: made by claim and acquire, given to publish and release */
    struct gd_trouble trouble; /* of GR_DEVICE */
    uint32_t torns;            /* of the frames that were released, those known to be torn: their sequences */
    uint64_t torn[GD_MAX_OPS];
    /* private, from one slice to the next */
    uint32_t got, at;    /* frames so far; how many of the last one's pending fences are dealt with */
    bool ordering;       /* the last one is ours, and not ordered yet (or recorded, and not settled yet) */
    bool checked, failed;
    enum { GD_TRY, GD_SPIN, GD_SLEEP } stage; /* of host order */
    int64_t since_ns;    /* of the wait in progress */
    uint64_t stream_id;  /* 0: not asked for */
    int64_t look_until_ns; /* of all looks of this call at fences that may come soon; 0: not begun */
    enum gr_result refused; /* by the core, of an end */
    unsigned ops;
    struct gd_mem_op op[GD_MAX_OPS];
};
static inline void gd_begin(struct gd_call *call, gd_stream stream, int64_t deadline_ns, uint32_t n, uint32_t *indices) {
    call->stream = stream;
    call->deadline_ns = deadline_ns;
    call->n = n;
    call->indices = indices;
    call->trouble.where = GD_NOWHERE;
    call->got = call->at = call->ops = call->torns = 0;
    call->ordering = call->checked = call->failed = false;
    call->stage = GD_TRY;
    call->since_ns = 0;
    call->stream_id = 0;
    call->look_until_ns = 0;
    call->refused = GR_OK;
}

/* GR_OK: call->got slots are claimed, at least one, and the stream is ordered behind whoever used them before.
 * Waits until there is one, then takes what is free.  Otherwise nothing is claimed (sequences may have become void). */
enum gr_result gd_claim(struct gd_peer *me, struct gd_call *call, unsigned how);
/* Likewise, frames that are held; verb: gr_acquire or gr_latest.  GR_TORN_BEHIND: nothing is held; me->released.torn names
 * frames released earlier that have turned out torn. */
enum gr_result gd_acquire(struct gd_peer *me, struct gd_call *call, unsigned how, gr_verb verb);
/* After GR_SIGNAL of one of the two, if it is not called again: leaves nothing claimed and nothing held. */
void gd_cancel(struct gd_peer *me, struct gd_call *call);

/* The end of slots in our hands, behind all work on the streams that used them and on call->stream, the current one.
 * A slot that is `open` afterwards is still ours: the driver refused during a capture, or the call was given up
 * while it settled; then the verb may be called again.  GR_DEVICE: what could be given up was (a frame as void). */
enum gr_result gd_publish(struct gd_peer *me, struct gd_call *call, unsigned how);
enum gr_result gd_abandon(struct gd_peer *me, struct gd_call *call, unsigned how);
enum gr_result gd_release(struct gd_peer *me, struct gd_call *call, unsigned how); /* GR_OK: then see call->torn */

/* The slot will be used on `stream` too: that waits for all work on the slot so far, and its end for that stream. */
enum gr_result gd_use_on(struct gd_peer *me, uint32_t index, gd_stream stream, struct gd_trouble *trouble);
/* Undoes a claim or a hold of whose slot the user knows nothing. */
enum gr_result gd_put_back(struct gd_peer *me, uint32_t index);
/* After everything has been ended: waits until the GPU has done all that this peer has promised, then leaves the ring. */
enum gr_result gd_leave(struct gd_peer *me, struct gd_call *call, unsigned how);

/* Whether the frame in slot `index` that this consumer holds is known to be torn.  Final once its own work is done. */
bool gd_is_torn(struct gd_peer *me, uint32_t index);

/* Frames released earlier that turned out torn: whether the next acquire says GR_TORN_BEHIND; a look that finds them; their
 * sequences, which are told with that; and one to be told later, while something else has to be said. */
bool gd_would_tell(struct gd_peer *me);
bool gd_look_at_released(struct gd_peer *me);
size_t gd_take_torn(struct gd_peer *me, uint64_t *seqs, size_t room);
void gd_tell_later(struct gd_peer *me, uint64_t seq);
/* After a promise that may be unpaid, or before a frame is opened to other members again: until the streams that used the
 * slot are idle.  GR_SIGNAL: call again. */
enum gr_result gd_settle(struct gd_peer *me, struct gd_call *call, uint32_t index);

/* ---- within the folder --------------------------------------------------------------------------------------------- */

/* order.c */
enum gr_result gd_await_next(struct gd_peer *me, struct gd_call *call, unsigned how);
enum gr_result gd_order(struct gd_peer *me, struct gd_call *call, unsigned how);
enum gr_result gd_submit(struct gd_peer *me, struct gd_call *call);
enum gr_result gd_refuse(struct gd_call *call, enum gd_where where, gd_stream stream, int status);
void gd_pause(void);

/* record.c */
enum gr_result gd_record(struct gd_peer *me, struct gd_call *call, uint32_t index, uint64_t *value);
enum gr_result gd_record_all(struct gd_peer *me, struct gd_call *call, uint64_t *values);
enum gr_result gd_drain(struct gd_peer *me, struct gd_call *call, unsigned how);
void gd_enter_thread(struct gd_use *use);
void gd_leave_thread(struct gd_use *use);
bool gd_add_stream(struct gd_use *use, gd_stream stream);

/* released.c */
bool gd_released_prepare(struct gd_peer *me);
void gd_released_dispose(struct gd_peer *me);
void gd_drop_checkpoint(struct gd_peer *me);
bool gd_reserve(struct gd_released *released);
void gd_unreserve(struct gd_released *released, size_t n);
void gd_remember(struct gd_peer *me, const struct gd_frame *frame, gd_stream stream);
bool gd_is_due(struct gd_peer *me); /* somebody died, or there are many, or some are known to be torn: look */
bool gd_may_be_torn(const struct gd_peer *me); /* the frame of the last acquire: its producer has died */

#endif

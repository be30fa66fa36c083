/* Device order: the verbs of a ring as a program uses them, each with what its GPU stream has to
 * do.
 *
 * The core (core) orders what CPUs do. This orders what streams do. A peer *promises* a
 * value for its GPU work on a slot, then enqueues the operation that makes its fence reach that
 * value, and only then lets others see the frame. So whatever a stream waits for is already in a
 * stream. "Two orders" in docs/protocol.md has the argument.
 *
 * Each .c file has a header of its own. No file needs one that stands below it in this list, and
 * the core needs none of them:
 *
 *   driver      the CUDA driver, as a table of functions
 *   state.h     this: what one process keeps for its device order
 *   own_event   events that this process made
 *   stream      what a stream is asked, and what is put into it
 *   timeline    fences are 64-bit words that streams store and wait for   } struct gd_sync: the
 *   event       fences are interprocess events, one per peer and slot     } two synchronisers
 *   released    frames that may still turn out torn after their release
 *   device      opens and closes the device order of a ring, and that of a peer
 *   order       before a slot is used: whether and how to wait for other GPU work
 *   record      after a slot was used: promise, record, and what to do when the driver refuses
 *   ends        publish, abandon, release      } one call, one
 *   verbs       claim, acquire, latest, leave  } transition
 *
 * state.h includes core/peer.h and driver.h. A file includes all else that it uses.
 *
 * A peer that uses the slots by the CPU has no device (gd_peer.device is NULL). The same verbs are
 * used, and nothing is promised or recorded. On host memory all peers are like that. On pinned
 * memory some are, and others have a device.
 *
 * Waiting. No call here waits for longer than a slice (core/wait.c). The driver may wait for
 * longer: for room in a full stream, and for the whole device after a record that it refused, or
 * at close. A call that has to go on waiting returns GR_SIGNAL. The caller then handles signals,
 * and calls again with the same gd_call and GD_AGAIN, or gives up with gd_cancel. Without GD_WAIT
 * a call neither sleeps nor enqueues anything: it returns GR_SIGNAL where it would have to.
 *
 * Threads. claim, acquire, latest and leave of a peer belong to one thread at a time. publish,
 * abandon and release of a slot belong to the thread that has the slot, which may be another one
 * at the same time.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../core/peer.h"
#include "driver.h"

/* A CUstream. Two special handles mean a stream of whatever device is current. */
typedef uintptr_t gd_stream;
enum { GD_LEGACY = 0, GD_PER_THREAD = 2 };

/* What the driver refused, or what there was not enough of. memory/trouble.c has the words for it. */
enum gd_where {
    GD_NOWHERE = 0,
    GD_ON_STREAM,     /* the stream does not take the operation; status */
    GD_CAPTURED,      /* a capture of it, or of another, forbids the operation; status */
    GD_OTHER_DEVICE,  /* a default stream, and another device (value) is current */
    GD_NO_CONTEXT,    /* this thread cannot use the device; status */
    GD_OPEN_EVENT,    /* peer's event for slot index cannot be opened; status */
    GD_MAKE_EVENTS,   /* value: how many of a peer's interprocess events could be made; status */
    GD_WORK_FAILED,   /* peer's GPU work on slot index has failed, as seen from here; status */
    GD_NOT_NOW,       /* the device cannot be waited for while a thread captures; status */
    GD_REGISTER,      /* the header cannot be mapped into the GPU; status */
    GD_NO_MEMORY      /* no host memory */
};
struct gd_trouble {
    enum gd_where where;
    int status;
    gd_stream stream;
    uint32_t peer, index;
    uint64_t value;
};

static inline enum gr_result gd_trouble_of(struct gd_trouble *trouble, enum gd_where where,
                                           gd_stream stream, int status) {
    *trouble = (struct gd_trouble){.where = where, .stream = stream, .status = status};
    return GR_DEVICE;
}

struct gd_peer;
struct gd_call;
struct gd_row;

/* ---- one process's device order of one ring -------------------------------------------------- */

struct gd_promise {
    uint32_t index;
    uint64_t value;
};

/* What the two synchronisers do differently. The int results are the driver's: CU_OK or an
 * error. */
struct gd_sync {
    /* Makes `stream` store fence[index][peer] = value behind all its work so far. record_many does
     * so for n promises in one call of the driver; NULL if there is no such call. */
    int (*record)(struct gd_peer *peer, gd_stream stream, const struct gd_promise *promise);
    int (*record_many)(struct gd_peer *peer, gd_stream stream, const struct gd_promise *promises,
                       uint32_t n);
    /* Whether fence[index][peer] >= value: CU_OK, CU_NOT_READY, or an error. Only for a promise
     * whose fence operation was recorded. An event that is complete raises the fence word. */
    int (*paid)(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value,
                struct gd_trouble *trouble);
    /* The same, at once and without an error. NULL if the fence word alone tells. */
    bool (*seen)(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value);
    /* The same for a slot of another peer, where a promise may not be recorded yet. It is a hint,
     * and raises no fence. */
    bool (*hint)(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value);
    /* Makes the stream wait for it. A timeline collects its waits in call->ops. */
    int (*wait)(struct gd_peer *peer, struct gd_call *call, uint32_t owner, uint32_t index,
                uint64_t value);
};

struct gd_device {
    struct gd_driver *driver;
    struct gr_ring *ring;
    const struct gd_sync *sync;
    int ordinal;    /* of the GPU that has the slots, as this process counts GPUs */
    void *context;  /* its primary context */
    uint64_t base;  /* timeline: the fence table's address on the GPU */
    /* Guards the fields below. No driver call that could wait for a stream is made under it. */
    pthread_mutex_t mutex;
    struct gd_row *rows[GR_MAX_PEERS];
    /* Events without interprocess use, by which one stream is made to follow another. */
    struct gd_own_event *spare;
};

/* ---- a peer ---------------------------------------------------------------------------------- */

enum { GD_STREAMS = 4 }; /* room for the streams of one slot before any allocation */

/* A slot that this peer has, from its claim or acquire until its end. It belongs to the thread
 * that has the slot. */
struct gd_use {
    uint64_t seq;
    /* This peer has the slot. The caller of gd_claim or gd_acquire sets it, at a moment when no
     * other thread of its process can take the slot's next use for the one before. */
    bool open;
    /* The last promise was made, and may not be recorded. The slot is not given up before it is
     * recorded or settled. */
    bool unpaid;
    bool redelivered;
    /* The next five fields are set for a consumer only. `lost` counts what was skipped just before
     * the frame, and `upstream` what was lost before it came into the ring. */
    uint32_t producer;
    uint64_t producer_id, value, lost, upstream;
    uint32_t ndim;      /* of a frame that is smaller than the slot, else 0 */
    uint64_t shape[GR_MAX_NDIM];
    /* The streams that used it. The first is the one that it was claimed or acquired for. */
    uint32_t streams, room;
    gd_stream *stream, few[GD_STREAMS];
    /* The thread whose per-thread default stream is among them; 0 if none is. */
    uint64_t thread;
    /* GD_LEGACY is among them in place of another thread's per-thread default stream. */
    bool of_another;
    /* The id of the stream that has the last fence operation (0: unknown); and a stream handle,
     * with the id that was asked for under it. */
    uint64_t recorded_on, asked_id;
    gd_stream asked;
};

struct gd_frame { /* released while the producer's GPU work on it was pending */
    uint32_t index, producer;
    uint64_t producer_id, seq, value;
    uint64_t own;    /* what this peer has promised for its release */
    uint64_t stream; /* id of the stream of that promise; 0 if it was not asked for */
    uint64_t number; /* counts the frames that were remembered */
};
struct gd_released {
    pthread_mutex_t mutex; /* one thread releases while another looks at the list */
    struct gd_frame *frames;
    size_t room, limit, reserved; /* reserved: room for releases in progress */
    _Atomic size_t n;
    uint64_t reaps;  /* number of deaths up to which the frames were looked through */
    uint64_t *torn;  /* sequences that turned out torn and were not reported yet */
    size_t torn_room;
    _Atomic size_t torns;
    uint64_t remembered;
    /* Events only: one more event of our own, recorded on one stream behind the frames before
     * number checkpoint_at. */
    struct gd_own_event *checkpoint;
    bool checkpoint_set, setting; /* setting: a thread is recording it, outside the mutex */
    uint64_t checkpoint_at, checkpoint_on;
    uint64_t *done; /* [slots]; used while frames are dropped */
};

struct gd_peer {
    struct gr_peer core;
    struct gd_device *device; /* NULL: it uses the slots by the CPU */
    const struct gd_sync *sync; /* the device's; without one gd_timeline, which looks at words */
    struct gd_use *use;       /* [slots] */
    /* Waits for others' GPU work on the host, and not in the stream. On host memory there is
     * none. */
    bool gate_host;
    struct gd_own_event **own; /* events only: [slots], made at join */
    struct gd_released released;
    /* For comes_soon in order.c: the last promise, how many fences it will not look at from now
     * on, and how many those were last time. */
    gr_word last_value; /* relaxed: a stale one costs a look, or a wait in the stream */
    uint32_t blind, backoff;
    /* Time spent looking at our own work, since it was last less than a lap behind. */
    int64_t lap_ns;
};

/* Whether a fence word says so. Acquire: if a reaper raised the fence, its torn mark is visible
 * afterwards (gr_torn). A stale value costs one wait too many. */
static inline bool gd_is_reached(const struct gd_peer *peer, uint32_t owner, uint32_t index,
                                 uint64_t value) {
    return gr_load_acquire(fence_of(peer->core.ring, index, owner)) >= value;
}

/* ---- a call of a verb ------------------------------------------------------------------------ */

enum { GD_WAIT = 1, GD_AGAIN = 2 };
/* Operations in one submission (CUDA takes 256). The waits of a claim, at most one for each peer
 * and slot, are split where they are more. */
enum { GD_MAX_OPS = 128 };

struct gd_call {
    gd_stream stream;
    int64_t deadline_ns;
    uint32_t n;          /* number of slots wanted */
    /* [n] indices of the slots: set by claim and acquire, given to publish and release. */
    uint32_t *indices;
    struct gd_trouble trouble; /* set with GR_DEVICE */
    /* From here to `torn` all is 0 when a call begins.
     * torns: number of released frames that are known to be torn, which `torn` names. */
    uint32_t torns;
    /* Everything except `torns` and `torn` is private to the verb, and kept from one slice to the
     * next. got: number of slots so far. at: how many pending fences of the last slot are dealt
     * with. */
    uint32_t got, at;
    unsigned ops;
    /* This peer has the last slot, but its streams are not ordered yet (or not settled yet, after a
     * record that failed). */
    bool ordering;
    bool checked, failed;
    enum { GD_TRY, GD_SPIN, GD_SLEEP } stage; /* of host order */
    enum gr_result refused; /* what the core answered to an end that it refused */
    int64_t since_ns;    /* of the wait in progress */
    uint64_t stream_id;  /* 0 if not asked for */
    /* When this call stops looking at fences that may come soon; 0 if it has not begun. */
    int64_t look_until_ns;
    uint64_t torn[GD_MAX_OPS];
    struct gd_mem_op op[GD_MAX_OPS];
};
static inline void gd_begin(struct gd_call *call, gd_stream stream, int64_t deadline_ns, uint32_t n,
                            uint32_t *indices) {
    call->stream = stream;
    call->deadline_ns = deadline_ns;
    call->n = n;
    call->indices = indices;
    call->trouble.where = GD_NOWHERE;
    memset(&call->torns, 0, offsetof(struct gd_call, torn) - offsetof(struct gd_call, torns));
}

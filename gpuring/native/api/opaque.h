/* What is behind the handles of gpuring.h.
 *
 * This folder has the functions of gpuring.h. They decide nothing about rings: what a ring is to the
 * operating system lies in host/, what its verbs do in device/ and core/. Here arguments are checked,
 * structures are filled, and waits are repeated. No file needs one that stands below it in this list:
 *
 *   opaque.h     this
 *   on_gpu       which GPU a ring is used under; its slots there, and the order of its streams
 *   ring         attach and detach; what a ring is
 *   durable      durable subscriptions
 *   creation     create and unlink
 *   membership   join and leave
 *   descriptor   a descriptor that hears of names, too
 *   left_behind  rings that were left over a restart
 *   following    over restarts
 *   endpoint     what producers and consumers have in common: take, end, close
 *   producer     the verbs of producers
 *   consumer     the verbs of consumers
 *   several      waiting for several, and descriptors
 */
#pragma once

#include <stddef.h>

#include "../core/bell.h"
#include "../device/state.h"
#include "../memory/slab.h"
#include "../host/error.h"
#include "../host/names.h"
#include "../host/spec.h"

struct gpuring_ring {
    struct gr_ring *header;
    void *slots;
    uint64_t slots_nbytes; /* how much is mapped there */
    int gpu;                  /* under which it is used, or -1 */
    struct gd_driver *driver; /* NULL: this process uses it without a GPU */
    struct gm_slab *slab;     /* NULL: it is in host memory */
    uint64_t registered;      /* of a pinned one: where that GPU has the slots, or 0 */
    struct gd_device order;   /* without a driver of its own: the CPU uses the slots */
    bool stays_mapped;        /* what CUDA has not let go: nothing else may be mapped there */
    gpuring_ring *next_kept;  /* ring.c */
    struct gh_spec spec;
    bool created; /* by this process, which closes it for all */
    uint8_t epoch[16]; /* that in the header may be damaged later */
    char name[GH_MAX_NAME + 1];
    int64_t owner;              /* whose it had to be; -1: our own user's, or root's */
    int device;                 /* as it was asked for; `gpu` is what it was */
    _Atomic uint32_t attached;  /* how often it is to be detached */
    _Atomic uint32_t endpoints; /* how many are open */
    _Atomic bool is_followed;   /* an endpoint came here over a restart, and one is to detach it */
};

struct endpoint {
    gpuring_ring *ring;
    char *data, *host; /* the first slot, as it is used, and for the CPU */
    void *stream;
    struct gd_peer peer;
    struct gr_notifier *notifier; /* NULL: nobody has asked for its descriptor */
    /* Over restarts; see following.h and left_behind.h. */
    struct follower *follows; /* NULL: it does not go on */
    struct left_behind *left; /* those of earlier rings that still have open slots */
    gpuring_ring *home;       /* that of its join, if it has left that */
    gpuring_ring *told; /* the caller's until a slot is handed out as `restarted`; NULL: `ring` */
    struct gr_notifier *joins; /* of a wait at an end */
    int64_t late; /* at an end since its join: how many producers had gone by then; else -1 */
    bool restarted; /* the next slot is the first one after a restart */
};
struct gpuring_producer {
    struct endpoint end;
};
struct gpuring_consumer {
    struct endpoint end;
};

/* Makes an empty handle, which is to be detached once. The other function frees a handle with all
 * that it has. */
gpuring_ring *begin_ring(const char *name, gpuring_error *error);
void end_ring(gpuring_ring *ring);
/* Frees the rings that were detached here, and that nothing needs any more. */
void free_kept_rings(void);
/* gpuring_attach without a wait. GPURING_NOT_FOUND: waiting may help. living: takes only a ring
 * that is alive. Otherwise the call returns GPURING_PEER_LOST, and waiting may help, too. */
gpuring_status try_to_attach(const char *name, const gpuring_attach_options *options, bool living,
                             gpuring_ring **found, gpuring_error *error);

/* The end of a timeout. 0: it does not wait. */
static inline int64_t deadline_of(int64_t timeout_ns) {
    if (timeout_ns == 0) return 0;
    const int64_t now = gr_now_ns();
    return timeout_ns < 0 || timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

/* From here on `error` is the caller's, or one that nobody reads. It is not cleared, because a verb
 * that succeeds does not touch it. */
#define MIND_NO_ERROR(error)                                                                       \
    gpuring_error unread;                                                                          \
    if (!(error)) (error) = &unread

/* What is behind the handle. A slot of gpuring.hpp that was ended has no handle any more. */
#define NEED_HANDLE(handle, error)                                                                 \
    if (!(handle))                                                                                 \
    return gh_fail(error, GPURING_INVALID,                                                         \
                   "there is no " #handle ": it was not joined, or its slot was ended before")

#define NEED_TIMEOUT(timeout_ns, error)                                                            \
    if ((timeout_ns) < 0 && (timeout_ns) != GPURING_FOREVER)                                       \
    return gh_fail(error, GPURING_INVALID,                                                         \
                   "a timeout cannot be %lld ns: 0 does not wait, and GPURING_FOREVER waits for "  \
                   "ever",                                                                         \
                   (long long)(timeout_ns))

/* Of those below 0 only `only`, which has a meaning of its own. */
#define NEED_NS(options, member, only, error)                                                      \
    if ((options)->member < 0 && (options)->member != (only))                                      \
    return gh_fail(error, GPURING_INVALID,                                                         \
                   #member " is %lld, and of those below 0 only " #only " means something",        \
                   (long long)(options)->member)

#define NEED_GATE(options, error)                                                                  \
    if ((unsigned)(options)->gate > GPURING_GATE_HOST)                                             \
    return gh_fail(error, GPURING_INVALID, "there is no gate of number %d", (int)(options)->gate)

#define NEED(argument, error)                                                                      \
    if (!(argument)) return gh_fail(error, GPURING_INVALID, "`" #argument "` is NULL")

/* Whether a structure of the caller's has all members up to `last`. */
#define HAS_SIZE(structure, last)                                                                  \
    ((structure)->size >= offsetof(__typeof__(*(structure)), last) + sizeof (structure)->last)
#define NEED_SIZE(structure, last, macro, error)                                                   \
    NEED(structure, error);                                                                        \
    if (!HAS_SIZE(structure, last))                                                                \
    return gh_fail(error, GPURING_INVALID,                                                         \
                   "the size of a structure is %zu, which is too small: " macro " sets it",        \
                   (structure)->size)

/* Copies a structure of the caller, which has its size in it, over the defaults. Callers that were
 * compiled with version 1 have no later members, so a new member does not change last_of_version_1. */
#define OPTIONS_OF(type, last_of_version_1, given, defaults, error)                                \
    type options = defaults;                                                                       \
    if (given) {                                                                                   \
        NEED_SIZE(given, last_of_version_1, #defaults, error);                                     \
        memcpy(&options, given, gh_size_of((given)->size, sizeof options));                        \
    }                                                                                              \
    (void)0
static inline size_t gh_size_of(size_t given, size_t own) { return given < own ? given : own; }

/* Traces: what each peer does, as events of a fixed size that another process reads.
 *
 *   off   head.traced_until_ns is 0, and a verb does no more than load it
 *   on    the tracer has set it to a time soon, and sets it again before that is over. So a tracer
 *         that is killed leaves nothing running: the first verb after that time sets it to 0
 *
 * The events lie behind the header, in its own file: one table for each peer number, which goes
 * with the ring. The tracer makes the file longer, and a peer gives its table memory with its first
 * event. A table is bounded: new events overwrite old ones, and their number tells how many the
 * tracer has missed. A peer that is killed leaves its events there.
 *
 * Events are for people. Nothing in the protocol depends on them.
 */
#pragma once

#include "peer.h"

/* What `about` has, in order. */
enum gr_event_kind {
    GR_DID_JOIN = 1, /* role, number of its subscription */
    GR_DID_LEAVE,
    GR_DID_CLAIM,   /* seq */
    /* seq, what it has promised last for its GPU work on the slot, the frame's origin_seq. Its time
     * is that of the frame's record */
    GR_DID_PUBLISH,
    GR_DID_ABANDON, /* seq, what it has promised last */
    GR_DID_ACQUIRE, /* seq, how many frames were lost before it, whether it is redelivered */
    GR_DID_RELEASE, /* seq, what it has promised last */
    GR_DID_RETURN,  /* seq; it was given back */
    GR_DID_DROP,    /* a producer had no slot for a frame */
    GR_DID_TEAR,    /* a consumer passed over so many torn frames */
    GR_DID_WAIT,    /* it begins to wait, or still waits: enum gr_reason (8) | peer (16) |
                     * subscription (16) | whether it waits in an event loop (1), seq, id of that
                     * peer: the culprit; when the wait began */
    GR_DID_STOP,    /* it waits no more, and has no slot */
    GR_DID_CALL,    /* seq carries a request or an answer: number of the client, of the call */
    GR_DID_BEGIN,   /* the user's own slice: 32 bytes of its name */
    GR_DID_END,
};

/* Relaxed: a stale value costs an event more or less. */
static inline bool gr_traced(const struct gr_ring *ring) {
    return __builtin_expect(gr_load_relaxed(&ring->head->traced_until_ns) != 0, 0);
}
/* Called if gr_traced. `now_ns`: when it was; 0: now. */
void gr_trace(const struct gr_peer *me, int64_t now_ns, enum gr_event_kind kind, uint64_t a,
              uint64_t b, uint64_t c) __attribute__((cold));
/* Of the wait that began at me->wait.begun_ns. */
void gr_trace_wait(const struct gr_peer *me, const struct gr_culprit *culprit, bool in_loop)
    __attribute__((cold));
/* What a peer has promised last for its GPU work on a slot. */
static inline uint64_t gr_promised(const struct gr_peer *me, uint32_t index) {
    return gr_load_relaxed(work_of(me->ring, index, me->self.number));
}
/* A slice of the user's own, on this thread, into each ring of the process that is traced. Costs a
 * load if none was since the last call. */
void gr_annotate(enum gr_event_kind kind, const char name[32]);

/* ---- for the tracer -------------------------------------------------------------------------- */

/* For how long after a tracer's last look verbs go on writing events. */
#define GR_TRACE_NS (INT64_C(2) * 1000 * 1000 * 1000)

struct gr_tracer {
    struct gr_head *head; /* the first page of the header, mapped; the rest is only read */
    int fd;
    uint32_t peers;
    uint64_t events_at, fences_at;  /* in the file */
    size_t fences_nbytes;
    uint64_t next[GR_MAX_PEERS];    /* by number: the turn of the next event to read */
    uint64_t missed[GR_MAX_PEERS];  /* by number: how many were overwritten before they were read */
    int64_t blank_ns[GR_MAX_PEERS]; /* since when the next event is being written; 0: it is not */
};
/* Turns on the tracing of the ring whose header is open as fd, and rings its bell: a peer that
 * sleeps there already looks once more, and writes what it waits for. NULL with *why set: it is no
 * ring of this build. NULL with *why NULL: errno; EAGAIN: another process traces it already. */
struct gr_tracer *gr_trace_begin(int fd, const char **why, char *text, size_t text_nbytes);
/* Keeps it on. Returns whether it was still on; if not, events since the last time are missing. */
bool gr_trace_on(struct gr_tracer *tracer);
/* Copies at most n new events of a peer number. Returns how many, or -1: errno. */
int gr_trace_read(struct gr_tracer *tracer, uint32_t number, struct gr_trace_event *events, uint32_t n);
/* Copies all fence words, slot-major (layout.h): fences_nbytes bytes. Returns 0, or -1: errno. A
 * word is copied whole, because it is aligned. */
int gr_trace_fences(const struct gr_tracer *tracer, uint64_t *fences);
/* Turns it off, and rings the bell. What was written until then can still be read. */
void gr_trace_off(struct gr_tracer *tracer);
void gr_trace_end(struct gr_tracer *tracer);

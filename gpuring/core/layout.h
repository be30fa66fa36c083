/* The ring header: the specification of every byte that processes share.
 *
 * docs/protocol.md mirrors this file and tests/test_layout.py compares the two.  Change a field here,
 * and GR_VERSION changes with it: two builds of different versions refuse each other at attach.
 *
 * The segment, in order (each table starts on a cache line, `fence` on a page because CUDA maps it):
 *
 *   head      one page: what was fixed at creation, then the few words everybody writes
 *   sub[u]    subscriptions                    peer[p]      peers
 *   slot[i]   claim word and frame record      take[i][u]   who of subscription u has slot i
 *   tear[i][p]                                 what peer number p left unfinished there when it died
 *   work[i][p], fence[i][p]                    what peer p promised for its GPU work on slot i, and what is reached
 *   event[p][i]  64-byte IPC event handles (sync "event" only)
 *   meta[i]   the frame's structured metadata  spec         what the slots hold (JSON)
 *
 * take, tear, work and fence are slot-major: a claim reads one column, which is then a few cache lines.
 * "Writer" names who may write a field while the ring lives; "LOCK" is the membership lock.
 */
#ifndef GPURING_LAYOUT_H
#define GPURING_LAYOUT_H

#include <stdalign.h>
#include <stddef.h>

#include "order.h"

enum {
    GR_VERSION = 2,
    GR_LINE = 64,
    GR_PAGE = 4096,
    GR_MAX_SLOTS = 1024,
    GR_MAX_PEERS = 64,         /* one bit each in head.peer_mask */
    GR_MAX_SUBSCRIPTIONS = 64, /* one bit each in head.sub_mask */
    GR_MAX_META = 1 << 16,
    GR_MAX_SPEC = 1 << 16,
    GR_MAX_NDIM = 8,
    GR_NAME_WORDS = 8,
    GR_DEATHS = 8, /* remembered */
    GR_EVENT_HANDLE = 64, /* sizeof(cudaIpcEventHandle_t) */
    GR_MEMORY_HANDLE = 64 /* sizeof(cudaIpcMemHandle_t) */
};
#define GR_MAGIC UINT64_C(0x676e697275706701) /* "\1gpuring", little-endian: its bytes check endianness */
#define GR_MAX_SLOT_NBYTES (UINT64_C(1) << 40)

enum gr_memory { GR_MEMORY_HOST = 0, GR_MEMORY_CUDA = 1 };
enum gr_sync { GR_SYNC_HOST = 0, GR_SYNC_EVENT = 1, GR_SYNC_TIMELINE = 2 };
enum gr_gate { GR_GATE_STREAM = 0, GR_GATE_HOST = 1 };
enum gr_end { GR_NOT_ENDED = 0, GR_LEFT = 1, GR_DIED = 2 };

/* What was done about a death.  Writer: its reaper, under LOCK.  The k-th one is in deaths[k % GR_DEATHS]. */
struct gr_death {
    gr_word time_ns; /* CLOCK_MONOTONIC */
    gr_word pid;
    gr_word peer;     /* its peer word: role, subscription */
    gr_word number;
    gr_word voided;   /* claims that became void */
    gr_word torn;     /* published frames whose GPU work was not finished (sync "event": may not have been) */
    gr_word reopened; /* frames it held that went back to its subscription, or were dropped */
    gr_word raised;   /* fences raised on its behalf */
};

struct gr_head {
    /* Fixed at creation.  magic is stored last, with release: who reads it with acquire sees the rest. */
    gr_word magic;           /* 0 once unlinked; it has no name before it is set */
    uint32_t version;
    uint32_t memory;         /* enum gr_memory */
    uint32_t sync;           /* enum gr_sync */
    uint32_t gate;           /* enum gr_gate */
    uint64_t nbytes;         /* of the whole segment */
    uint8_t epoch[16];       /* random: tells a ring from an earlier one of the same name */
    uint32_t slots;
    uint32_t max_peers;
    uint32_t max_subscriptions;
    uint32_t spec_nbytes;
    uint64_t slot_nbytes;    /* distance of two slots */
    uint64_t meta_nbytes;    /* of one frame's metadata, 0 for none */
    uint64_t created_ns;     /* CLOCK_REALTIME */
    uint64_t creator_pid;
    uint64_t creator_start;  /* /proc/PID/stat field 22: tells the creator from a later owner of its pid */
    uint64_t creator_pidns;  /* inode of its pid namespace */
    uint8_t device_uuid[16]; /* of the GPU that holds the slots */
    uint8_t memory_handle[GR_MEMORY_HANDLE];

    /* Claim hint: at most the frontier (the smallest unclaimed sequence).  Writer: anybody, by CAS from
     * the value that he saw claimed.  A stale value costs a few loads. */
    alignas(GR_LINE) gr_word claim_hint;

    /* Doorbell.  Writer: anybody. */
    alignas(GR_LINE) gr_word32 bell; /* futex word; rises after a change somebody may sleep on */
    gr_word32 waiters;               /* sleepers; may be too high, never too low */

    /* Membership.  Writer: under LOCK (closed: anybody, 0 -> 1). */
    alignas(GR_LINE) gr_word closed;
    gr_word producers;  /* live producers (32) | ever joined (8) | enum gr_end of the last one (8) */
    gr_word sub_mask;   /* superset of the subscriptions in use: set before, cleared after sub[u] is */
    gr_word peer_mask;  /* likewise, of the peers */
    gr_word joins;      /* peers that ever joined; the last one's id */
    gr_word reaps;      /* dead peers that were cleared */
    alignas(GR_LINE) struct gr_death deaths[GR_DEATHS];
};

struct gr_sub {
    gr_word word;  /* start | mode (words.h).  Writer: under LOCK.  Readers: every claim */
    gr_word redo;  /* bumped after a frame was opened again: members start over.  Writer: anybody, += 1 */
    gr_word lost;  /* sequences its members were made to skip.  Writer: members, += n */
    gr_word created_ns;           /* CLOCK_MONOTONIC */
    gr_word name[GR_NAME_WORDS];  /* UTF-8, zero-padded; written before `word` */
    uint64_t reserved[4];
};

struct gr_peer_entry {
    gr_word word;  /* state | role | subscription.  Writer: under LOCK */
    gr_word id;    /* head.joins at its join: tells the owners of one number apart */
    gr_word pid, start, pidns; /* written before `word` says LIVE */
    gr_word joined_ns;         /* CLOCK_MONOTONIC */
    gr_word waiting;           /* GR_SLEEPING, GR_ARMED: each bit is counted once in head.waiters */
    uint64_t reserved;
    /* Diagnostics.  Writer: the peer alone. */
    gr_word frames; /* published or acquired */
    gr_word lost;   /* of a consumer: sequences it was made to skip */
    gr_word torn;   /* of a consumer: torn frames it passed over */
    uint64_t reserved2[5];
};

struct gr_slot {
    gr_word word;     /* claim word.  Writer: by CAS only (docs/protocol.md) */
    /* The frame's record.  Writer: the producer in WRITING.  Readers: who holds the frame; any other
     * reader (stats) may see a mixture. */
    gr_word producer; /* id of the peer that published it */
    gr_word fence;    /* fence value that says: written */
    gr_word time_ns;  /* CLOCK_MONOTONIC at publish */
    gr_word since_ns; /* CLOCK_MONOTONIC_COARSE at claim */
    gr_word ndim;     /* 0: the whole slot; else shape[0 .. ndim-1] of a smaller frame */
    uint64_t reserved[2];
    gr_word shape[GR_MAX_NDIM];
};

struct gr_take {
    gr_word word;     /* claim word.  Writer: members by CAS, a reaper by CAS, a join under LOCK */
    gr_word since_ns; /* CLOCK_MONOTONIC_COARSE when it was HELD.  Writer: the holder */
};

/* Peer number p died with GPU work pending on slot i.  Writer: its reaper, under LOCK. */
struct gr_tear {
    gr_word id;      /* of the last owner of the number who did | GR_MARKING; 0: none yet.  It only rises */
    gr_word reached; /* what its fence had reached by then: later values never were */
};
#define GR_MARKING (UINT64_C(1) << 63) /* in tear.id: `reached` is being written */

_Static_assert(sizeof(struct gr_sub) == 2 * GR_LINE, "sub: two lines");
_Static_assert(sizeof(struct gr_peer_entry) == 2 * GR_LINE, "peer: two lines");
_Static_assert(sizeof(struct gr_slot) == 2 * GR_LINE, "slot: two lines");
_Static_assert(sizeof(struct gr_take) == 16, "take: a quarter line");
_Static_assert(sizeof(struct gr_tear) == 16, "tear: a quarter line");
_Static_assert(offsetof(struct gr_head, claim_hint) == 192, "head: the fixed part is three lines");
_Static_assert(offsetof(struct gr_head, bell) == 256, "head: doorbell");
_Static_assert(offsetof(struct gr_head, closed) == 320, "head: membership");
_Static_assert(sizeof(struct gr_death) == GR_LINE, "death: one line");
_Static_assert(offsetof(struct gr_head, deaths) == 384, "head: deaths");
_Static_assert(sizeof(struct gr_head) <= GR_PAGE, "head: fits its page");

/* Where the tables start, computed from the counts alone and never read from the segment. */
struct gr_layout {
    uint64_t sub, peer, slot, take, tear, work, fence, event, meta, spec, nbytes;
    uint64_t meta_stride;
};

struct gr_config {
    uint32_t slots, max_peers, max_subscriptions;
    uint32_t memory, sync, gate;
    uint64_t slot_nbytes, meta_nbytes;
    uint32_t spec_nbytes;
};

/* False: something is out of its range, and why says what.  Nothing is computed then. */
bool gr_layout(const struct gr_config *config, struct gr_layout *layout, char *why, size_t why_nbytes);

/* The fields with their places, for the layout test. */
struct gr_field {
    const char *table, *name;
    uint32_t offset, nbytes;
};
extern const struct gr_field gr_fields[]; /* ends with table == NULL */

#endif

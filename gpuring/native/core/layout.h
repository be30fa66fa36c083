/* The layout of a ring's header: every byte that processes share is specified here.
 *
 * docs/protocol.md says the same, and tests/test_layout.py compares the two. Whoever changes a
 * field here also changes GR_VERSION, so that builds of different versions refuse each other at
 * attach.
 *
 * The segment, in order (each table starts on a cache line, and `fence` starts on a page, because
 * CUDA maps it):
 *
 *   head      one page: what was fixed at creation, then the few words that all peers write
 *   sub[u]    subscriptions                    peer[p]      peers
 *   slot[i]   claim word and frame record      take[i][u]   which member of u has slot i
 *   tear[i][p]                                 what peer p left unfinished there when it died
 *   work[i][p], fence[i][p]                    what peer p promised for its GPU work on slot i, and
 *                                              what its fence has reached
 *   event[p][i]  64-byte IPC event handles (sync "event" only)
 *   meta[i]   the frame's structured metadata  spec         what the slots hold (JSON)
 *
 * take, tear, work and fence are slot-major, so what a claim reads of them is a few cache lines.
 * "Writer" says who may write a field while the ring lives. "LOCK" is the membership lock
 * (lock.h).
 */
#ifndef GPURING_LAYOUT_H
#define GPURING_LAYOUT_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "atomics.h"

enum {
    GR_VERSION = 5,
    GR_LINE = 64,
    GR_PAGE = 4096,
    GR_MAX_SLOTS = 1024,
    GR_MAX_PEERS = 250,         /* below GR_NONE, and one bit each in head.peer_mask */
    GR_MAX_SUBSCRIPTIONS = 250, /* in the same way; one bit each in head.sub_mask */
    GR_MASK_WORDS = 4,          /* number u is bit u % 64 of word u / 64 */
    GR_MAX_META = 1 << 16,
    GR_MAX_SPEC = 1 << 16,
    GR_MAX_NDIM = 8,
    GR_NAME_WORDS = 8,
    GR_FAR_WORDS = 4,
    GR_DEATHS = 8, /* how many are remembered */
    GR_EVENT_HANDLE = 64, /* sizeof(cudaIpcEventHandle_t) */
    GR_MEMORY_HANDLE = 64 /* sizeof(cudaIpcMemHandle_t), sizeof(CUmemPoolPtrExportData) */
};
/* The bytes "\1gpuring", read as a little-endian word. So the value checks the endianness, too. */
#define GR_MAGIC UINT64_C(0x676e697275706701)
#define GR_MAX_SLOT_NBYTES (UINT64_C(1) << 40)

/* What the slots are in, and so what opens them: the name of the ring, memory_handle, or a
 * descriptor that living peers hand on. */
enum gr_memory { GR_MEMORY_HOST = 0, GR_MEMORY_IPC = 1, GR_MEMORY_VMM = 2, GR_MEMORY_POOL = 3 };
enum gr_sync { GR_SYNC_HOST = 0, GR_SYNC_EVENT = 1, GR_SYNC_TIMELINE = 2 };
enum gr_gate { GR_GATE_STREAM = 0, GR_GATE_HOST = 1 };
enum gr_end { GR_NOT_ENDED = 0, GR_LEFT = 1, GR_DIED = 2 };

/* What was done about one death. Writer: its reaper, under LOCK. The k-th death is in deaths[k %
 * GR_DEATHS]. */
struct gr_death {
    gr_word time_ns; /* CLOCK_MONOTONIC */
    gr_word pid;
    gr_word peer;     /* its peer word: role and subscription */
    gr_word number;
    gr_word voided;   /* claims that became void */
    /* Published frames whose GPU work was not finished, or, with sync "event", may not have
     * been. */
    gr_word torn;
    gr_word reopened; /* frames it held that went back to its subscription, or were dropped */
    gr_word raised;   /* fences raised on its behalf */
};

/* How far a bridge has come that carries the frames of a ring of another host, the near ring, into
 * this one. Writer: the importer alone. head.links has two of these, and link_turn says which one
 * holds (annex.c). */
struct gr_link {
    gr_word epoch[2]; /* of the near ring */
    gr_word seq;      /* near sequence up to which everything was published or skipped */
    gr_word lost;     /* how many frames were lost upstream up to there, in all */
    gr_word first;    /* frames below this sequence came over an earlier link, if over any */
    /* Of the last frame of this link that a claim has taken away. Writer: who claims. */
    gr_word passed, passed_lost; /* as origin_seq and origin_lost */
    uint64_t reserved;
};

struct gr_head {
    /* Fixed at creation. magic is stored last, with release, so whoever reads it with acquire sees
     * the rest. */
    gr_word magic;           /* 0 once unlinked; the file has no name before it is set */
    uint32_t version;
    uint32_t memory;         /* enum gr_memory */
    uint32_t sync;           /* enum gr_sync */
    uint32_t gate;           /* enum gr_gate */
    uint64_t nbytes;         /* of the whole segment */
    uint8_t epoch[16];       /* random; distinguishes rings that had the same name */
    uint32_t slots;
    uint32_t max_peers;
    uint32_t max_subscriptions;
    uint32_t spec_nbytes;
    uint64_t slot_nbytes;    /* distance between two slots */
    uint64_t meta_nbytes;    /* of one frame's metadata, 0 for none */
    uint64_t created_ns;     /* CLOCK_REALTIME */
    uint64_t creator_pid;
    uint64_t creator_start;  /* /proc/PID/stat field 22; a later owner of the pid has another */
    uint64_t creator_pidns;  /* inode of its pid namespace */
    uint8_t device_uuid[16]; /* of the GPU that holds the slots */
    uint8_t memory_handle[GR_MEMORY_HANDLE];

    /* Claim hint: at most the frontier (the smallest unclaimed sequence). Writer: any peer, by CAS
     * from a value that it has seen claimed. A stale value costs a few loads. */
    alignas(GR_LINE) gr_word claim_hint;

    /* Doorbell. Writer: any process. */
    alignas(GR_LINE) gr_word32 bell; /* futex word; rises after a change that is slept on */
    gr_word32 waiters;               /* number of sleepers; may be too high, never too low */

    /* Membership. Writer: under LOCK, except that any process may set `closed` from 0 to 1. */
    alignas(GR_LINE) gr_word closed;
    gr_word producers; /* live producers (32) | ever joined (8) | enum gr_end of the last one (8) */
    /* Superset of the subscriptions in use: a bit is set before sub[u] is, and cleared after it.
     * Readers load word after word (gr_each_sub says why that is enough). */
    gr_word sub_mask[GR_MASK_WORDS];
    gr_word joins;      /* number of peers that ever joined, which is the last one's id */
    gr_word reaps;      /* number of dead peers that were cleared */
    /* Superset of the peers in use, in the same way. */
    alignas(GR_LINE) gr_word peer_mask[GR_MASK_WORDS];
    alignas(GR_LINE) struct gr_death deaths[GR_DEATHS];

    /* Rises when the importer has written links[(link_turn + 1) % 2]. 0: there was no link yet.
     * Writer: the importer. */
    alignas(GR_LINE) gr_word link_turn;
    alignas(GR_LINE) struct gr_link links[2];
};

struct gr_sub {
    gr_word word;  /* start | policy | mode (words.h). Writer: under LOCK. Every claim reads it */
    /* Rises after a frame was opened again; members that see a new value start over. Writer: any
     * process, += 1. */
    gr_word redo;
    gr_word lost;  /* sequences that its members were made to skip. Writer: members, += n */
    gr_word created_ns;           /* CLOCK_MONOTONIC */
    gr_word name[GR_NAME_WORDS];  /* UTF-8, zero-padded; written before `word` */
    /* Of a bridge: the subscription that keeps the far ring from taking more. UTF-8, zero-padded.
     * Writer: the exporter, for people. Any reader may see a mixture of two. */
    gr_word far[GR_FAR_WORDS];
};

struct gr_peer_entry {
    gr_word word;  /* state | role | subscription. Writer: under LOCK */
    gr_word id;    /* head.joins at its join; distinguishes the successive owners of a number */
    gr_word pid, start, pidns; /* written before `word` says LIVE */
    gr_word joined_ns;         /* CLOCK_MONOTONIC */
    gr_word waiting;           /* GR_SLEEPING, GR_ARMED: each bit is counted once in head.waiters */
    uint64_t reserved;
    /* Diagnostics. Writer: the peer alone. */
    gr_word frames; /* published or acquired */
    gr_word lost;   /* sequences that a consumer was made to skip */
    gr_word torn;   /* torn frames that a consumer passed over */
    gr_word asked_ns; /* CLOCK_MONOTONIC_COARSE when it last said gr_ask; 0: never */
    gr_word gpu[2];   /* UUID of the GPU on which it uses the slots, or 0; before `word` */
    uint64_t reserved2[2];
};

struct gr_slot {
    gr_word word;     /* claim word. Writer: by CAS only (docs/protocol.md) */
    /* The frame's record. Writer: the producer in WRITING. Whoever holds the frame reads it whole;
     * any other reader (statistics) may see a mixture of two records. */
    gr_word producer; /* id of the peer that published it */
    gr_word fence;    /* the fence value that says "written" */
    gr_word time_ns;  /* CLOCK_MONOTONIC at publish */
    gr_word since_ns; /* CLOCK_MONOTONIC_COARSE at claim */
    gr_word32 ndim;   /* 0 for the whole slot, else the number of extents of a smaller frame */
    /* Of a frame that a bridge has brought. Writer: a claim (0), then gr_set_origin. */
    gr_word32 origin_lost;  /* frames lost upstream before this one, in all, modulo 2^32 */
    gr_word origin_seq;     /* its sequence in the near ring; 0: nobody has brought it */
    gr_word origin_time_ns; /* CLOCK_REALTIME of its first publication */
    gr_word shape[GR_MAX_NDIM];
};

struct gr_take {
    gr_word word;     /* claim word. Writer: members and reapers by CAS, a join under LOCK */
    gr_word since_ns; /* CLOCK_MONOTONIC_COARSE when it was HELD. Writer: the holder */
};

/* Says that an owner of peer number p died with GPU work pending on slot i. Writer: its reaper,
 * under LOCK. */
struct gr_tear {
    /* The id of the last such owner, with GR_MARKING while the mark is being written; 0 if there
     * was none. It only rises. */
    gr_word id;
    gr_word reached; /* what that owner's fence had reached; later values never were reached */
};
#define GR_MARKING (UINT64_C(1) << 63) /* in tear.id, while `reached` is being written */

_Static_assert(sizeof(struct gr_sub) == 2 * GR_LINE, "sub: two lines");
_Static_assert(sizeof(struct gr_peer_entry) == 2 * GR_LINE, "peer: two lines");
_Static_assert(sizeof(struct gr_slot) == 2 * GR_LINE, "slot: two lines");
_Static_assert(sizeof(struct gr_take) == 16, "take: a quarter line");
_Static_assert(sizeof(struct gr_tear) == 16, "tear: a quarter line");
_Static_assert(offsetof(struct gr_head, claim_hint) == 192, "head: the fixed part is three lines");
_Static_assert(offsetof(struct gr_head, bell) == 256, "head: doorbell");
_Static_assert(offsetof(struct gr_head, closed) == 320, "head: membership");
_Static_assert(sizeof(struct gr_death) == GR_LINE, "death: one line");
_Static_assert(offsetof(struct gr_head, peer_mask) == 384, "head: peers");
_Static_assert(offsetof(struct gr_head, deaths) == 448, "head: deaths");
_Static_assert(sizeof(struct gr_link) == GR_LINE, "link: one line");
_Static_assert(offsetof(struct gr_slot, shape) == GR_LINE, "slot: all but the shape in one line");
_Static_assert(sizeof(struct gr_head) <= GR_PAGE, "head: fits its page");

/* Where the tables start. This is computed from the counts alone and never read from the
 * segment. */
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

/* False if a value is out of its range. `why` says which, and nothing is computed then. */
bool gr_layout(const struct gr_config *config, struct gr_layout *layout, char *why,
               size_t why_nbytes);

/* The fields and their places, for the layout test. */
struct gr_field {
    const char *table, *name;
    uint32_t offset, nbytes;
};
extern const struct gr_field gr_fields[]; /* ends with table == NULL */

#endif

/* The layout of a ring's header: every byte that processes share is specified here.
 *
 * Whoever changes a field also changes GR_VERSION, so that builds of different versions refuse each
 * other at attach. A new field in `reserved` of gr_head may do without, if whoever leaves it alone
 * stays right. `python -m tests.docs.fields` then writes the table of fields of docs/abi.md from
 * what stands here. A comment behind a field or before it says what it means,
 * and with "Writer" who may write it while the ring lives. A comment that is only a writer holds
 * for the fields that follow, and a writer before a struct for all of it.
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
 *   trace_table[p]  what peer p has done lately; not there until the ring is traced for the first
 *             time, and not part of `nbytes`
 *
 * take, tear, work and fence are slot-major, so what a claim reads of them is a few cache lines.
 * "LOCK" is the membership lock (lock.h).
 */
#pragma once

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "atomics.h"

enum {
    GR_VERSION = 9,
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
    GR_LABEL_WORDS = 8,
    GR_MAX_PRODUCERS = 4095,    /* that a stream may be made of; see `ends` */
    GR_DEATHS = 8, /* how many are remembered */
    GR_TRACE_EVENTS = 4096, /* of one peer */
    GR_EVENT_HANDLE = 64, /* sizeof(cudaIpcEventHandle_t) */
    GR_MEMORY_HANDLE = 64 /* sizeof(cudaIpcMemHandle_t), sizeof(CUmemPoolPtrExportData) */
};
/* The bytes "\1gpuring", read as a little-endian word. So the value checks the endianness, too. */
#define GR_MAGIC UINT64_C(0x676e697275706701)
#define GR_MAX_SLOT_NBYTES (UINT64_C(1) << 40)

/* What the slots are in, and so what opens them: the name of the ring, memory_handle, or a
 * descriptor that living peers hand on. */
enum gr_memory {
    GR_MEMORY_HOST = 0,
    GR_MEMORY_IPC = 1,
    GR_MEMORY_VMM = 2,
    GR_MEMORY_POOL = 3,
    GR_MEMORY_PINNED = 4 /* as host, but peers may use the slots on a GPU (gr_peer_entry.gpu) */
};
enum gr_sync { GR_SYNC_HOST = 0, GR_SYNC_EVENT = 1, GR_SYNC_TIMELINE = 2 };
enum gr_gate { GR_GATE_STREAM = 0, GR_GATE_HOST = 1 };
enum gr_end { GR_NOT_ENDED = 0, GR_LEFT = 1, GR_DIED = 2 };

/* What was done about one death. Writer: a reaper, under LOCK. */
struct gr_death {
    gr_word time_ns;  /* CLOCK_MONOTONIC */
    gr_word pid;
    gr_word peer;     /* its peer word: role and subscription */
    gr_word number;   /* that of the peer */
    gr_word voided;   /* claims that became void */
    /* published frames whose GPU work was not finished; sync "event": whose fence nobody had
     * raised, so some of them may be whole */
    gr_word torn;
    gr_word reopened; /* frames taken from it: open again, or dropped */
    gr_word raised;   /* fences raised for it */
    gr_word label[GR_LABEL_WORDS]; /* its label, for people; UTF-8, zero-padded */
};

/* How far a bridge has come that carries the frames of a ring of another host, the near ring, into
 * this one. head.links has two of these, and link_turn says which one is valid (annex.c). Writer:
 * the importer. */
struct gr_link {
    gr_word epoch[2]; /* that of the near ring */
    gr_word seq;      /* near sequence up to which everything was published or skipped */
    gr_word lost;     /* frames lost upstream up to there, in all */
    gr_word first;    /* frames below this sequence came over an earlier link, if over any */
    /* `origin_seq` of the last frame of this link that a claim has taken away; only rises. Writer:
     * who claims */
    gr_word passed;
    gr_word passed_lost; /* its `lost_before`. Writer: who claims, before `passed` */
    uint64_t reserved;
};

/* How far the near host's CLOCK_MONOTONIC is ahead of this host's. head.clocks has two of these, and
 * clock_turn says which one is valid (annex.c). Writer: the importer. */
struct gr_clock {
    gr_word ahead_ns; /* negative as two's complement */
    gr_word error_ns; /* at most so far it is off: half of a round trip */
    gr_word time_ns;  /* CLOCK_MONOTONIC of this host, when that was so */
};

struct gr_head {
    /* Writer: the creator. */
    /* 0 until all else is there: stored last, with release, before the file has a name; 0 once
     * unlinked. Writer: the creator; who unlinks */
    gr_word magic;
    uint32_t version;        /* layout version; other versions are refused */
    uint32_t memory;         /* 0 host, 1 ipc, 2 vmm, 3 pool, 4 pinned */
    uint32_t sync;           /* 0 host, 1 event, 2 timeline */
    uint32_t gate;           /* 0 stream, 1 host */
    /* size of the whole segment; must equal what the counts give and what the file has */
    uint64_t nbytes;
    uint8_t epoch[16];       /* random; tells a ring from an earlier one of the same name */
    uint32_t slots;          /* N, 1 … 1024 */
    uint32_t max_peers;      /* 1 … 250 */
    uint32_t max_subscriptions; /* 1 … 250 */
    uint32_t spec_nbytes;    /* length of the JSON that describes a slot */
    uint64_t slot_nbytes;    /* distance of two slots */
    uint64_t meta_nbytes;    /* metadata of one frame, 0 for none */
    uint64_t created_ns;     /* CLOCK_REALTIME */
    uint64_t creator_pid;
    uint64_t creator_start;  /* start time from /proc, tells it from a later owner of the pid */
    uint64_t creator_pidns;  /* inode of its pid namespace */
    uint8_t device_uuid[16]; /* GPU that holds the slots */
    /* handle of all slots; ipc: cudaIpcMemHandle_t; vmm: the size in bytes (8 bytes, the rest is 0);
     * pool: CUmemPoolPtrExportData */
    uint8_t memory_handle[GR_MEMORY_HANDLE];
    /* how many producers have to come and go before the stream ends, 1 … 4095 */
    uint32_t producers_in_all;
    uint32_t reserved[15];

    /* at most the frontier, the smallest unclaimed sequence; a stale value costs a few loads.
     * Writer: anybody, CAS c → c+1 after seeing c claimed */
    alignas(GR_LINE) gr_word claim_hint;

    /* futex word; rises after a change that somebody may sleep on. Writer: anybody, += 1 */
    alignas(GR_LINE) gr_word32 bell;
    gr_word32 waiters; /* sleepers; may be too high, never too low. Writer: sleepers ±1, a reaper */

    /* Writer: under LOCK. */
    alignas(GR_LINE) gr_word closed; /* no more claims. Writer: anybody, 0 → 1 */
    /* how many died (24) | have left (24) | live producers (8) | end of the last one (8): 1 left,
     * 2 died */
    gr_word producers;
    /* superset of subscriptions in use; number `u` is bit `u mod 64` of word `u / 64`, set before
     * sub[u] is in use and cleared after it */
    gr_word sub_mask[GR_MASK_WORDS];
    gr_word reaps; /* dead peers cleared */
    /* verbs write events until then (CLOCK_MONOTONIC); 0: they do not. It is here because claim and
     * acquire read this line anyway. Writer: the tracer; anybody, to 0 when the time is over */
    gr_word traced_until_ns;
    /* superset of peers in use, in the same way. Writer: under LOCK */
    alignas(GR_LINE) gr_word peer_mask[GR_MASK_WORDS];
    gr_word joins; /* peers that ever joined, which is the id of the last one */
    /* frames that producers had no slot for, in all. Writer: producers, += 1 */
    alignas(GR_LINE) gr_word dropped;
    /* the last 8 deaths, the k-th in k mod 8. Writer: a reaper, under LOCK */
    alignas(GR_LINE) struct gr_death deaths[GR_DEATHS];

    /* Writer: the importer. */
    /* the valid copy is `links[link_turn mod 2]`; 0: no bridge was here. Writer: the importer,
     * += 1 */
    alignas(GR_LINE) gr_word link_turn;
    alignas(GR_LINE) struct gr_link links[2]; /* how far a bridge has come, in two copies */
    /* the valid copy is `clocks[clock_turn mod 2]`; 0: nothing was measured yet. Writer: the
     * importer, += 1 */
    alignas(GR_LINE) gr_word clock_turn;
    struct gr_clock clocks[2]; /* how the clocks of the two hosts differ, in two copies */
};

/* Writer: under LOCK. */
struct gr_sub {
    gr_word word; /* start (48) | policy (8) | mode (8); every claim reads it */
    /* rises after a frame was opened again; members that see it changed start over. Writer:
     * anybody, += 1 */
    gr_word redo;
    gr_word lost; /* sequences that its members were made to skip. Writer: members, += n */
    gr_word created_ns;          /* CLOCK_MONOTONIC */
    gr_word name[GR_NAME_WORDS]; /* UTF-8, zero-padded. Writer: under LOCK, before `word` */
    /* for people: the subscription that keeps the far ring of a bridge from taking more; UTF-8,
     * zero-padded; readers may see a mixture of two. Writer: under LOCK, before `word`; then the
     * exporter of a bridge */
    gr_word far[GR_FAR_WORDS];
    /* Writer: under LOCK. */
    /* durable: for how long producers wait for it without a member, 0 for ever */
    gr_word patience_ns;
    /* durable: CLOCK_MONOTONIC since when it has no member; 0: it has one */
    gr_word unread_ns;
    /* durable: where it begins or goes on, from when it is given up or announced until that is done
     * and what it has lost is owed; else 0 */
    gr_word resume;
    /* durable: frames that were lost while it had no member, also in earlier rings of this name,
     * until a member is done with the frame that reported them; bit 63: the losses from `resume` on
     * are among them; bit 62: those of the ring in `earlier` are. Writer: under LOCK; members,
     * -= n */
    gr_word owed;
    /* durable: 0; 1: rings that had this name earlier may still owe it something; else the part of
     * an epoch that says which of them is being settled */
    gr_word earlier;
    gr_word dropped; /* `head.dropped` at its making. Writer: under LOCK, before `word` */
    uint64_t reserved[2];
};

/* Writer: under LOCK, before `word`. */
struct gr_peer_entry {
    gr_word word;      /* state | role | subscription. Writer: under LOCK */
    gr_word id;        /* head.joins at its join; tells the successive owners of a number apart */
    gr_word pid;
    gr_word start;     /* process start time, as `creator_start` */
    gr_word pidns;     /* as `creator_pidns` */
    gr_word joined_ns; /* CLOCK_MONOTONIC */
    /* bit 0: counted in waiters as a sleeper; bit 1: as one with an armed descriptor. Writer: the
     * peer, its process's notifier thread; its reaper */
    gr_word waiting;
    /* of all owners of this number: id of the last producer that was counted as gone (40) | how
     * many have left (12) | died (12), each at most 4095. Writer: under LOCK */
    gr_word ends;
    /* Writer: the peer. */
    gr_word frames;   /* published or acquired */
    gr_word lost;     /* sequences that a consumer was made to skip */
    gr_word torn;     /* torn frames that a consumer passed over */
    gr_word asked_ns; /* CLOCK_MONOTONIC_COARSE when an engine last asked for calls; 0: never */
    /* UUID of the GPU on which it uses the slots; 0: it uses them by the CPU. Writer: under LOCK,
     * before `word` */
    gr_word gpu[2];
    /* Writer: the peer. */
    gr_word dropped; /* frames that a producer had no slot for */
    /* the sequence before which a consumer was told that the stream is over; 0: it was not, or has
     * asked again */
    gr_word ended_at;
    gr_word label[GR_LABEL_WORDS]; /* for people; UTF-8, zero-padded */
    /* how many of its subscription's `owed` are reported to this member, until it is done with the
     * frame that reports them */
    gr_word untold;
    /* pinned: the CUresult with which CUDA refused to register the slots for that GPU, so that the
     * peer waits for each of its copies; 0: they are registered. Writer: under LOCK, before `word` */
    gr_word unregistered;
    uint64_t reserved[6];
};

/* What follows the word is the frame's record. Whoever holds the frame reads it whole; any other
 * reader (statistics) may see a mixture of two. Writer: the producer in WRITING. */
struct gr_slot {
    gr_word word;     /* claim word. Writer: CAS, see verbs */
    gr_word producer; /* id of the peer that published the frame */
    gr_word fence;    /* fence value that says: written; 0: a CPU has written it */
    gr_word time_ns;  /* CLOCK_MONOTONIC at publish */
    gr_word since_ns; /* CLOCK_MONOTONIC_COARSE at claim; diagnosis only */
    gr_word32 ndim;   /* 0: the whole slot; else how many extents a smaller frame has */
    /* frames lost before this one, in all, modulo 2^32: upstream, if a bridge has brought it, else
     * those that producers had no slot for */
    gr_word32 lost_before;
    gr_word origin_seq;         /* sequence in the near ring; 0: no bridge has brought it */
    /* CLOCK_REALTIME of the first publication. Writer: the importer in WRITING */
    gr_word origin_time_ns;
    gr_word shape[GR_MAX_NDIM]; /* its extents */
};

struct gr_take {
    gr_word word;     /* claim word. Writer: members by CAS, a reaper by CAS, a join under LOCK */
    gr_word since_ns; /* CLOCK_MONOTONIC_COARSE when HELD; diagnosis only. Writer: the holder */
};

/* Says that an owner of peer number p died with GPU work pending on slot i. Writer: a reaper, under
 * LOCK. */
struct gr_tear {
    /* id of the last owner of that peer number who died with work pending on the slot, 0 if none
     * did; only rises; bit 63 is set while `reached` is being written */
    gr_word id;
    gr_word reached; /* what that owner's fence had reached then; later values never were reached */
};
#define GR_MARKING (UINT64_C(1) << 63)

/* One thing that a peer has done (trace.h). Writer: threads of the peer's process. */
struct gr_trace_event {
    gr_word turn;    /* how many events came before it, plus 1; stored last. 0: it is being written */
    gr_word time_ns; /* CLOCK_MONOTONIC */
    gr_word what;    /* thread id (32) | kind (32) */
    gr_word who;     /* pid (32) | low half of the peer's id (32) */
    gr_word about[4]; /* what it is depends on the kind */
};

/* The events of one peer number, of all its owners. The k-th is in k mod GR_TRACE_EVENTS. */
struct gr_trace_table {
    gr_word count; /* that were ever begun. Writer: threads of the peer's process, += 1 */
    /* on pages of its own. Writer: threads of the peer's process */
    alignas(GR_PAGE) struct gr_trace_event event[GR_TRACE_EVENTS];
};

_Static_assert(sizeof(struct gr_sub) == 3 * GR_LINE, "sub: three lines");
_Static_assert(sizeof(struct gr_peer_entry) == 4 * GR_LINE, "peer: four lines");
_Static_assert(sizeof(struct gr_slot) == 2 * GR_LINE, "slot: two lines");
_Static_assert(sizeof(struct gr_take) == 16, "take: a quarter line");
_Static_assert(sizeof(struct gr_tear) == 16, "tear: a quarter line");
_Static_assert(offsetof(struct gr_head, claim_hint) == 256, "head: the fixed part is four lines");
_Static_assert(offsetof(struct gr_head, bell) == 320, "head: doorbell");
_Static_assert(offsetof(struct gr_head, closed) == 384, "head: membership");
_Static_assert(sizeof(struct gr_death) == 2 * GR_LINE, "death: two lines");
_Static_assert(offsetof(struct gr_head, peer_mask) == 448, "head: peers");
_Static_assert(offsetof(struct gr_head, deaths) == 576, "head: deaths");
_Static_assert(sizeof(struct gr_link) == GR_LINE, "link: one line");
_Static_assert(offsetof(struct gr_slot, shape) == GR_LINE, "slot: all but the shape in one line");
_Static_assert(sizeof(struct gr_trace_event) == GR_LINE, "event: one line");
_Static_assert(sizeof(struct gr_trace_table) % GR_PAGE == 0, "events: whole pages");
_Static_assert(sizeof(struct gr_head) <= GR_PAGE, "head: fits its page");

/* Where the tables start. This is computed from the counts alone and never read from the
 * segment. */
struct gr_layout {
    uint64_t sub, peer, slot, take, tear, work, fence, event, meta, spec, nbytes;
    uint64_t traced_nbytes; /* the size of the file from when the ring was traced first */
    uint64_t meta_stride;
};

struct gr_config {
    uint32_t slots, max_peers, max_subscriptions;
    uint32_t memory, sync, gate;
    uint32_t producers; /* 0: 1 */
    uint64_t slot_nbytes, meta_nbytes;
    uint32_t spec_nbytes;
};

/* False if a value is out of its range. `why` says which, and nothing is computed then. */
bool gr_layout(const struct gr_config *config, struct gr_layout *layout, char *why,
               size_t why_nbytes);

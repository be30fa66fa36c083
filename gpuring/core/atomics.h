/* Atomic words of the header, and how a claim word is packed.
 *
 * Every shared word is a 64-bit C11 atomic.  Four orders are used and no others:
 *
 *   sc       the Dekker pairs "announce, then look again" (docs/protocol.md, Edges).  A store that
 *            announces and a load that looks must not pass each other, on x86 either.
 *   acquire  a load that reads what a store-release published.
 *   release  a store that publishes plain data written before it.
 *   relaxed  hints and diagnostics: any value ever written is acceptable.
 *
 * There are no stand-alone fences: both sides of each Dekker pair are sc accesses, which costs
 * nothing for a load or a compare-and-swap on x86-64, and ThreadSanitizer understands it.
 */
#ifndef GPURING_ATOMICS_H
#define GPURING_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t gr_word;
typedef _Atomic uint32_t gr_word32;

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free between processes");
_Static_assert(sizeof(gr_word) == 8 && sizeof(gr_word32) == 4, "atomic words carry no padding");

#define load_sc(p) atomic_load_explicit((p), memory_order_seq_cst)
#define load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define store_sc(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)
#define store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)

static inline bool cas_sc(gr_word *word, uint64_t expected, uint64_t desired) {
    return atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

/* Raises a word that only rises.  The release half carries what was written before. */
static inline void raise_to(gr_word *word, uint64_t value) {
    uint64_t seen = load_relaxed(word);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               word, &seen, value, memory_order_acq_rel, memory_order_relaxed)) {
    }
}

/* A claim word: sequence (48 bits) | owner (8) | phase (8). */
enum { GR_NONE = 255 };
enum gr_slot_phase { GR_VOID = 0, GR_WRITING = 1, GR_READY = 2, GR_TORN = 3 };
enum gr_take_phase { GR_DONE = 0, GR_OPEN = 1, GR_HELD = 2 };

static inline uint64_t claim_word(uint64_t seq, unsigned owner, unsigned phase) {
    return seq << 16 | (uint64_t)owner << 8 | phase;
}
static inline uint64_t seq_of(uint64_t word) { return word >> 16; }
static inline unsigned owner_of(uint64_t word) { return word >> 8 & 0xff; }
static inline unsigned phase_of(uint64_t word) { return word & 0xff; }

/* A subscription word: start (48) | what becomes of a dead member's frames (8) | mode (8).  One word, so
 * that all of it changes together. */
enum gr_mode { GR_SUB_FREE = 0, GR_LOSSLESS = 1, GR_LOSSY = 2 };
enum gr_policy { GR_REDELIVER = 0, GR_DROP = 1 };

static inline uint64_t sub_word(uint64_t start, unsigned policy, unsigned mode) {
    return start << 16 | (uint64_t)policy << 8 | mode;
}
static inline uint64_t start_of(uint64_t word) { return word >> 16; }
static inline unsigned policy_of(uint64_t word) { return word >> 8 & 0xff; }
static inline unsigned mode_of(uint64_t word) { return word & 0xff; }

/* A peer word: state | role | subscription. */
enum gr_state { GR_FREE = 0, GR_LIVE = 1, GR_LEAVING = 2 };
enum gr_role { GR_PRODUCER = 1, GR_CONSUMER = 2 };

static inline uint64_t peer_word(unsigned state, unsigned role, unsigned u) {
    return (uint64_t)state << 16 | (uint64_t)role << 8 | u;
}
static inline unsigned state_of(uint64_t word) { return word >> 16 & 0xff; }
static inline unsigned role_of(uint64_t word) { return word >> 8 & 0xff; }
static inline unsigned sub_of(uint64_t word) { return word & 0xff; }

/* A named place between two stores that another process can see.  tests/core/kill/ compiles the core
 * with GR_FAULTS and kills or stops processes there; otherwise it is nothing. */
#ifdef GR_FAULTS
void gr_fault(const char *name);
#define FAULT(name) gr_fault(name)
#else
#define FAULT(name) ((void)0)
#endif

/* The set bits of a mask, lowest first: for (each_bit(u, mask)) ... */
#define each_bit(var, mask)                                                                        \
    uint64_t var##_rest = (mask), var = 0;                                                         \
    var##_rest != 0 && (var = (uint64_t)__builtin_ctzll(var##_rest), true);                        \
    var##_rest &= var##_rest - 1

#endif

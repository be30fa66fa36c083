/* Atomic words, and the memory orders in which they are read and written.
 *
 * Every shared word is a 64-bit C11 atomic, but for the two 32-bit words of the doorbell. Four
 * orders are used:
 *
 *   sc       for the pairs "announce, then look again" (docs/protocol.md, Edges). The store that
 *            announces and the load that looks must not pass each other; x86 allows that, too.
 *   acquire  for a load that reads what a store-release published.
 *   release  for a store that publishes plain data written before it.
 *   relaxed  for hints and diagnostics: any value that was ever written is acceptable.
 *
 * There are no stand-alone fences. Both sides of each pair are sc accesses, which cost nothing
 * extra for a load or a compare-and-swap on x86-64, and which ThreadSanitizer understands.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef _Atomic uint64_t gr_word;
typedef _Atomic uint32_t gr_word32;

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free between processes");
_Static_assert(sizeof(gr_word) == 8 && sizeof(gr_word32) == 4, "atomic words carry no padding");

#define gr_load_sc(p) atomic_load_explicit((p), memory_order_seq_cst)
#define gr_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define gr_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define gr_store_sc(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)
#define gr_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define gr_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)

static inline bool gr_cas(gr_word *word, uint64_t expected, uint64_t desired) {
    return atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

/* Raises a word that only rises. Acquire and release: whoever reads the new value sees what was
 * written before it. A stale first load costs one more turn of the loop. */
static inline void gr_raise_to(gr_word *word, uint64_t value) {
    uint64_t seen = gr_load_relaxed(word);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               word, &seen, value, memory_order_acq_rel, memory_order_relaxed)) {
    }
}

/* A text of whole words. Relaxed: a reader that needs it whole is ordered by another word. */
static inline void gr_write_text(gr_word *to, const char *text, int words) {
    for (int k = 0; k < words; k++) {
        uint64_t word;
        memcpy(&word, text + 8 * k, 8);
        gr_store_relaxed(&to[k], word);
    }
}

/* What must hold here, whatever other peers do that follow the protocol. It is checked where the
 * library is compiled with GR_DEBUG, as with sanitizers (./check); else it does nothing. Hostile
 * words may break it, so the fuzzers do without. */
#ifdef GR_DEBUG
#include <stdio.h>
#include <stdlib.h>
static inline void gr_assert(bool holds, const char *condition, const char *file, int line) {
    if (holds) return;
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}
#define GR_ASSERT(condition) gr_assert((condition), #condition, __FILE__, __LINE__)
#else
#define GR_ASSERT(condition) ((void)0)
#endif

/* A named place between two stores that another process can see. The kill matrix compiles the
 * core with GR_FAULTS and kills or stops processes there. Without GR_FAULTS it does nothing. */
#ifdef GR_FAULTS
void gr_fault(const char *name);
#define GR_FAULT(name) gr_fault(name)
#else
#define GR_FAULT(name) ((void)0)
#endif

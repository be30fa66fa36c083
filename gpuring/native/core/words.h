/* How the words of the header are packed: claim words, subscription words and peer words. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

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

/* A subscription word: start (48) | what becomes of a dead member's frames (8) | mode (8). It is
 * one word so that all of it changes together. */
enum gr_mode { GR_SUB_FREE = 0, GR_LOSSLESS = 1, GR_LOSSY = 2 };
enum gr_policy { GR_REDELIVER = 0, GR_DROP = 1, GR_DURABLE = 2 };
/* The start of a durable subscription that producers do not wait for any more. */
#define GR_GIVEN_UP ((UINT64_C(1) << 48) - 1)

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

/* The word of a ring's producers: how many died (24) | have left (24) | are live (8) | how the last
 * one ended (8). */
static inline uint64_t producers_word(uint64_t died, uint64_t left, uint64_t live, unsigned end) {
    return died << 40 | left << 16 | live << 8 | end;
}
static inline uint64_t died_of(uint64_t word) { return word >> 40; }
static inline uint64_t left_of(uint64_t word) { return word >> 16 & 0xffffff; }
static inline uint64_t live_of(uint64_t word) { return word >> 8 & 0xff; }
static inline unsigned end_of(uint64_t word) { return word & 0xff; }

/* Masks of several words: number k is bit k % 64 of word k / 64. */
static inline uint64_t bit_of(uint64_t k) { return UINT64_C(1) << k % 64; }

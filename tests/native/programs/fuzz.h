/* What the fuzzers have in common: random numbers, rings whose tables are heap blocks of their
 * exact size, and hostile words.
 */
#pragma once

enum { HANG_S = 5, TABLES = 8, PEERS = 5, DEAD = 3, GEOMETRIES = 7, CROWD = 100 };
#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof *(array)))
typedef unsigned long long ull;

static uint64_t seed = 1, input, rng;
static const char *doing = "";

static void tell(void) { fprintf(stderr, "fuzz: seed %llu, input %llu, in %s\n", (ull)seed, (ull)input, doing); }
#define NOT_SO(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), tell(), abort())
#include "require.h"

static void tick(int signal) {
    static uint64_t last = UINT64_MAX;
    static int ticks;
    (void)signal;
    if (last != input) last = input, ticks = 0;
    if (++ticks > HANG_S) NOT_SO("a hang");
}
static uint64_t random64(void) { /* splitmix64 */
    uint64_t z = rng += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static uint32_t below(uint64_t n) { return (uint32_t)(random64() % n); }

/* Options of every fuzzer: --inputs N --first INPUT --seed S. */
static void begin_run(int argc, char **argv, uint64_t *inputs, uint64_t *first) {
    for (int k = 1; k + 1 < argc; k += 2) {
        uint64_t *to = !strcmp(argv[k], "--inputs") ? inputs : !strcmp(argv[k], "--first") ? first : &seed;
        *to = strtoull(argv[k + 1], NULL, 10);
    }
    struct itimerval second = {{1, 0}, {1, 0}};
    signal(SIGALRM, tick);
    setitimer(ITIMER_REAL, &second, NULL);
    __sanitizer_set_death_callback(tell);
}

/* ---- rings whose tables have borders --------------------------------------------------------- */

struct live {
    struct gr_ring *ring;
    void *mapped[TABLES], *table[TABLES], *first_table[TABLES];
    size_t nbytes[TABLES], file_nbytes;
    /* 2 producers; a lossless, a shared and a lossy consumer. */
    struct gr_peer peer[PEERS], first[PEERS];
    gr_word first_mine[GR_MAX_PEERS];
    uint8_t *file, *first_file; /* the segment, mapped; and a copy from when it was valid */
    int fd;
};
/* The words of `hostile` change inside its verbs. */
static struct live lives[GEOMETRIES], *hostile;
static int inside;                              /* how many more of them are to change */

static void **place(struct gr_ring *r, int k) {
    void **at[TABLES] = {(void **)&r->head, (void **)&r->sub,  (void **)&r->peer, (void **)&r->slot,
                         (void **)&r->take, (void **)&r->work, (void **)&r->fence, (void **)&r->tear};
    return at[k];
}
static void isolate(struct live *live) {
    struct gr_ring *r = live->ring;
    size_t words = 8ul * r->slots * r->max_peers, tears = 2 * words, takes = r->slots * r->max_subscriptions * sizeof *r->take;
    size_t nbytes[TABLES] = {sizeof *r->head, r->max_subscriptions * sizeof *r->sub,
                             r->max_peers * sizeof *r->peer, r->slots * sizeof *r->slot, takes, words, words, tears};
    for (int k = 0; k < TABLES; k++) {
        live->nbytes[k] = nbytes[k];
        live->mapped[k] = *place(r, k);
        *place(r, k) = live->table[k] = memcpy(memalign(GR_LINE, nbytes[k]), live->mapped[k], nbytes[k]);
    }
}

/* ---- hostile words --------------------------------------------------------------------------- */

static uint64_t *any_word(struct live *live) {
    static const int weights[] = {0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7};
    int k = weights[below(COUNT(weights))];
    uint64_t at = below(live->nbytes[k] / 8);
    /* From claim_hint to peer_mask: hint, bell, waiters, closed, producers, masks and so on. */
    if (k == 0 && below(2)) at = 24 + below(28);
    return (uint64_t *)live->table[k] + at;
}
static uint64_t any_value(uint64_t old, uint64_t other, uint64_t near_seq) {
    static const uint64_t values[] = {0, 1, 2, 63, 64, 65, 255, 1024, 1025, UINT32_MAX, UINT64_C(1) << 40,
                                      UINT64_C(1) << 47, (UINT64_C(1) << 48) - 1, UINT64_C(1) << 63, UINT64_MAX};
    uint64_t seq = near_seq + below(64) - below(64), owner = below(3) ? below(8) : below(3) ? 100 + below(10) : below(256);
    switch (below(11)) {
    case 0: return values[below(COUNT(values))];
    case 1: return old + 1 - 2 * below(2);
    case 2: return old ^ UINT64_C(1) << below(64);
    case 3: return random64();
    case 4: return other;
    case 5: return old ^ (uint64_t)below(65536);
    case 6: return peer_word(below(4), below(4), below(2) ? below(8) : below(256));
    case 7: return sub_word(below(2) ? seq : random64() >> 16, below(3), below(4));
    case 8: return claim_word(random64() >> 16 >> below(48), owner, below(5));
    default: return claim_word(seq, owner, below(5));
    }
}
/* Writes two words that agree with each other and with no other word: they say that a frame is
 * ready, and open to its readers. */
static void forge(struct gr_ring *r, uint64_t seq) {
    uint32_t i = below(r->slots);
    r->slot[i].word = claim_word(seq, below(4), GR_READY);
    take_of(r, i, below(r->max_subscriptions))->word = claim_word(seq, GR_NONE, GR_OPEN);
    r->head->closed = below(2);
}
static void corrupt(struct live *live) {
    if (below(8) == 0) {
        forge(live->ring, live->peer[below(PEERS)].last.seq + below(8));
        return;
    }
    uint64_t *word = any_word(live);
    *word = any_value(*word, *any_word(live), live->peer[below(PEERS)].last.seq);
}
void gr_fault(const char *name) {
    doing = name;
    if (hostile && inside && below(4) == 0) inside--, corrupt(hostile);
}

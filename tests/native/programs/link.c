/* Importers are killed, at every fault point and at random. Each near frame must come once, and in
 * order.
 *
 * There is no near ring. A function computes which near sequences there are, which of them are
 * void, and where one near ring ends and another one begins. Near rings are short, and each begins
 * again with low sequences. An importer claims slots in advance, sets origins, publishes, and sets
 * the link. It is killed, and the next one goes on with what gr_link says. The reader, here in the
 * parent, goes through the same arithmetic, and compares every frame, and what was lost before it.
 *
 * Usage: link [kills [seed]]. Prints as JSON at which fault points importers died.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { MAX_POINTS = 64, DEADLINE_S = 20, FIRST = 4 /* a near ring of 4 slots begins with that */ };
typedef unsigned long long ull;

static uint64_t seed = 1, kills, dice;

#define NOT_SO(...)                                                                                \
    (fprintf(stderr, __VA_ARGS__), fprintf(stderr, " (kill %llu of seed %llu)\n", (ull)kills, (ull)seed), abort())
#include "require.h"

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static uint64_t chance(uint64_t n) { return (dice = mix(dice)) % n; }

/* ---- the near rings -------------------------------------------------------------------------- */

struct place {
    uint64_t ring, seq, lost; /* which near ring; the last sequence that was dealt with */
};

static uint64_t end_of_near(uint64_t ring) { return FIRST + mix(seed ^ mix(ring)) % 40; }
static bool is_void(uint64_t ring, uint64_t seq) { return mix(seed ^ mix(ring << 32 | seq)) % 5 == 0; }

/* Goes on to the next frame. False: to another near ring instead. */
static bool step(struct place *at) {
    while (at->seq + 1 < end_of_near(at->ring)) {
        if (!is_void(at->ring, ++at->seq)) return true;
        at->lost++;
    }
    *at = (struct place){at->ring + 1, FIRST - 1, at->lost};
    return false;
}

static uint64_t name_of(const struct place *at) { return at->ring << 32 | at->seq; }
static struct gr_watermark mark_of(const struct place *at) {
    struct gr_watermark mark = {.seq = at->seq, .lost = at->lost};
    memcpy(mark.epoch, (uint64_t[]){at->ring, ~at->ring}, sizeof mark.epoch);
    return mark;
}
static struct place place_of(const struct gr_watermark *mark) {
    uint64_t epoch[2];
    memcpy(epoch, mark->epoch, sizeof epoch);
    REQUIRE(epoch[1] == ~epoch[0], "two epochs are mixed");
    return (struct place){epoch[0], mark->seq, mark->lost};
}

/* ---- the importer, which dies ---------------------------------------------------------------- */

static struct died {
    char name[MAX_POINTS][32];
    unsigned times[MAX_POINTS], at_random;
} *died; /* in memory that outlives the importers */
static uint64_t hits_left; /* until it dies; 0: it is not going to */

void gr_fault(const char *name) {
    if (hits_left == 0 || --hits_left > 0) return;
    int k = 0;
    while (died->name[k][0] && strcmp(died->name[k], name) != 0) k++;
    strncpy(died->name[k], name, sizeof died->name[k] - 1);
    died->times[k]++;
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void nap(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

static struct gr_ring *attach(int fd) {
    char text[256];
    const char *why;
    struct gr_ring *ring = gr_attach(fd, &why, text, sizeof text);
    REQUIRE(ring, "%s", why);
    return ring;
}

/* Claims up to `credits` slots in advance, publishes in them what comes next, and so on. */
static void import(int fd, uint64_t credits) {
    static struct gr_peer me;
    struct { uint32_t index; uint64_t seq; } have[GR_MAX_SLOTS];
    struct gr_ring *ring = attach(fd);
    const bool lazy = chance(2); /* sets the link now and then only */
    REQUIRE(gr_join_producer(ring, &me) == GR_OK);
    struct gr_watermark mark;
    struct place at = {0, FIRST - 1, 0};
    if (gr_link(ring, &mark)) at = place_of(&mark);
    else mark = mark_of(&at), gr_set_link(ring, &mark);
    for (uint64_t first = 0, n = 0;;) {
        for (; n < credits; n++) {
            enum gr_result result = gr_claim(&me);
            if (result == GR_BLOCKED) break;
            REQUIRE(result == GR_OK, "%d", result);
            have[(first + n) % credits].index = me.last.index;
            have[(first + n) % credits].seq = me.last.seq;
        }
        if (n == 0) {
            nap(20);
            continue;
        }
        for (uint64_t go = 1 + chance(n); go > 0; go--) {
            if (!step(&at)) {
                mark = mark_of(&at), gr_set_link(ring, &mark);
                continue;
            }
            const uint32_t index = have[first % credits].index;
            const uint64_t seq = have[first % credits].seq;
            struct gr_origin origin = {at.seq, name_of(&at), (uint32_t)at.lost};
            REQUIRE(gr_set_origin(&me, index, seq, &origin) == GR_OK);
            uint64_t value = gr_promise(&me, index, seq);
            gr_raise_to(fence_of(ring, index, me.self.number), value);
            REQUIRE(gr_publish(&me, index, seq, value, 0, NULL) == GR_OK);
            first++, n--;
            if (!lazy || chance(8) == 0) mark = mark_of(&at), gr_set_link(ring, &mark);
        }
    }
}

/* ---- the reader ------------------------------------------------------------------------------ */

static struct gr_peer reader;
static struct place read_to = {0, FIRST - 1, 0};

static bool read_one(struct gr_ring *ring) {
    enum gr_result result = gr_acquire(&reader);
    /* GR_PEER_LOST: the importer is dead, and the next one has not joined. */
    if (result == GR_BLOCKED || result == GR_PEER_LOST) return false;
    REQUIRE(result == GR_OK, "%d", result);
    struct gr_origin origin;
    REQUIRE(gr_origin(&ring->slot[reader.last.index], &origin));
    while (!step(&read_to)) {
    }
    REQUIRE(origin.time_ns == name_of(&read_to), "near %llu of ring %llu came, and not %llu of %llu",
            (ull)(origin.time_ns & UINT32_MAX), (ull)(origin.time_ns >> 32), (ull)read_to.seq, (ull)read_to.ring);
    REQUIRE(origin.seq == read_to.seq && origin.lost == (uint32_t)read_to.lost, "%u lost, and not %llu",
            origin.lost, (ull)read_to.lost);
    uint64_t value = gr_promise(&reader, reader.last.index, reader.last.seq);
    gr_raise_to(fence_of(ring, reader.last.index, reader.self.number), value);
    REQUIRE(gr_release(&reader, reader.last.index, reader.last.seq) == GR_OK);
    return true;
}

/* One life of an importer, and what is read meanwhile. */
static void live(struct gr_ring *ring, int fd) {
    const bool random = chance(3) == 0;
    const uint64_t hits = random ? 0 : 1 + chance(150), credits = 1 + chance(ring->slots), enough = chance(60);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(4);
        dice = mix(dice + 1), hits_left = hits;
        import(fd, credits);
        _exit(5);
    }
    REQUIRE(pid > 0);
    const int64_t until = gr_now_ns() + DEADLINE_S * INT64_C(1000000000);
    int status = 0;
    for (uint64_t frames = 0; waitpid(pid, &status, WNOHANG) == 0;) {
        frames += read_one(ring);
        if (random && frames >= enough) {
            for (volatile uint64_t k = chance(20000); k > 0; k--) {
            }
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            died->at_random++;
            break;
        }
        if (gr_now_ns() > until) {
            kill(pid, SIGKILL);
            REQUIRE(!"an importer goes on");
        }
    }
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%#x", status);
}

int main(int argc, char **argv) {
    const uint64_t all = argc > 1 ? strtoull(argv[1], NULL, 10) : 200;
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    dice = mix(seed);
    died = mmap(NULL, sizeof *died, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct gr_config config = {.slots = 2 + (uint32_t)(seed % 5), .max_peers = 4, .max_subscriptions = 2,
                               .slot_nbytes = 64, .spec_nbytes = 2};
    const int fd = memfd_create("link", MFD_CLOEXEC);
    uint8_t zeros[64] = {0};
    struct gr_ring *ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(died != MAP_FAILED && ring);
    REQUIRE(gr_join_consumer(ring, (char[GR_NAME_WORDS * 8]){"far"}, GR_LOSSLESS, GR_REDELIVER, GR_START_OLDEST,
                             0, &reader) == GR_OK);
    for (; kills < all; kills++) live(ring, fd);
    printf("{\"kills\": %llu, \"frames\": %llu, \"near rings\": %llu, \"at random\": %u, \"points\": {",
           (ull)kills, (ull)gr_load_sc(&ring->peer[reader.self.number].frames), (ull)read_to.ring + 1,
           died->at_random);
    for (int k = 0; died->name[k][0]; k++) printf("%s\"%s\": %u", k ? ", " : "", died->name[k], died->times[k]);
    printf("}}\n");
    return 0;
}

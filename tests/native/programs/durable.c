/* A process is killed between two stores for a durable subscription, or a producer goes on at that
 * moment. A member that joins afterwards reads what is left. Each frame was either read or is
 * counted as lost, and no frame both.
 *
 * Usage: durable join|note|count|give|clear|tell|skip|subscribe|acquire|latest. What happens, and where, is
 * in the functions of these names.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"
#include "require.h"

enum { SLOTS = 2 };

static const char name[GR_NAME_WORDS * 8] = "x";
static struct gr_peer producer, reader;
static const char *here = "", *there = ""; /* here frames are published, and there it is killed */
static int frames;                         /* that are published `here` */
static uint64_t patience_ns;               /* 0: for ever */

static void publish(int n) {
    const char *before = here;
    here = ""; /* a claim has points, too */
    for (; n; n--) {
        uint64_t value;
        REQUIRE(gr_claim(&producer) == GR_OK);
        pay(&producer, &value);
        REQUIRE(gr_publish(&producer, producer.last.index, producer.last.seq, value, 0, NULL) == GR_OK);
    }
    here = before;
}

void gr_fault(const char *point) {
    if (strcmp(point, here) == 0) publish(frames), here = "";
    if (strcmp(point, there) == 0) kill(getpid(), SIGKILL);
}

static void subscribe(struct gr_ring *ring, unsigned mode) {
    const struct gr_terms terms = {.mode = mode, .from = GR_START_OLDEST, .patience_ns = patience_ns};
    REQUIRE(gr_subscribe(ring, name, &terms) == GR_OK);
}

static void come(struct gr_ring *ring, unsigned mode) {
    REQUIRE(gr_join_consumer(ring, name, mode, GR_REDELIVER, GR_START_NEXT, 0, &reader) == GR_OK);
}

static void release(void) {
    uint64_t value;
    pay(&reader, &value);
    REQUIRE(gr_release(&reader, reader.last.index, reader.last.seq) == GR_OK);
}

/* A frame or two come between the announcement of a lossy one that is taken up, and the joiner's
 * last look at the frontier (H17). */
static void join(struct gr_ring *ring) {
    subscribe(ring, GR_LOSSY);
    here = "subscription taken up", frames = 3;
    come(ring, GR_LOSSY);
}

/* A subscription that has lost frames is taken up. At that moment the losses are owed or not (H16),
 * or they were reported to a member that is dead (H21). */
static void take_up_and_die(struct gr_ring *ring, const char *point) {
    subscribe(ring, GR_LOSSY);
    publish(SLOTS + 2);
    there = point;
    come(ring, GR_LOSSY);
}
static void note_and_die(struct gr_ring *ring) { take_up_and_die(ring, "subscription taken up"); }
static void count_and_die(struct gr_ring *ring) { take_up_and_die(ring, "owed: counted"); }
/* The next who looks gives the subscription up. */
static void count_and_give_up(struct gr_ring *ring) { patience_ns = 1, take_up_and_die(ring, "owed: counted"); }
static void clear_and_die(struct gr_ring *ring) { take_up_and_die(ring, "owed: resume cleared"); }
static void tell_and_die(struct gr_ring *ring) { take_up_and_die(ring, "join: loss counted"); }

/* The frame that was to report the losses is torn, and nobody has seen it. */
static void skip_and_die(struct gr_ring *ring) {
    take_up_and_die(ring, "");
    REQUIRE(gr_acquire(&reader) == GR_OK);
    there = "release: done";
    gr_skip_torn(&reader);
}

/* A subscription is announced, and a claim may not have seen that (H18). */
static void subscribe_and_die(struct gr_ring *ring) {
    publish(2);
    here = "join: masked", frames = 2, there = "join: announced";
    subscribe(ring, GR_LOSSLESS);
}

/* A member takes a frame that has just been overwritten (H19). */
static void acquire_and_die(struct gr_ring *ring) {
    subscribe(ring, GR_LOSSY);
    come(ring, GR_LOSSY);
    publish(2);
    here = "acquire: looked", frames = 1, there = "acquire: undone";
    gr_acquire(&reader);
}

/* A member has given back a frame, and reads a newer one (H19). */
static void latest_and_die(struct gr_ring *ring) {
    subscribe(ring, GR_LOSSY);
    come(ring, GR_LOSSY);
    publish(2);
    REQUIRE(gr_acquire(&reader) == GR_OK && gr_give_back(&reader, 0, SLOTS) == GR_OK);
    there = "latest: taken back";
    gr_latest(&reader);
}

static struct gr_ring *attach(int fd) {
    char text[256];
    const char *why;
    struct gr_ring *ring = gr_attach(fd, &why, text, sizeof text);
    REQUIRE(ring != NULL && gr_join_producer(ring, &producer) == GR_OK);
    return ring;
}

int main(int count, char **words) {
    const struct { const char *how; void (*dies)(struct gr_ring *); unsigned mode; bool exact; } all[] = {
        {"join", NULL, GR_LOSSY, false}, {"note", note_and_die, GR_LOSSY, true},
        {"count", count_and_die, GR_LOSSY, true}, {"give", count_and_give_up, GR_LOSSY, true}, {"clear", clear_and_die, GR_LOSSY, true},
        {"tell", tell_and_die, GR_LOSSY, true}, {"skip", skip_and_die, GR_LOSSY, true}, {"subscribe", subscribe_and_die, GR_LOSSLESS, false},
        {"acquire", acquire_and_die, GR_LOSSY, false}, {"latest", latest_and_die, GR_LOSSY, false}};
    const unsigned ways = sizeof all / sizeof *all;
    unsigned k = 0;
    while (count == 2 && k < ways && strcmp(words[1], all[k].how) != 0) k++;
    if (count != 2 || k == ways) return 2;
    const struct gr_config config = {.slots = SLOTS, .max_peers = 4, .max_subscriptions = 2,
                                     .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .slot_nbytes = 64, .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    int status, fd = memfd_create("durable", MFD_CLOEXEC);
    alarm(60);
    struct gr_ring *ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL);
    if (all[k].dies) {
        pid_t child = fork();
        if (child == 0) {
            all[k].dies(attach(fd));
            _exit(1);
        }
        REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
        come(ring, all[k].mode);
    } else join(attach(fd));

    struct gr_sub *sub = &ring->sub[reader.self.u];
    uint64_t had = all[k].dies == skip_and_die /* the torn one */, begins = all[k].mode == GR_LOSSLESS ? SLOTS + 1 : SLOTS, every = gr_frontier(ring) - begins;
    gr_close(ring);
    for (; gr_acquire(&reader) == GR_OK; had++) release();
    const uint64_t told = gr_load_relaxed(&ring->peer[reader.self.number].lost), lost = gr_load_relaxed(&sub->lost);
    REQUIRE(had + told <= every && every <= had + (all[k].exact ? told : lost), "%d read, %d told, %d counted of %d", (int)had, (int)told,
            (int)lost, (int)every);
    puts("each frame was read or counted");
    return 0;
}

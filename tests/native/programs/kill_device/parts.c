/* The ring of the kill matrix for device order: how a process comes to it and goes, and the auditor.
 *
 * Rounds, plan, lives, books and report are those of kill/. Here the processes use the verbs of device/
 * over a fake driver (fake_cuda.h), whose GPU is a thread of the parent. So the GPU work of a
 * process that is stopped goes on, and that of a process that is killed is lost a moment after its
 * locks. The ring has one of four kinds, drawn with the round: a timeline with either gate, events
 * with gate "host", or a pinned ring, of which each process draws whether it uses it by the CPU. (With
 * gate "stream" a stream that waits for the event of a dead peer waits for ever: docs/failure.md.)
 */
#include "device_kill.h"

#include <errno.h>
#include <poll.h>
#include <sys/timerfd.h>

struct fc_world *world;
struct gd_driver driver;
struct gd_device device;
gd_stream streams[2];
bool by_cpu;
static pid_t parent;

/* A frame must be read once it is both paid and published, so whichever comes second notes it. */
static void paid(uint64_t seq) { atomic_store(&book->frame[seq].published, PUBLISHED); }

static void __attribute__((constructor)) begin(void) {
    world = fc_new(true);
    parent = getpid();
    fc_on_paid = paid;
    fc_start(world);
}

/* The core asks this file descriptor whether a dead process's GPU work is gone. */
int __real_gr_pidfd(pid_t pid);
int __wrap_gr_pidfd(pid_t pid);
int __wrap_gr_pidfd(pid_t pid) {
    int got = __real_gr_pidfd(pid), error = errno;
    struct pollfd exited = {.fd = got, .events = POLLIN};
    bool dead = got < 0 ? error == ESRCH : poll(&exited, 1, 0) == 1;
    errno = error;
    if (!dead || fc_gpu_gone(world, pid)) return got;
    if (got >= 0) close(got);
    struct itimerspec soon = {.it_value.tv_nsec = 200 * 1000}; /* look again then */
    got = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    timerfd_settime(got, 0, &soon, NULL);
    return got;
}

/* ---- the ring and the GPU -------------------------------------------------------------------- */

enum kind kind_of_ring(void) { return (enum kind)(mix(now.seed + 99) % KINDS); }

/* The parent's GPU serves the ring; every other process opens the GPU. */
static void use_ring(void) {
    struct gd_trouble trouble;
    if (getpid() == parent) {
        fc_serve_ring(ring);
        return;
    }
    fc_enter(world, &driver);
    for (int k = 0; k < 2; k++) streams[k] = fc_stream(0, chance(2));
    fc_set_device(0);
    /* A process that does not use the GPU never comes to "device: unfinished", and a corpse has to
     * come to its point. */
    bool on_gpu = self.target && strcmp(self.target, "device: unfinished") == 0;
    by_cpu = kind_of_ring() == PINNED && !on_gpu && chance(2);
    if (by_cpu) return;
    if (kind_of_ring() == PINNED) ring->gpu[0] = 1; /* a join notes it */
    REQUIRE(gd_open(&device, &driver, ring, 0, &trouble) == GR_OK, "%d: %d", trouble.where, trouble.status);
}

void attach(void) {
    char text[256];
    const char *why;
    ring = gr_attach(fd, &why, text, sizeof text);
    REQUIRE(ring != NULL, "%s", why ? why : strerror(errno));
    use_ring();
}

void create(void) {
    const enum kind kind = kind_of_ring();
    struct gr_config config = {.slots = now.slots, .max_peers = MAX_PEERS + now.crowd,
                               .max_subscriptions = 7 + now.crowd,
                               .memory = kind == PINNED ? GR_MEMORY_PINNED : GR_MEMORY_IPC,
                               .slot_nbytes = 64, .spec_nbytes = 2,
                               .sync = kind == EVENTS_HOST ? GR_SYNC_EVENT : GR_SYNC_TIMELINE,
                               .gate = kind == WORDS_STREAM || kind == PINNED ? GR_GATE_STREAM : GR_GATE_HOST};
    uint8_t zeros[64] = {0};
    fc_reset(world, now.seed); /* the creator is there first */
    ring = gr_create(fd, &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL, "%s", strerror(errno));
    keep_one();
    trace_it();
    use_ring();
}

struct gr_peer *nobody(void) {
    static struct gd_peer me;
    return &me.core;
}

void depart(void) {
    REQUIRE(gd_close(&device));
    fc_leave();
}

/* Called before a process dies in a verb. Its watchdog may be in a call of the fake driver
 * (fc_gpu_gone), whose lock it would keep. A real driver has no such lock. */
void before_death(void) { fc_end_calls(); }

static bool anybody(void) {
    unsigned peers = 0;
    gr_each_peer(p, ring) peers += p < ring->max_peers;
    return peers > 0;
}

/* Runs when all others are gone: the ring has to be as good as new, and the GPU must have no
 * complaint. */
void audit(void) {
    struct gr_peer peers[MAX_PEERS + CROWD];
    attach();
    struct gr_head *head = ring->head;
    /* If it was closed, the others ended at once, and the GPU work of the dead is gone in a
     * moment. */
    if (gr_load_sc(&head->closed))
        for (int k = 0; k < 100 && anybody(); k++, nap(100)) REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
    REQUIRE(fc_complaint(world) == NULL, "%s", fc_complaint(world));
    REQUIRE(live_of(gr_load_sc(&head->producers)) == 0);
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        REQUIRE(state_of(gr_load_sc(&ring->peer[p].word)) == GR_FREE, "entry %u", p);
        for (uint32_t i = 0; i < ring->slots; i++)
            REQUIRE(gr_load_sc(fence_of(ring, i, p)) == gr_load_sc(work_of(ring, i, p)), "slot %u peer %u", i, p);
    }
    for (uint32_t i = 0; i < ring->slots; i++) {
        REQUIRE(phase_of(gr_load_sc(&ring->slot[i].word)) != GR_WRITING, "slot %u", i);
        for (uint32_t u = 0; u < ring->max_subscriptions; u++)
            REQUIRE(phase_of(gr_load_sc(&take_of(ring, i, u)->word)) != GR_HELD, "slot %u subscription %u", i, u);
    }
    if (gr_load_sc(&head->closed)) return;
    REQUIRE(gr_join_producer(ring, &peers[0]) == GR_OK);
    /* Claims all slots one after the other, and gives none back: so no slot was lost. */
    for (uint32_t i = 0; i < ring->slots; i++) {
        enum gr_result result = gr_claim(&peers[0]);
        REQUIRE(result == GR_OK && peers[0].last.pendings == 0, "claim %u: %d", i, result);
    }
    for (uint32_t i = 0; i < ring->slots; i++)
        REQUIRE(gr_abandon(&peers[0], i, seq_of(gr_load_sc(&ring->slot[i].word))) == GR_OK);
    REQUIRE(gr_leave(&peers[0]) == GR_OK);
}

/* A producer joins while the watchdog of another process sleeps, and is killed. A thread of that
 * process waits for it, but has not slept in a verb since. Its watchdog has to know of the producer
 * all the same.
 *
 * "stream": the producer has published a frame that its GPU had not written, and a reader's stream
 * waits for it. "gate": the reader itself waits for it, with the gate "host". "poll": the producer
 * has claimed the only slot, and another one asks for it again and again.
 *
 * Compile it with watchdog.c changed so that no tick comes, and with a slice that never ends. Then
 * it hangs if nobody tells the watchdog, and the alarm ends it. Usage:
 * late_join stream|gate|poll seconds
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
#include "../../../gpuring/native/device/device.h"
#include "../../../gpuring/native/device/verbs.h"
#include "fake_cuda.h"
#include "require.h"

static struct fc_world *world;
static struct gd_driver driver;
static struct gd_device device;
static struct gr_ring *ring;
static struct gd_peer me;
static int fd;
static bool polls, gate;

static void open_gpu(void) {
    struct gd_trouble trouble;
    fc_enter(world, &driver);
    fc_set_device(0);
    REQUIRE(gd_open(&device, &driver, ring, 0, &trouble) == GR_OK);
}

static void prepare(void) {
    struct gd_trouble trouble;
    REQUIRE(gd_prepare(&me, &device, gate, &trouble) == GR_OK);
    gr_watch(ring);
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL); }

/* Attaches to the ring only when the reader says so. */
static void publish_and_hang(int go, int done) {
    char byte, text[256];
    const char *why;
    struct gd_call call;
    uint32_t index;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(go, &byte, 1) != 1) exit(1);
    REQUIRE((ring = gr_attach(fd, &why, text, sizeof text)) != NULL);
    open_gpu();
    REQUIRE(gr_join_producer(ring, &me.core) == GR_OK);
    prepare();
    gd_stream stream = fc_stream(0, false);
    fc_hold_stream(stream, true);
    gd_begin(&call, stream, 0, 1, &index);
    REQUIRE(gd_claim(&me, &call, GD_WAIT) == GR_OK);
    me.use[index].open = true;
    gd_begin(&call, stream, INT64_MAX, 1, &index);
    REQUIRE(polls || gd_publish(&me, &call, GD_WAIT) == GR_OK);
    REQUIRE(write(done, "", 1) == 1);
    for (;;) pause();
}

/* The watchdog has looked at the ring since this process has joined, and sleeps or is about to. */
static void let_the_watchdog_sleep(void) {
    for (bool looked = false; !looked; nap()) {
        gr_lock_handles();
        looked = gr_load_relaxed(&ring->joins_seen) == gr_load_relaxed(&ring->head->joins);
        gr_unlock_handles();
    }
}

static void read_frame(gd_stream stream, pid_t child) {
    struct gd_call call;
    uint32_t index;
    gd_begin(&call, stream, 0, 1, &index);
    REQUIRE(gd_acquire(&me, &call, GD_WAIT, gr_acquire) == GR_OK);
    REQUIRE(!fc_idle(world, fc_process())); /* the stream waits */
    REQUIRE(kill(child, SIGKILL) == 0);
    while (!fc_idle(world, fc_process()))
        if (!fc_step(world)) nap();
    REQUIRE(gr_torn(ring, index, me.use[index].producer, me.use[index].producer_id, me.use[index].value));
}

/* The producer dies before the reader waits, and no process has noticed that yet. */
static void await_frame(gd_stream stream, pid_t child) {
    struct gd_call call;
    uint32_t index;
    REQUIRE(kill(child, SIGKILL) == 0);
    gd_begin(&call, stream, INT64_MAX, 1, &index);
    enum gr_result result = GR_SIGNAL;
    while (result == GR_SIGNAL) result = gd_acquire(&me, &call, GD_WAIT, gr_acquire);
    REQUIRE(result == GR_PEER_LOST); /* the torn frame is passed over */
}

static void poll_for_slot(gd_stream stream, pid_t child) {
    struct gd_call call;
    uint32_t index;
    REQUIRE(kill(child, SIGKILL) == 0);
    for (enum gr_result result = GR_BLOCKED; result != GR_OK; nap()) {
        gd_begin(&call, stream, 0, 1, &index);
        result = gd_claim(&me, &call, GD_WAIT);
        REQUIRE(result == GR_OK || result == GR_BLOCKED);
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    polls = strcmp(words[1], "poll") == 0;
    const bool awaits = strcmp(words[1], "gate") == 0;
    struct gr_config config = {.slots = polls ? 1 : 2, .max_peers = 4, .max_subscriptions = 2, .memory = GR_MEMORY_IPC,
                               .sync = GR_SYNC_TIMELINE, .slot_nbytes = 64, .spec_nbytes = 2};
    char name[GR_NAME_WORDS * 8] = "x", byte;
    uint8_t zeros[64] = {0};
    int go[2], done[2];
    alarm((unsigned)atoi(words[2]));
    world = fc_new(true);
    fd = memfd_create("late", MFD_CLOEXEC);
    REQUIRE(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) publish_and_hang(go[0], done[1]);

    REQUIRE((ring = gr_create(fd, &config, zeros, zeros, zeros, "{}")) != NULL);
    fc_serve_ring(ring);
    open_gpu();
    REQUIRE((polls ? gr_join_producer(ring, &me.core)
                   : gr_join_consumer(ring, name, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, &me.core)) == GR_OK);
    gate = awaits;
    prepare();
    let_the_watchdog_sleep();
    REQUIRE(write(go[1], "", 1) == 1 && read(done[0], &byte, 1) == 1);

    (polls ? poll_for_slot : awaits ? await_frame : read_frame)(fc_stream(0, false), child);
    REQUIRE(waitpid(child, NULL, 0) == child);
    puts("it goes on");
    return 0;
}

/* Device order step by step: one thread, and a GPU that does one step for each call. So it arranges
 * situations that come up only rarely under load. Usage: device_steps
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "core.h"
#include "../../../gpuring/native/device/device.h"
#include "../../../gpuring/native/device/verbs.h"
#include "fake_cuda.h"
#include "require.h"

static struct fc_world *world;
static struct gd_driver driver;
static struct gd_device device;
static struct gr_ring *ring;

static void open_ring(unsigned sync) {
    struct gr_config config = {.slots = 1, .max_peers = 4, .max_subscriptions = 2, .memory = GR_MEMORY_IPC,
                               .sync = sync, .slot_nbytes = 64, .spec_nbytes = 2};
    uint8_t zeros[64] = {0};
    struct gd_trouble trouble;
    ring = gr_create(memfd_create("steps", MFD_CLOEXEC), &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL);
    fc_forget(world);
    fc_serve_ring(ring);
    REQUIRE(gd_open(&device, &driver, ring, 0, &trouble) == GR_OK);
}

static void run_gpu(void) {
    while (fc_step(world)) {
    }
    REQUIRE(!fc_complaint(world), "%s", fc_complaint(world));
}

static enum gr_result claim(struct gd_peer *me, struct gd_call *call) {
    enum gr_result result = gd_claim(me, call, GD_WAIT);
    if (result == GR_OK) me->use[*call->indices].open = true;
    return result;
}

static enum gr_result acquire(struct gd_peer *me, struct gd_call *call) {
    enum gr_result result = gd_acquire(me, call, GD_WAIT, gr_acquire);
    if (result == GR_OK) me->use[*call->indices].open = true;
    return result;
}

/* A frame that nobody reads, used on one stream, and its end. */
static void use_slot(struct gd_peer *me, gd_stream stream) {
    struct gd_call call;
    uint32_t index;
    gd_begin(&call, stream, 0, 1, &index);
    REQUIRE(claim(me, &call) == GR_OK);
    REQUIRE(fc_write(stream, index, me->use[index].seq) == CU_OK);
    gd_begin(&call, stream, INT64_MAX, 1, &index);
    REQUIRE(gd_abandon(me, &call, GD_WAIT) == GR_OK);
}

/* A slot is claimed on another stream while this peer's own work on it is pending. The claim waits
 * for that work, too (G12: otherwise the older work could be done after the newer, and the fence
 * would fall). The same holds if the other stream has got the handle of the first, which was
 * destroyed. */
static void our_own_work_of_an_earlier_lap_comes_first(unsigned sync, bool handle_again) {
    struct gd_peer me;
    struct gd_trouble trouble;
    open_ring(sync);
    gd_stream first = fc_stream(0, false), other;
    REQUIRE(gr_join_producer(ring, &me.core) == GR_OK);
    REQUIRE(gd_prepare(&me, &device, false, &trouble) == GR_OK);
    fc_hold_stream(first, true);
    use_slot(&me, first);
    if (handle_again) fc_destroy_stream(first);
    other = fc_stream(0, false);
    REQUIRE((other == first) == handle_again);
    use_slot(&me, other);
    run_gpu();
    REQUIRE(!fc_idle(world, fc_process())); /* the other stream waits */
    fc_release_held(world);
    run_gpu();
    REQUIRE(fc_idle(world, fc_process()));

    struct gd_call call;
    gd_begin(&call, other, INT64_MAX, 0, NULL);
    REQUIRE(gd_leave(&me, &call, GD_WAIT) == GR_OK);
    gd_dispose(&me);
    REQUIRE(gd_close(&device));
    gr_detach(ring);
}

/* Two threads may be between the release of a frame and remembering it, even in a ring of one slot,
 * because the slot can be acquired again meanwhile. There must be room for both. */
static struct gd_peer reader, writer;
static gd_stream readers, writers;
static int (*ask)(void *stream, unsigned long long *id);

static void put_and_get(void) {
    struct gd_call call;
    uint32_t index;
    gd_begin(&call, writers, 0, 1, &index);
    REQUIRE(claim(&writer, &call) == GR_OK);
    gd_begin(&call, writers, INT64_MAX, 1, &index);
    REQUIRE(gd_publish(&writer, &call, GD_WAIT) == GR_OK);
    gd_begin(&call, readers, 0, 1, &index);
    REQUIRE(acquire(&reader, &call) == GR_OK);
    gd_begin(&call, readers, INT64_MAX, 1, &index);
    REQUIRE(gd_release(&reader, &call, GD_WAIT) == GR_OK);
}

/* Called in the middle of a release, when the slot is free for others and the frame is not
 * remembered yet. Another release comes in between. */
static int ask_and_release_another(void *stream, unsigned long long *id) {
    uint64_t held;
    if ((gd_stream)stream == readers && !reader.use[0].open && !gr_holds(&reader.core, 0, &held) &&
        reader.released.n + 1 == reader.released.room) {
        driver.stream_get_id = ask;
        put_and_get();
    }
    return ask(stream, id);
}

static void what_is_remembered_has_room(void) {
    char name[64] = "x";
    struct gd_trouble trouble;
    struct gd_call call;
    open_ring(GR_SYNC_EVENT);
    readers = fc_stream(0, false), writers = fc_stream(0, false);
    REQUIRE(gr_join_producer(ring, &writer.core) == GR_OK);
    REQUIRE(gd_prepare(&writer, &device, false, &trouble) == GR_OK);
    REQUIRE(gr_join_consumer(ring, name, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, &reader.core) == GR_OK);
    REQUIRE(gd_prepare(&reader, &device, false, &trouble) == GR_OK);
    fc_hold_stream(writers, true);
    ask = driver.stream_get_id;
    driver.stream_get_id = ask_and_release_another;
    for (int k = 0; k < 12; k++) {
        put_and_get();
        REQUIRE(reader.released.n <= reader.released.room);
    }
    REQUIRE(driver.stream_get_id == ask); /* it was called */
    fc_release_held(world);
    run_gpu();
    gd_begin(&call, readers, INT64_MAX, 0, NULL);
    REQUIRE(gd_leave(&reader, &call, GD_WAIT) == GR_OK);
    gd_begin(&call, writers, INT64_MAX, 0, NULL);
    REQUIRE(gd_leave(&writer, &call, GD_WAIT) == GR_OK);
    gd_dispose(&reader);
    gd_dispose(&writer);
    REQUIRE(gd_close(&device));
    gr_detach(ring);
}

int main(void) {
    world = fc_new(false);
    fc_enter(world, &driver);
    fc_set_device(0);
    for (unsigned sync = GR_SYNC_EVENT; sync <= GR_SYNC_TIMELINE; sync++)
        for (int again = 0; again < 2; again++) our_own_work_of_an_earlier_lap_comes_first(sync, again);
    what_is_remembered_has_room();
    puts("in order");
    return 0;
}

/* Threads of one process in one ring by way of gpuring.h, for sanitizers.
 *
 *     ./api_threads RING FRAMES
 *
 * Two threads publish FRAMES each. Two share a lossless subscription, one has a lossless one for
 * itself, and one is lossy. Each frame is full of one byte, which its metadata has, too. Meanwhile
 * the first thread asks what the ring is doing, and joins and leaves it. Prints how many frames each
 * reader had, and how many it has lost.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../gpuring/include/gpuring.h"

enum { PRODUCERS = 2, READERS = 4 };
static gpuring_ring *ring;
static uint64_t slot_nbytes;
static long frames;
static atomic_int publishing = PRODUCERS;

static void expect(bool right, const char *what, const gpuring_error *error) {
    if (right) return;
    fprintf(stderr, "%s: %s\n", what, error ? error->text : "");
    exit(1);
}

static void *publishes(void *argument) {
    gpuring_producer *producer = argument;
    gpuring_error error;
    gpuring_slot slots[3] = {GPURING_SLOT, GPURING_SLOT, GPURING_SLOT};
    uint32_t got;
    for (long k = 0; k < frames; k += got) {
        const uint32_t wanted = frames - k < 3 ? (uint32_t)(frames - k) : 3;
        expect(!gpuring_claim_many(producer, GPURING_FOREVER, slots, wanted, &got, &error), "claim",
               &error);
        for (uint32_t n = 0; n < got; n++) {
            const int64_t byte = (int64_t)(slots[n].seq % 251);
            memset(slots[n].data, (int)byte, slot_nbytes);
            memcpy(slots[n].meta, &byte, sizeof byte);
        }
        expect(!gpuring_publish_many(producer, slots, got, &error), "publish", &error);
    }
    expect(!gpuring_close_producer(producer, &error), "close", &error);
    atomic_fetch_sub(&publishing, 1);
    return NULL;
}

struct reader {
    gpuring_consumer *consumer;
    uint64_t had, lost;
};

static void check(const gpuring_slot *slot) {
    const unsigned char *data = slot->data;
    int64_t byte;
    memcpy(&byte, slot->meta, sizeof byte);
    expect(byte == (int64_t)(slot->seq % 251), "metadata", NULL);
    for (uint64_t k = 0; k < slot_nbytes; k++) expect(data[k] == byte, "data", NULL);
}

/* Reads until the end, and waits in the library or by poll() on its descriptor. */
static void *reads(void *argument) {
    struct reader *me = argument;
    gpuring_error error;
    gpuring_slot slot = GPURING_SLOT;
    struct pollfd fd = {.fd = -1, .events = POLLIN};
    const bool polls = gpuring_consumer_number(me->consumer) % 2;
    if (polls) expect(!gpuring_consumer_fd(me->consumer, &fd.fd, &error), "fd", &error);
    for (;;) {
        if (polls) poll(&fd, 1, 20000);
        const gpuring_status status =
            gpuring_acquire(me->consumer, polls ? 0 : GPURING_FOREVER, &slot, &error);
        if (status == GPURING_TIMEOUT) continue;
        if (status == GPURING_END_OF_STREAM) break;
        expect(!status, "acquire", &error);
        check(&slot);
        me->had++;
        me->lost += slot.lost;
        expect(!gpuring_release(me->consumer, &slot, &error), "release", &error);
    }
    expect(!gpuring_close_consumer(me->consumer, &error), "close", &error);
    return NULL;
}

int main(int argc, char **argv) {
    gpuring_error error;
    gpuring_info info = GPURING_INFO;
    gpuring_producer *producers[PRODUCERS];
    struct reader readers[READERS] = {{NULL, 0, 0}};
    pthread_t threads[PRODUCERS + READERS];
    expect(argc == 3, "RING FRAMES", NULL);
    frames = atol(argv[2]);
    expect(!gpuring_attach(argv[1], NULL, &ring, &error), "attach", &error);
    gpuring_get_info(ring, &info);
    slot_nbytes = info.slot_nbytes;
    for (int k = 0; k < PRODUCERS; k++)
        expect(!gpuring_join_producer(ring, NULL, &producers[k], &error), "join", &error);
    for (int k = 0; k < READERS; k++) {
        gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
        options.subscription = k < 2 ? "shared" : NULL;
        options.lossy = k == READERS - 1;
        expect(!gpuring_join_consumer(ring, &options, &readers[k].consumer, &error), "join",
               &error);
    }
    for (int k = 0; k < READERS; k++)
        expect(!pthread_create(&threads[k], NULL, reads, &readers[k]), "thread", NULL);
    for (int k = 0; k < PRODUCERS; k++)
        expect(!pthread_create(&threads[READERS + k], NULL, publishes, producers[k]), "thread",
               NULL);
    while (atomic_load(&publishing)) {
        gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
        gpuring_consumer *guest;
        options.lossy = true;
        expect(!gpuring_get_info(ring, &info), "info", NULL);
        expect(!gpuring_join_consumer(ring, &options, &guest, &error), "join", &error);
        expect(!gpuring_close_consumer(guest, &error), "close", &error);
    }
    for (int k = 0; k < PRODUCERS + READERS; k++) pthread_join(threads[k], NULL);
    expect(!gpuring_detach(ring, &error), "detach", &error);
    for (int k = 0; k < READERS; k++)
        printf("%" PRIu64 " %" PRIu64 "\n", readers[k].had, readers[k].lost);
    return 0;
}

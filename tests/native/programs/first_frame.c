/* A claim was past its gate when a lossless subscription was announced, and has not made its swap yet.
 * The subscription has to begin behind the frame that this claim overwrites (H5).
 *
 * The ring is full, and one more frame comes after the joiner has chosen where it begins. The next
 * claim may be the one that has not seen the subscription.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "require.h"

enum { SLOTS = 4, FULL = 2 * SLOTS + 1 };

static struct gr_peer producer, reader;
static bool joining;

static void publish(void) {
    uint64_t value;
    REQUIRE(gr_claim(&producer) == GR_OK);
    pay(&producer, &value);
    REQUIRE(gr_publish(&producer, producer.last.index, producer.last.seq, value, 0, NULL) == GR_OK);
}

void gr_fault(const char *point) {
    if (joining && strcmp(point, "join: masked") == 0) joining = false, publish();
}

int main(void) {
    const struct gr_config config = {.slots = SLOTS, .max_peers = 2, .max_subscriptions = 1,
                                     .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .slot_nbytes = 64, .spec_nbytes = 2};
    const char name[GR_NAME_WORDS * 8] = "x";
    uint8_t zeros[64] = {0};
    alarm(60);
    struct gr_ring *ring = gr_create(memfd_create("first", MFD_CLOEXEC), &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring != NULL && gr_join_producer(ring, &producer) == GR_OK);
    for (int k = 0; k < FULL; k++) publish();
    joining = true;
    REQUIRE(gr_join_consumer(ring, name, GR_LOSSLESS, GR_REDELIVER, GR_START_OLDEST, 0, &reader) == GR_OK);
    REQUIRE(!joining);

    const uint64_t overwritten = gr_frontier(ring) - SLOTS; /* by the next claim */
    REQUIRE(reader.cursor.pos == overwritten + 1, "it begins at %" PRIu64 ", and %" PRIu64 " may go",
            reader.cursor.pos, overwritten);
    puts("it begins behind the frame that may go");
    return 0;
}

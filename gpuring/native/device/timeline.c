/* Device order by 64-bit words: streams store and wait for words in the header's own fence table.
 *
 * The table is registered with CUDA. So the CPU can load the words that streams store and wait for. A
 * stream that waits for a dead peer goes on when a reaper stores that peer's fence.
 */
#include "timeline.h"

#include <string.h>

#include "stream.h"

static uint64_t address_of(const struct gd_device *device, uint32_t owner, uint32_t index) {
    return device->base + 8 * ((uint64_t)index * device->ring->max_peers + owner);
}

static void add(const struct gd_device *device, struct gd_mem_op *op, uint32_t operation,
                uint32_t owner, uint32_t index, uint64_t value) {
    memset(op, 0, sizeof *op);
    op->operation = operation;
    op->address = address_of(device, owner, index);
    op->value = value;
}

static int record(struct gd_peer *peer, gd_stream stream, const struct gd_promise *promise) {
    uint64_t word = address_of(peer->device, peer->core.self.number, promise->index);
    return peer->device->driver->stream_write_value((void *)stream, word, promise->value, 0);
}

static int record_many(struct gd_peer *peer, gd_stream stream, const struct gd_promise *promises,
                       uint32_t n) {
    struct gd_mem_op op[GD_MAX_OPS];
    for (uint32_t k = 0; k < n; k++)
        add(peer->device, &op[k], CU_WRITE_64, peer->core.self.number, promises[k].index,
            promises[k].value);
    return peer->device->driver->stream_batch((void *)stream, n, op, 0);
}

static int paid(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value,
                struct gd_trouble *trouble) {
    (void)trouble;
    return gd_is_reached(peer, owner, index, value) ? CU_OK : CU_NOT_READY;
}

static bool hint(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value) {
    return gd_is_reached(peer, owner, index, value);
}

static int wait(struct gd_peer *peer, struct gd_call *call, uint32_t owner, uint32_t index,
                uint64_t value) {
    int status = CU_OK;
    if (call->ops == GD_MAX_OPS && gd_submit(peer, call) != GR_OK) status = call->trouble.status;
    if (status == CU_OK) add(peer->device, &call->op[call->ops++], CU_WAIT_64, owner, index, value);
    return status;
}

const struct gd_sync gd_timeline = {
    .record = record, .record_many = record_many, .paid = paid, .hint = hint, .wait = wait};

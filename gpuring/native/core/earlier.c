/* What earlier rings of the same name still owe to a durable subscription.
 *
 * Each ring is a file of its own, so no store changes both. This ring adds the number of losses, and
 * notes in the same store that it has. After that the earlier ring forgets them. host/debts.c finds
 * the earlier rings, and does both.
 */
#define _GNU_SOURCE
#include "earlier.h"

#include "lock.h"
#include "subscriptions.h"

/* `earlier` comes before the store that makes it count. */
enum gr_result gr_settle(struct gr_ring *ring, uint32_t u, uint64_t earlier, uint64_t n) {
    enum gr_result result = gr_lock(ring, GR_PATIENCE_NS);
    if (result != GR_OK) return result;
    if (gr_load_sc(&ring->head->closed)) result = GR_CLOSED;
    else if (!gr_load_relaxed(&ring->sub[u].earlier)) result = GR_BLOCKED; /* it is another one */
    else if (gr_load_relaxed(&ring->sub[u].owed) & GR_SETTLED) result = GR_BLOCKED;
    else {
        gr_store_release(&ring->sub[u].earlier, earlier);
        GR_FAULT("settle: named");
        atomic_fetch_add_explicit(&ring->sub[u].owed, n | GR_SETTLED, memory_order_release);
        GR_FAULT("settle: added");
    }
    gr_unlock(ring);
    return result;
}

uint64_t gr_being_settled(struct gr_ring *ring, uint32_t u) {
    const bool settled = gr_load_acquire(&ring->sub[u].owed) & GR_SETTLED;
    return settled ? gr_load_acquire(&ring->sub[u].earlier) : 0;
}

enum gr_result gr_settled(struct gr_ring *ring, uint32_t u) {
    enum gr_result result = gr_lock(ring, GR_PATIENCE_NS);
    if (result != GR_OK) return result;
    atomic_fetch_and_explicit(&ring->sub[u].owed, ~GR_SETTLED, memory_order_release);
    GR_FAULT("settle: done");
    gr_store_release(&ring->sub[u].earlier, 1);
    gr_unlock(ring);
    return GR_OK;
}

enum gr_result gr_all_settled(struct gr_ring *ring, uint32_t u) {
    enum gr_result result = gr_lock(ring, GR_PATIENCE_NS);
    if (result != GR_OK) return result;
    gr_store_release(&ring->sub[u].earlier, 0);
    gr_unlock(ring);
    return GR_OK;
}

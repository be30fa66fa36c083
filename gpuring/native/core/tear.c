/* Torn marks: a producer that dies with GPU work pending leaves frames that were never written. A
 * reaper marks them, and readers ask for the marks.
 */
#include "tear.h"

/* Under LOCK. Partner: gr_torn, which says what the order of these three stores is for. The bit
 * says that the mark is being written (T4); release carries each store to whoever reads a later
 * one. */
void gr_mark_torn(struct gr_tear *mark, uint64_t id, uint64_t reached) {
    gr_store_release(&mark->id, id | GR_MARKING);
    GR_FAULT("reap: torn marking");
    /* Whoever reads this value and then the id again sees that the mark has changed its owner
     * (T5). */
    gr_store_release(&mark->reached, reached);
    GR_FAULT("reap: torn reached");
    gr_store_release(&mark->id, id);
    GR_FAULT("reap: torn marked");
}

/* Whether the GPU work that `value` of a frame's record stands for was never done, because the
 * peer with that number and id died first. 0 stands for none: a CPU has written the frame before it
 * was published. Call it only after fence[index][producer] >= value was
 * seen with acquire. Then either the GPU reached the value, or a reaper raised the fence. The
 * reaper's mark was written before that, so it is visible here.
 *
 * There is one mark for each slot and number. It is that of the last owner of the number who died
 * with work pending on the slot. Compare its id with the producer's:
 *
 *   equal    All values up to `reached` were reached, later ones never. While the mark is being
 *            written the fence has not been raised, so what the caller saw was reached.
 *   larger   Another peer has had the number since, and died with work pending here. If there was
 *            a mark for our producer, it is gone. The frame is called torn, because no torn frame
 *            may be called whole. (So whole frames of a number that two peers had in turn are
 *            called torn, if nobody asked before the second one's death.)
 *   smaller  Our producer has not died, or had nothing pending here.
 *
 * `reached` belongs to `id` only if the id is unchanged after it was loaded. Otherwise the mark of
 * a later owner is being written. Partner of all these loads: gr_mark_torn. */
bool gr_torn(const struct gr_ring *ring, uint32_t index, uint32_t producer, uint64_t producer_id,
             uint64_t value) {
    if (value == 0) return false;
    struct gr_tear *mark = tear_of(ring, index, producer);
    uint64_t word = gr_load_acquire(&mark->id), id = word & ~GR_MARKING;
    if (id != producer_id) return id > producer_id;
    if (word != id) return false;
    return value > gr_load_acquire(&mark->reached) ||
           (gr_load_acquire(&mark->id) & ~GR_MARKING) != id;
}

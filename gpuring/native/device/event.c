/* Device order by interprocess CUDA events, one for each peer and slot.
 *
 * Only its owner records an event. Other processes open it, from the handle in the header, when
 * they first meet that peer. To wait for an event means to wait for its latest record at the time
 * of the call. The core asks for a value only after its record was enqueued, so what is waited for
 * is that record or a later one. A process that sees an event complete raises the fence word on
 * the owner's behalf. It raises it exactly to the value that was asked for, since a higher value
 * may be promised and not recorded yet.
 *
 * If the owner is killed with its record pending, its event never completes. With gate "host" no
 * stream waits for such an event: the host polls it until a reaper raises the dead owner's fence.
 */
#include "event.h"

#include <stdlib.h>
#include <string.h>

#include "../core/handles.h"
#include "own_event.h"
#include "stream.h"

/* The events of one peer, as this process has opened them. A row is replaced when the peer's
 * number has another owner, and destroyed when nobody uses it any more. gd_device.mutex guards it,
 * but not the events themselves. */
struct gd_row {
    uint64_t owner_id;
    /* The table counts as a user. Whoever takes the count to 0 destroys the row: acq_rel, so that
     * all uses come before that. */
    _Atomic uint32_t users;
    /* [slots]. Where it is false, the event was made in this process, and is kept (driver.h). */
    bool *opened;
    void *event[];     /* [slots]; NULL if not met yet */
};

/* ---- rows ------------------------------------------------------------------------------------ */

static void destroy(struct gd_device *device, struct gd_row *row) {
    for (uint32_t i = 0; i < device->ring->slots; i++)
        if (row->opened[i] && !gr_forked(device->ring))
            device->driver->event_destroy(row->event[i]);
    free(row->opened);
    free(row);
}

static void put_row(struct gd_device *device, struct gd_row *row) {
    if (atomic_fetch_sub_explicit(&row->users, 1, memory_order_acq_rel) == 1) destroy(device, row);
}

/* Under the mutex. */
static void retire(struct gd_device *device, uint32_t owner) {
    struct gd_row *row = device->rows[owner];
    device->rows[owner] = NULL;
    if (row) put_row(device, row);
}

/* Under the mutex. */
static struct gd_row *new_row(struct gd_device *device, uint32_t owner, uint64_t owner_id) {
    const uint32_t slots = device->ring->slots;
    struct gd_row *row = calloc(1, sizeof *row + slots * sizeof(void *));
    if (row) row->opened = calloc(slots, sizeof(bool));
    if (!row || !row->opened) {
        free(row);
        return NULL;
    }
    row->owner_id = owner_id;
    row->users = 1;
    retire(device, owner);
    device->rows[owner] = row;
    return row;
}

/* The row of the peer's present owner, or of owner_id if that is not 0. It can be used until
 * put_row. NULL: there is none. A stale id gives a row of an earlier owner; event_of checks for
 * that. */
static struct gd_row *take_row(struct gd_device *device, uint32_t owner, uint64_t owner_id) {
    uint64_t now = gr_load_acquire(&device->ring->peer[owner].id);
    pthread_mutex_lock(&device->mutex);
    struct gd_row *row = device->rows[owner];
    if (owner_id == 0) owner_id = now;
    if (!row || row->owner_id != owner_id)
        row = owner_id == now ? new_row(device, owner, now) : NULL;
    if (row) atomic_fetch_add_explicit(&row->users, 1, memory_order_relaxed);
    pthread_mutex_unlock(&device->mutex);
    return row;
}

/* ---- handles in the header ------------------------------------------------------------------- */
/* Handles are copied word by word, because a late reader may meet the next owner's handle while it
 * is being written. A reader that has loaded one word of that with acquire, and then looks at the
 * peer's id, sees the next owner's id; partner: write_handle, whose stores are release. */

static gr_word *handle_of(const struct gr_ring *ring, uint32_t owner, uint32_t index) {
    return (gr_word *)(ring->event + CU_IPC_HANDLE * ((uint64_t)owner * ring->slots + index));
}

static struct gd_ipc_handle read_handle(const struct gr_ring *ring, uint32_t owner,
                                        uint32_t index) {
    struct gd_ipc_handle handle;
    for (int k = 0; k < CU_IPC_HANDLE / 8; k++) {
        uint64_t word = gr_load_acquire(handle_of(ring, owner, index) + k);
        memcpy(handle.bytes + 8 * k, &word, 8);
    }
    return handle;
}

static void write_handle(const struct gr_ring *ring, uint32_t owner, uint32_t index,
                         const struct gd_ipc_handle *handle) {
    for (int k = 0; k < CU_IPC_HANDLE / 8; k++) {
        uint64_t word;
        memcpy(&word, handle->bytes + 8 * k, 8);
        gr_store_release(handle_of(ring, owner, index) + k, word);
    }
}

/* The event of a peer's slot, opened if this process meets it for the first time. NULL with CU_OK:
 * the fence has reached the value meanwhile. With value 0 the fence does not matter, and NULL
 * means that the event was not met yet and may not be opened.
 *
 * A peer leaves only when its fences are reached, and fences never fall. So if the fence is still
 * behind after the event was opened, its owner was there all the time: the number, the id and the
 * handle that were read were its own, and the handle was complete. With value 0 the id is checked
 * instead; otherwise the next owner's event would stay in the row. */
static void *event_of(struct gd_device *device, struct gd_row *row, uint32_t owner, uint32_t index,
                      uint64_t value, bool may_open, int *status) {
    const gr_word *fence = fence_of(device->ring, index, owner);
    void *popped;
    *status = CU_OK;
    pthread_mutex_lock(&device->mutex);
    void *event = row->event[index];
    if (!event && may_open) {
        struct gd_ipc_handle handle = read_handle(device->ring, owner, index);
        bool opened = !(event = gd_made_here(device->driver, &handle));
        if (opened && (*status = device->driver->ctx_push(device->context)) == CU_OK) {
            *status = device->driver->ipc_open_event_handle(&event, handle);
            device->driver->ctx_pop(&popped);
        }
        bool paid = value && gr_load_acquire((gr_word *)fence) >= value;
        bool anothers = !value && gr_load_acquire(&device->ring->peer[owner].id) != row->owner_id;
        bool unusable = paid || anothers;
        if (unusable && opened && *status == CU_OK) device->driver->event_destroy(event);
        if (unusable) *status = CU_OK;
        if (unusable || *status != CU_OK) event = NULL;
        row->event[index] = event;
        row->opened[index] = opened && event;
    }
    pthread_mutex_unlock(&device->mutex);
    return event;
}

/* ---- own events ------------------------------------------------------------------------------ */

/* Called before the peer's first verb: takes its events, and writes their handles into the header. */
enum gr_result gd_take_events(struct gd_peer *peer, struct gd_trouble *trouble) {
    struct gd_device *device = peer->device;
    const uint32_t slots = device->ring->slots, number = peer->core.self.number;
    int status = CU_OUT_OF_MEMORY;
    uint32_t k = 0;
    peer->own = calloc(slots, sizeof *peer->own);
    while (peer->own && k < slots &&
           (status = gd_take_own_event(device, &peer->own[k])) == CU_OK)
        k++;
    if (status == CU_OK) {
        pthread_mutex_lock(&device->mutex);
        struct gd_row *row = new_row(device, number, peer->core.self.id);
        if (!row) status = CU_OUT_OF_MEMORY;
        for (uint32_t i = 0; row && i < slots; i++) {
            row->event[i] = peer->own[i]->event;
            write_handle(device->ring, number, i, &peer->own[i]->handle);
        }
        pthread_mutex_unlock(&device->mutex);
    }
    if (status == CU_OK) return GR_OK;
    *trouble = (struct gd_trouble){
        .where = GD_MAKE_EVENTS, .status = status, .peer = number, .value = k};
    gd_give_events(peer);
    return GR_DEVICE;
}

void gd_give_events(struct gd_peer *peer) {
    if (!peer->own) return;
    pthread_mutex_lock(&peer->device->driver->mutex);
    for (uint32_t i = 0; i < peer->device->ring->slots && peer->own[i]; i++)
        peer->own[i]->idle = true;
    pthread_mutex_unlock(&peer->device->driver->mutex);
    free(peer->own);
    peer->own = NULL;
}

void gd_drop_rows(struct gd_device *device) {
    pthread_mutex_lock(&device->mutex);
    for (uint32_t p = 0; p < GR_MAX_PEERS; p++) retire(device, p);
    pthread_mutex_unlock(&device->mutex);
}

/* ---- the synchroniser ------------------------------------------------------------------------ */

static int record(struct gd_peer *peer, gd_stream stream, const struct gd_promise *promise) {
    return peer->device->driver->event_record(peer->own[promise->index]->event, (void *)stream);
}

static int paid(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value,
                struct gd_trouble *trouble) {
    struct gd_device *device = peer->device;
    gr_word *fence = fence_of(device->ring, index, owner);
    int status = CU_OK;
    if (gr_load_acquire(fence) >= value) return CU_OK;
    struct gd_row *row = take_row(device, owner, 0);
    if (!row) {
        *trouble = (struct gd_trouble){.where = GD_NO_MEMORY};
        return CU_OUT_OF_MEMORY;
    }
    void *event = event_of(device, row, owner, index, value, true, &status);
    if (status != CU_OK)
        *trouble = (struct gd_trouble){GD_OPEN_EVENT, status, 0, owner, index, value};
    else if (event) {
        status = device->driver->event_query(event);
        if (status == CU_OK) gr_raise_to(fence, value);
        else if (status != CU_NOT_READY)
            *trouble = (struct gd_trouble){GD_WORK_FAILED, status, 0, owner, index, value};
    }
    put_row(device, row);
    return status;
}

/* Like `paid`, for a caller that may not wait. It asks an event that was met already, unless
 * another thread has the mutex, because it is opening one. */
static bool seen(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value) {
    struct gd_device *device = peer->device;
    struct gd_row *row = NULL;
    void *event = NULL;
    if (owner == peer->core.self.number) event = peer->own[index]->event;
    else if (pthread_mutex_trylock(&device->mutex) == 0) {
        row = device->rows[owner];
        if (row && row->owner_id == gr_load_acquire(&device->ring->peer[owner].id)) {
            event = row->event[index];
            atomic_fetch_add_explicit(&row->users, 1, memory_order_relaxed);
        } else row = NULL;
        pthread_mutex_unlock(&device->mutex);
    }
    bool done = event && device->driver->event_query(event) == CU_OK;
    if (done) gr_raise_to(fence_of(device->ring, index, owner), value);
    if (row) put_row(device, row);
    return done;
}

/* A peer that has promised has not left, so an event that is opened here is its own; see
 * event_of. */
static bool hint(struct gd_peer *peer, uint32_t owner, uint32_t index, uint64_t value) {
    struct gd_device *device = peer->device;
    int status;
    if (gr_load_acquire(fence_of(device->ring, index, owner)) >= value) return true;
    if (owner == peer->core.self.number)
        return device->driver->event_query(peer->own[index]->event) != CU_NOT_READY;
    struct gd_row *row = take_row(device, owner, 0);
    if (!row) return true;
    void *event = event_of(device, row, owner, index, value, true, &status);
    bool done = !event || device->driver->event_query(event) != CU_NOT_READY;
    put_row(device, row);
    return done;
}

static int wait(struct gd_peer *peer, struct gd_call *call, uint32_t owner, uint32_t index,
                uint64_t value) {
    struct gd_device *device = peer->device;
    int status = gd_captured(device, call->stream);
    if (status != CU_OK) return status;
    struct gd_row *row = take_row(device, owner, 0);
    if (!row) return CU_OUT_OF_MEMORY;
    void *event = event_of(device, row, owner, index, value, true, &status);
    if (event) status = device->driver->stream_wait_event((void *)call->stream, event, 0);
    put_row(device, row);
    return status;
}

const struct gd_sync gd_events = {
    .record = record, .paid = paid, .seen = seen, .hint = hint, .wait = wait};

/* Whether the last record of one owner of a peer number on a slot is complete, as its event says.
 * For an owner that has died, whose fence was raised by a reaper. False also if this process cannot
 * find out any more. */
bool gd_event_done(struct gd_device *device, uint32_t owner, uint64_t owner_id, uint32_t index) {
    struct gd_row *row = take_row(device, owner, owner_id);
    int status;
    if (!row) return false;
    /* As soon as the id is the next owner's, so is the handle in the header. An event that was
     * opened before may still be asked. */
    bool may_open = gr_load_acquire(&device->ring->peer[owner].id) == owner_id;
    void *event = event_of(device, row, owner, index, 0, may_open, &status);
    bool done = event && device->driver->event_query(event) == CU_OK;
    put_row(device, row);
    return done;
}

#include "reader.h"

/* The sequence at which the consumer begins. Of a named subscription it is not known, because
 * others may have been in it before. */
static gint64 begin(const gpuring_consumer_options *options, const gpuring_info *info) {
    if (options->start != GPURING_START_NEXT) return options->start;
    return options->subscription ? GPURING_START_OLDEST : (gint64)info->next_seq;
}

Reader *reader_new(gpuring_ring *ring, const gpuring_consumer_options *options,
                   gpuring_error *error) {
    gpuring_info info = GPURING_INFO;
    gpuring_consumer *consumer = NULL;
    gpuring_get_info(ring, &info); /* before the join, so that no frame in between is missed */
    gpuring_status status = gpuring_join_consumer(ring, options, &consumer, error);
    int fd = -1;
    if (status == GPURING_OK) status = gpuring_consumer_fd(consumer, &fd, error);
    if (status != GPURING_OK) {
        gpuring_close_consumer(consumer, NULL);
        gpuring_detach(ring, NULL);
        return NULL;
    }
    Reader *reader = g_atomic_rc_box_new0(Reader);
    reader->ring = ring;
    reader->slots = info.slots;
    reader->next = begin(options, &info);
    reader->fd = fd;
    reader->consumer = consumer;
    metadata_of(&reader->metadata, ring);
    g_queue_init(&reader->loans);
    g_mutex_init(&reader->turn);
    return reader;
}

static void clear(gpointer data) { g_mutex_clear(&((Reader *)data)->turn); }

static void unref(Reader *reader) { g_atomic_rc_box_release_full(reader, clear); }

/* Under the mutex. */
static void leave_if_done(Reader *reader) {
    if (!reader->is_done || !g_queue_is_empty(&reader->loans)) return;
    gpuring_close_consumer(reader->consumer, NULL);
    gpuring_detach(reader->ring, NULL);
}

void reader_leave(Reader *reader) {
    g_mutex_lock(&reader->turn);
    reader->is_done = TRUE;
    leave_if_done(reader);
    g_mutex_unlock(&reader->turn);
    unref(reader);
}

gpuring_status reader_acquire(Reader *reader, gpuring_slot *slot, gpuring_error *error) {
    g_mutex_lock(&reader->turn);
    const gpuring_status status = gpuring_acquire(reader->consumer, 0, slot, error);
    if (status == GPURING_OK) reader->next = (gint64)slot->seq + 1;
    g_mutex_unlock(&reader->turn);
    return status;
}

gpuring_status reader_release(Reader *reader, gpuring_slot *slot, gpuring_error *error) {
    g_mutex_lock(&reader->turn);
    const gpuring_status status = gpuring_release(reader->consumer, slot, error);
    g_mutex_unlock(&reader->turn);
    return status;
}

gint64 reader_next(Reader *reader) {
    g_mutex_lock(&reader->turn);
    const gint64 next = reader->next;
    g_mutex_unlock(&reader->turn);
    return next;
}

gboolean reader_may_lend(Reader *reader) {
    g_mutex_lock(&reader->turn);
    const gboolean is_soon =
        reader->returned >= reader->slots && reader->delay < reader->slots / 2;
    g_mutex_unlock(&reader->turn);
    return is_soon;
}

/* ---- buffers --------------------------------------------------------------------------------- */

typedef struct Loan {
    Reader *reader;
    guint64 seq;
    gpuring_slot slot; /* if there are no bytes */
    gpointer bytes;
} Loan;

gboolean reader_is_owed(Reader *reader) {
    g_mutex_lock(&reader->turn);
    const Loan *oldest = g_queue_peek_head(&reader->loans);
    const gboolean is_old =
        oldest && (guint64)reader->next - 1 - oldest->seq >= reader->slots / 2;
    g_mutex_unlock(&reader->turn);
    return is_old;
}

static void come_back(gpointer data) {
    Loan *loan = data;
    Reader *reader = loan->reader;
    g_mutex_lock(&reader->turn);
    reader->returned++;
    reader->delay = MAX(reader->delay, (guint64)reader->next - 1 - loan->seq);
    if (!loan->bytes) {
        gpuring_release(reader->consumer, &loan->slot, NULL);
        g_queue_remove(&reader->loans, loan);
        leave_if_done(reader);
    }
    g_mutex_unlock(&reader->turn);
    g_free(loan->bytes);
    g_free(loan);
    unref(reader);
}

static Loan *loan_of(Reader *reader, guint64 seq) {
    Loan *loan = g_new0(Loan, 1);
    loan->reader = g_atomic_rc_box_acquire(reader);
    loan->seq = seq;
    return loan;
}

GstMemory *reader_lend(Reader *reader, const gpuring_slot *slot, gsize nbytes) {
    Loan *loan = loan_of(reader, slot->seq);
    loan->slot = *slot;
    g_mutex_lock(&reader->turn);
    g_queue_push_tail(&reader->loans, loan);
    g_mutex_unlock(&reader->turn);
    return gst_memory_new_wrapped(GST_MEMORY_FLAG_READONLY, slot->data, nbytes, 0, nbytes, loan,
                                  come_back);
}

GstMemory *reader_give(Reader *reader, guint64 seq, gpointer bytes, gsize nbytes) {
    Loan *loan = loan_of(reader, seq);
    loan->bytes = bytes;
    return gst_memory_new_wrapped(0, bytes, nbytes, 0, nbytes, loan, come_back);
}

/* A consumer, and the buffers over its slots.
 *
 * Any thread may free a buffer, but only one thread at a time may use a consumer. So each call for
 * the consumer is made under a mutex, and does not wait. To wait for a frame, poll its descriptor.
 *
 * While a buffer keeps a slot, producers cannot use that slot for another frame. An encoder that
 * looks ahead keeps many frames until it has even more, and would wait for ever. So at first every
 * frame is copied. When as many buffers were freed as the ring has slots, and each in time, later
 * buffers point into the slots. If one of them was freed too late, frames are always copied
 * (docs/decisions/0033-elements-of-gstreamer.md).
 */
#pragma once

#include "layout.h"
#include "metadata.h"
#include "words.h"

typedef struct Reader {
    gpuring_ring *ring;
    Metadata metadata;
    guint slots;
    int fd; /* readable when reader_acquire may have an answer */
    /*< private >*/
    GMutex turn; /* of all below */
    gpuring_consumer *consumer;
    gint64 next;      /* the sequence behind the last frame, or where it begins */
    guint64 returned; /* how many buffers came back */
    guint64 delay;    /* how many more were acquired before one came back, at most */
    GQueue loans;     /* of slots, whose buffers are out, the oldest first */
    gboolean is_done; /* the ring is left when none is */
} Reader;

/* The reader owns the ring from now on, and detaches it even if this fails. */
Reader *reader_new(gpuring_ring *ring, const gpuring_consumer_options *options,
                   gpuring_error *error);
/* Leaves the ring as soon as all buffers that point into its slots are freed. Copies do not
 * matter. */
void reader_leave(Reader *reader);

/* Does not wait. */
gpuring_status reader_acquire(Reader *reader, gpuring_slot *slot, gpuring_error *error);
/* GPURING_FRAME_TORN: the producer has died before its GPU had written the frame. */
gpuring_status reader_release(Reader *reader, gpuring_slot *slot, gpuring_error *error);
/* The sequence behind the last frame, or where this reader began if it has had no frame yet. A
 * reader that takes its place begins there. */
gint64 reader_next(Reader *reader);
/* Whether buffers may point into slots, because they were always freed in time so far. */
gboolean reader_may_lend(Reader *reader);
/* Whether a buffer is out that points into a slot of half a ring ago. */
gboolean reader_is_owed(Reader *reader);
/* Memory of a buffer that points into the slot. When it is freed, the slot is released. */
GstMemory *reader_lend(Reader *reader, const gpuring_slot *slot, gsize nbytes);
/* Memory of a buffer that owns these bytes, and frees them. */
GstMemory *reader_give(Reader *reader, guint64 seq, gpointer bytes, gsize nbytes);

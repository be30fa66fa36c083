/* A consumer, and the buffers over its slots.
 *
 * A buffer is freed by any thread, and one thread at a time uses a consumer. So each call of it is
 * made under a mutex, and waits for nothing. Who waits for a frame does so at a descriptor.
 *
 * A slot that a buffer keeps holds up the producers when they have come around. An encoder that looks
 * ahead frees no frame before it has many more, and so would never get them. Therefore frames are
 * copied until as many as the ring has slots came back, and for ever if one of them came back late
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
    guint lent;       /* how many buffers over slots are out */
    gboolean is_done; /* the ring is left when none is */
} Reader;

/* Takes the ring over, also if it fails. */
Reader *reader_new(gpuring_ring *ring, const gpuring_consumer_options *options,
                   gpuring_error *error);
/* Leaves the ring, when the buffers over its slots are freed. Copied buffers keep nothing of it. */
void reader_leave(Reader *reader);

/* Does not wait. */
gpuring_status reader_acquire(Reader *reader, gpuring_slot *slot, gpuring_error *error);
/* FRAME_TORN: of a GPU, whose producer has died before it had written the frame. */
gpuring_status reader_release(Reader *reader, gpuring_slot *slot, gpuring_error *error);
/* The sequence behind the last frame, where a reader that takes its place begins. Of one that had
 * none yet it is where it began itself. */
gint64 reader_next(Reader *reader);
/* Whether buffers come back before the producers need their slots. */
gboolean reader_may_lend(Reader *reader);
/* A buffer over the slot, which is released with it. */
GstMemory *reader_lend(Reader *reader, const gpuring_slot *slot, gsize nbytes);
/* Of bytes that belong to it, and are freed with it. */
GstMemory *reader_give(Reader *reader, guint64 seq, gpointer bytes, gsize nbytes);

/* The frames of the ring of a name. With `follows` they go on in the next ring of that name. */
#pragma once

#include "content.h"

typedef struct Stream {
    GstElement *element; /* which tells of what happens */
    gchar *name, *subscription;
    gdouble timeout_s;
    gboolean is_lossless, follows;
    const Content *content; /* a ring that does not suit it is an error */
    gint device;  /* see attach_ring */
    gint64 owner; /* see attach_ring */
    Gpu gpu;
    GstPoll *cancel; /* ends waits, when it is set to flush */
    /* Of the streaming thread. */
    Reader *reader;
    gboolean is_new; /* the reader has another ring than before; whoever has seen that clears it */
    guint64 missed;  /* what was overwritten until it joined again; the next frame tells of it */
    GstPollFD watched; /* of the reader; -1 while it is not watched */
} Stream;

void stream_init(Stream *stream, GstElement *element, const Content *content);
void stream_clear(Stream *stream);
/* Waits for the ring, if it has none yet, and then for the next frame. */
gpuring_status stream_acquire(Stream *stream, gpuring_slot *slot, gpuring_error *error);
/* Leaves the ring as soon as all buffers that point into its slots are freed. */
void stream_leave(Stream *stream);

/* Everything was read. */
gboolean stream_is_end(gpuring_status status);

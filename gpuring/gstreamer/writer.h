/* A producer, and the ring that it writes: made here, or waited for. */
#pragma once

#include "layout.h"
#include "metadata.h"
#include "words.h"

/* Host memory, or GPURING_MEMORY_AUTO for frames of a GPU. */
enum { ANY_MEMORY = -1 };

typedef struct Writer {
    GstElement *element; /* a GstBaseSink */
    /* Properties. */
    gchar *name;
    guint slots, readers;
    gboolean creates, drops;
    gdouble timeout_s;
    gint memory; /* of a new ring: a gpuring_memory, or ANY_MEMORY */
    Gpu gpu;
    GstPoll *cancel; /* ends waits, when it is set to flush */
    gint is_paused;  /* from the beginning of a pause until the next play */
    /* Of the streaming thread. */
    GstPollFD watched; /* of the producer */
    GstBuffer *copied; /* a frame of a GPU, whose copy may not be done */
    gpuring_ring *ring;
    gpuring_producer *producer;
    Metadata metadata;
    gboolean was_awaited; /* its readers are there */
    gchar *text;          /* of the caps */
    gboolean is_placed;   /* the slots were found to hold frames of these caps */
    Layout layout;
} Writer;

void writer_init(Writer *writer, GstElement *element);
void writer_clear(Writer *writer);
/* Has a ring that holds frames of `layout` and `text`, with its readers, and joins it. */
gpuring_status writer_prepare(Writer *writer, gpuring_error *error);
/* Before a frame of a GPU is copied: the copy of the one before is done, so that it can be freed. */
gpuring_status writer_await_copy(Writer *writer, gpuring_error *error);
/* Behind it. FULL: the frame is dropped. */
gpuring_status writer_claim(Writer *writer, gpuring_slot *slot, gpuring_error *error);
/* Readers get the end of the stream. */
void writer_leave(Writer *writer);
/* And the ring is given up. */
void writer_give_up(Writer *writer);

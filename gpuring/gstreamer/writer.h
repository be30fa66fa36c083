/* A producer, and its ring, which it creates or waits for. */
#pragma once

#include "layout.h"
#include "metadata.h"
#include "words.h"

/* The property `memory`: frames may be in host memory or on a GPU. The ring then has host memory,
 * or what GPURING_MEMORY_AUTO takes. */
enum { ANY_MEMORY = -1 };

typedef struct Writer {
    GstElement *element; /* a GstBaseSink */
    /* Properties. */
    gchar *name;
    guint slots, readers;
    gboolean creates, drops;
    gboolean follows; /* goes on in the next ring, if another process has made the one that was closed */
    gdouble timeout_s;
    gint64 owner; /* see attach_ring */
    gint memory; /* of a new ring: a gpuring_memory, or ANY_MEMORY */
    Gpu gpu;
    GstPoll *cancel; /* ends waits, when it is set to flush */
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
/* Finds or makes a ring for frames of `layout` and `text`, waits for its readers, and joins it. */
gpuring_status writer_prepare(Writer *writer, gpuring_error *error);
/* Waits until the copy of the last frame on the GPU is done, and frees that frame. Call it before
 * the next one is copied. */
gpuring_status writer_await_copy(Writer *writer, gpuring_error *error);
/* Claims a slot. GPURING_FULL: the frame is dropped. */
gpuring_status writer_claim(Writer *writer, gpuring_slot *slot, gpuring_error *error);
/* Closes the producer, so that readers get the end of the stream. */
void writer_leave(Writer *writer);
/* Does the same, and detaches from the ring. */
void writer_give_up(Writer *writer);

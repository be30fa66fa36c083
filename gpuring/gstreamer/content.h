/* What the slots of a ring hold: caps that frames name, or that were given and guessed. */
#pragma once

#include "reader.h"

typedef struct Content {
    /* Properties. */
    GstCaps *given;
    gchar *field; /* of the slots; NULL: all */
    gint timebase[2];
    /* Of the streaming thread. */
    gchar *text; /* of the caps, as frames have it; NULL in a ring of which no frame was seen */
    guint dimensions; /* and the shape of the frame from which caps were guessed */
    guint64 shape[GPURING_MAX_DIMENSIONS];
    GstCaps *caps;
    Layout layout;
} Content;

/* Whether a frame has the caps of the one before. */
gboolean content_is_same(const Content *content, const Reader *reader, const gpuring_slot *slot);
/* Takes the caps of this frame. is_new: they are others than before. */
gboolean content_take(Content *content, const Reader *reader, const gchar *name,
                      const gpuring_slot *slot, gboolean *is_new, gpuring_error *error);
/* How long a frame is. 0: it is not known. */
GstClockTime content_frame_ns(const Content *content);
GstClockTime content_pts(const Content *content, const Reader *reader, const gpuring_slot *slot);

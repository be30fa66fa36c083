/* What the slots of a ring hold, as caps. Frames name them in their metadata. If they do not, caps
 * are guessed from the shape and the dtype, and from those that the user gave. */
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

/* Whether the ring can have the frames that the properties ask for, as far as that is known before its
 * first frame. FALSE: `error` says why not. */
gboolean content_suits(const Content *content, const gpuring_ring *ring, const gchar *name,
                       gpuring_error *error);
/* Whether a frame has the same caps as the one before. */
gboolean content_is_same(const Content *content, const Reader *reader, const gpuring_slot *slot);
/* Takes the caps of this frame. is_new: whether they differ from those before. */
gboolean content_take(Content *content, const Reader *reader, const gchar *name,
                      const gpuring_slot *slot, gboolean *is_new, gpuring_error *error);
/* Says that elements downstream do not accept the caps, and what converts the frames. */
void content_not_taken(const Content *content, const gchar *name, gpuring_error *error);
/* The duration of a frame. 0: it is not known. */
GstClockTime content_frame_ns(const Content *content);
GstClockTime content_pts(const Content *content, const Reader *reader, const gpuring_slot *slot);

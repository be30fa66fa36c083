/* A frame's time and caps, in its metadata "pts", "duration" and "caps". */
#pragma once

#include <gpuring.h>
#include <gst/gst.h>

enum { CAPS_NBYTES = 512 }; /* of a ring that gpuringsink makes */

typedef struct Metadata {
    gpuring_field pts, duration, caps; /* nbytes is 0 if the ring has none */
} Metadata;

void metadata_of(Metadata *metadata, const gpuring_ring *ring);
GstClockTime metadata_time(const gpuring_field *field, const gpuring_slot *slot);
void metadata_set_time(const gpuring_field *field, gpuring_slot *slot, GstClockTime time);
/* Writes the text of the caps, with a zero behind it. It may be empty. */
void metadata_set_caps(const Metadata *metadata, gpuring_slot *slot, const char *text);
gchar *metadata_caps(const Metadata *metadata, const gpuring_slot *slot);
/* Whether the caps of the frame have this text. */
gboolean metadata_has_caps(const Metadata *metadata, const gpuring_slot *slot, const char *text);

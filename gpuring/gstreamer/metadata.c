#include "metadata.h"

#include <string.h>

static void find(const gpuring_ring *ring, const char *name, const char *dtype,
                 gpuring_field *field) {
    const gpuring_field none = GPURING_FIELD;
    *field = none;
    if (gpuring_meta_named(ring, name, field) != GPURING_OK ||
        strncmp(field->dtype, dtype, strlen(dtype)) != 0)
        *field = none;
}

void metadata_of(Metadata *metadata, const gpuring_ring *ring) {
    find(ring, "pts", "<i8", &metadata->pts);
    find(ring, "duration", "<i8", &metadata->duration);
    find(ring, "caps", "|S", &metadata->caps);
}

/* GST_CLOCK_TIME_NONE is -1 there. */
GstClockTime metadata_time(const gpuring_field *field, const gpuring_slot *slot) {
    gint64 value = -1;
    if (field->nbytes == sizeof value)
        memcpy(&value, (const char *)slot->meta + field->offset, sizeof value);
    return value < 0 ? GST_CLOCK_TIME_NONE : (GstClockTime)value;
}

void metadata_set_time(const gpuring_field *field, gpuring_slot *slot, GstClockTime time) {
    const gint64 value = (gint64)time;
    if (field->nbytes == sizeof value)
        memcpy((char *)slot->meta + field->offset, &value, sizeof value);
}

void metadata_set_caps(const Metadata *metadata, gpuring_slot *slot, const char *text) {
    if (metadata->caps.nbytes)
        strncpy((char *)slot->meta + metadata->caps.offset, text, metadata->caps.nbytes);
}

gchar *metadata_caps(const Metadata *metadata, const gpuring_slot *slot) {
    if (!metadata->caps.nbytes) return g_strdup("");
    return g_strndup((const char *)slot->meta + metadata->caps.offset, metadata->caps.nbytes);
}

gboolean metadata_has_caps(const Metadata *metadata, const gpuring_slot *slot, const char *text) {
    if (!metadata->caps.nbytes) return *text == 0;
    return strncmp((const char *)slot->meta + metadata->caps.offset, text,
                   metadata->caps.nbytes) == 0;
}

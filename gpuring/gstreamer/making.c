#include "making.h"

#include <string.h>

#include "metadata.h"

enum { SAMPLES = 1024 }; /* of audio in a slot */

static gpuring_field field_of(const char *name, const char *dtype, guint dimensions,
                              const guint64 *shape) {
    gpuring_field field = GPURING_FIELD;
    field.name = name;
    field.dtype = dtype;
    field.dimensions = dimensions;
    if (dimensions) memcpy(field.shape, shape, dimensions * sizeof *shape);
    return field;
}

gpuring_status make_ring(const char *name, guint slots, const Layout *layout,
                         gpuring_memory memory, gint device, gpuring_replace replace,
                         gpuring_ring **ring, gpuring_error *error) {
    char caps[8];
    g_snprintf(caps, sizeof caps, "|S%d", CAPS_NBYTES);
    const gpuring_field meta[] = {field_of("pts", "<i8", 0, NULL),
                                  field_of("duration", "<i8", 0, NULL),
                                  field_of("caps", caps, 0, NULL)};
    gpuring_field fields[GST_VIDEO_MAX_PLANES];
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    guint p;
    for (p = 0; p < layout->planes; p++) {
        fields[p] = field_of(layout_field_name(layout, p), layout_dtype(layout),
                             layout->dimensions[p], layout->shape[p]);
        if (!layout->is_video) fields[p].shape[0] = SAMPLES;
    }
    options.slots = slots;
    options.memory = memory;
    options.device = device;
    options.replace = replace;
    options.fields = fields;
    options.field_count = layout->planes;
    options.meta = meta;
    options.meta_count = G_N_ELEMENTS(meta);
    return gpuring_create(name, &options, ring, error);
}

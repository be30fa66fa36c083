/* Reads every frame of a ring, and says how bright it is.
 *
 *     cc -std=c99 watch.c -o watch $(python -m gpuring.config --cflags --libs)
 *     ./watch cam0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <gpuring.h>

static int failed(const gpuring_error *error) {
    fprintf(stderr, "%s\n", error->text);
    return 1;
}

int main(int argc, char **argv) {
    gpuring_error error;
    gpuring_ring *ring;
    gpuring_consumer *frames;
    gpuring_slot slot = GPURING_SLOT;
    gpuring_field image = GPURING_FIELD, pts = GPURING_FIELD;

    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    options.timeout_ns = INT64_C(10000000000);
    if (gpuring_attach(argc > 1 ? argv[1] : "cam0", &options, &ring, &error) != GPURING_OK ||
        gpuring_join_consumer(ring, NULL, &frames, &error) != GPURING_OK)
        return failed(&error);
    if (gpuring_field_at(ring, 0, &image) != GPURING_OK || image.itemsize != 1 ||
        gpuring_meta_named(ring, "pts", &pts) != GPURING_OK || pts.nbytes != 8) {
        fprintf(stderr, "this reads images of bytes, with a pts\n");
        return 1;
    }
    while (gpuring_acquire(frames, GPURING_FOREVER, &slot, &error) == GPURING_OK) {
        const unsigned char *pixels = (const unsigned char *)slot.data + image.offset;
        uint64_t sum = 0;
        int64_t when;
        /* A frame may be smaller than its slot, and says its shape then. */
        uint64_t nbytes = slot.dimensions ? 1 : image.nbytes;
        for (uint32_t k = 0; k < slot.dimensions; k++) nbytes *= slot.shape[k];
        for (uint64_t k = 0; k < nbytes; k++) sum += pixels[k];
        memcpy(&when, (const char *)slot.meta + pts.offset, sizeof when);
        printf("%" PRIu64 " %" PRId64 " %.2f\n", slot.seq, when, (double)sum / (double)nbytes);
        if (gpuring_release(frames, &slot, &error) != GPURING_OK) return failed(&error);
    }
    if (error.status != GPURING_END_OF_STREAM) return failed(&error);
    gpuring_close_consumer(frames, NULL);
    gpuring_detach(ring, NULL);
    return 0;
}

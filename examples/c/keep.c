/* Makes a ring of images, and keeps it until its input ends.
 *
 *     cc -std=c99 keep.c -o keep $(python -m gpuring.config --cflags --libs)
 *     ./keep cam0
 */
#include <stdio.h>

#include <gpuring.h>

int main(int argc, char **argv) {
    gpuring_error error;
    gpuring_ring *ring;
    gpuring_field image = GPURING_FIELD, pts = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;

    image.name = "array";
    image.dtype = "|u1";
    image.dimensions = 2;
    image.shape[0] = 480;
    image.shape[1] = 640;
    pts.name = "pts";
    pts.dtype = "<i8";
    options.fields = &image;
    options.field_count = 1;
    options.meta = &pts;
    options.meta_count = 1;
    if (gpuring_create(argc > 1 ? argv[1] : "cam0", &options, &ring, &error) != GPURING_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    while (getchar() != EOF) continue;
    return gpuring_detach(ring, NULL) != GPURING_OK; /* closes the ring for all */
}

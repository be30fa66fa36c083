/* make.h and write.h are of the page. */
#include <cstdio>
#include <gpuring.hpp>
struct Metadata {
    std::int64_t pts;
    float exposure;
    double gain;
};
int main(int, char **argv) {
    const std::int64_t pts = 7;
    gpuring_field image = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    image.name = "array", image.dtype = "u1", image.dimensions = 1, image.shape[0] = 4;
    options.fields = &image, options.field_count = 1;
#include "make.h"
    const auto ring = gpuring::Ring::create(argv[1], options);
    if (ring.info().meta_nbytes != sizeof(Metadata)) return 1;
    gpuring::Producer producer(ring);
    auto slot = producer.claim();
#include "write.h"
    slot->publish();
    std::puts("published");
    std::fflush(stdout);
    std::getchar();
}

/* Runs the batches of the page, whose frames are 7 in their first byte. */
#include <gpuring.hpp>
static std::size_t seen = 0;
static void detect(gpuring::Span<const std::uint8_t> pixels) { seen += pixels.size() > 0; }
static void render(gpuring::Span<std::uint8_t> pixels) { pixels[0] = 7; }
int main(int, char **argv) {
    const gpuring::Ring ring(argv[1]);
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.start = GPURING_START_OLDEST;
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring, options);
#include "batches.h"
    return seen == 2 ? 0 : 1;
}

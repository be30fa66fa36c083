// A camera: a test pattern, 30 frames a second, until Ctrl-C or as many as asked for.
//
//     gpuring keep cam0 --slots 8 --shape 480,640 --dtype u1 --meta pts:i8 --device host
//     c++ -std=c++17 camera.cpp -o camera $(python -m gpuring.config --cflags --libs)
//     ./camera cam0
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <thread>

#include <gpuring.hpp>

int main(int argc, char **argv) try {
    const char *name = argc > 1 ? argv[1] : "cam0";
    const long frames = argc > 2 ? std::atol(argv[2]) : -1;
    gpuring::Ring ring(name, gpuring::seconds(10)); // waits for the ring
    const gpuring_field image = ring.field();
    const std::uint64_t width = image.shape[image.dimensions - 1];

    gpuring_producer_options options = GPURING_PRODUCER_OPTIONS;
    options.label = "camera.cpp";
    gpuring::Producer producer(ring, options);
    for (std::int64_t pts = 0; pts != frames; pts++) {
        auto slot = producer.claim(); // waits while a lossless reader needs the slot
        const auto pixels = slot->array<std::uint8_t>();
        for (std::size_t k = 0; k < pixels.size(); k++)
            pixels[k] = static_cast<std::uint8_t>(k % width + static_cast<std::uint64_t>(pts));
        slot->set_meta("pts", pts);
        slot->publish(); // a slot that goes without this is abandoned
        std::this_thread::sleep_for(std::chrono::milliseconds(33));
    }
} catch (const gpuring::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}

// A camera: a test pattern, 30 frames a second, until Ctrl-C or as many as asked for. It ends in order.
//
//     gpuring keep cam0 --slots 8 --shape 480,640 --dtype u1 --meta pts:i8 --device host
//     c++ -std=c++17 camera.cpp -o camera $(python -m gpuring.config --cflags --libs)
//     ./camera cam0
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <thread>

#include <gpuring.hpp>

static volatile std::sig_atomic_t stops = 0;

static void stop(int) { stops = 1; }

int main(int argc, char **argv) try {
    std::signal(SIGINT, stop);
    std::signal(SIGTERM, stop);
    const char *name = argc > 1 ? argv[1] : "cam0";
    const long frames = argc > 2 ? std::atol(argv[2]) : -1;
    gpuring::Ring ring(name, gpuring::seconds(10)); // waits for the ring
    const gpuring_field image = ring.field();
    const std::uint64_t width = image.shape[image.dimensions - 1];

    gpuring_producer_options options = GPURING_PRODUCER_OPTIONS;
    options.label = "camera.cpp";
    gpuring::Producer producer(ring, options);
    for (std::int64_t pts = 0; pts != frames && !stops;) {
        // This waits while a lossless reader needs the slot. A signal does not end it, so it looks up.
        auto slot = producer.claim(std::chrono::milliseconds(100));
        if (!slot) continue;
        const auto pixels = slot->array<std::uint8_t>();
        for (std::size_t k = 0; k < pixels.size(); k++)
            pixels[k] = static_cast<std::uint8_t>(k % width + static_cast<std::uint64_t>(pts));
        slot->set_meta("pts", pts++);
        slot->publish(); // a slot that goes without this is abandoned
        std::this_thread::sleep_for(std::chrono::milliseconds(33));
    }
    // The producer leaves here, and the ring is detached: readers get the end of the stream.
} catch (const std::exception &error) { // gpuring::Error, or of field(), meta() and array()
    std::cerr << error.what() << '\n';
    return 1;
}

#include <cstdio>
#include <gpuring.hpp>
static bool is_missing(const std::string &name) {
    try {
        gpuring::Ring ring(name);
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_NOT_FOUND;
    }
    return false;
}
int main(int, char **argv) {
    if (!is_missing(argv[1])) return 1;
    std::puts("attaches");
    std::fflush(stdout);
    const gpuring::Ring ring(argv[1], std::nullopt);
    const std::string verb = argv[2];
    if (verb == "claim") {
        gpuring::Producer producer(ring);
        for (auto k = ring.info().slots; k; k--) producer.claim(gpuring::seconds(0))->publish();
        return producer.claim() ? 0 : 2;
    }
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.lossy = verb == "latest";
    if (verb == "spin") options.spin_ns = GPURING_SPIN_FOREVER;
    gpuring::Consumer frames(ring, options);
    const auto frame = verb == "next"     ? frames.next()
                       : verb == "latest" ? frames.latest()
                                          : frames.acquire();
    return frame ? 0 : 3;
}

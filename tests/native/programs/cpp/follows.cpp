#include "made.hpp"
static int follow(const std::string &name) {
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.reattach = true;
    auto ring = std::make_unique<gpuring::Ring>(made(name, 2));
    gpuring::Consumer frames(gpuring::Ring(name), options);
    std::vector<gpuring::Ring> rings;
    std::vector<gpuring::ReadSlot> held; // some over a restart, and some to the end
    for (std::uint32_t slots = 2;; ring = std::make_unique<gpuring::Ring>(made(name, slots))) {
        gpuring::Producer producer(*ring);
        producer.claim()->publish();
        auto frame = frames.acquire(gpuring::seconds(20));
        if (!frame || frame->restarted() != (slots > 2)) return 1;
        rings.push_back(frames.ring());
        held.push_back(std::move(*frame));
        if (slots == 4) held.clear();
        if (slots++ == 6) break;
        ring.reset();
    }
    for (std::uint32_t k = 0; k < rings.size(); k++)
        if (rings[k].info().slots != 2 + k || rings[k].field().nbytes != 4) return 2;
    return rings.size() == 5 ? 0 : 3;
}
int main(int, char **argv) {
    const int status = follow(argv[1]);
    return status ? status : mapped(argv[1]);
}

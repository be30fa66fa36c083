#include <gpuring.hpp>
int main(int, char **argv) {
    const gpuring::Ring ring(argv[1]); // of two slots
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    std::optional<gpuring::WriteSlot> slot = producer.claim();
    const auto first = slot->seq();
    slot = producer.claim(); // the first one is abandoned
    slot->publish();
    std::optional<gpuring::ReadSlot> newest = frames.acquire();
    if (newest->seq() != first + 1) return 1;
    producer.claim()->publish();
    if (producer.claim(gpuring::seconds(0))) return 2;
    newest = frames.acquire(); // the one before is released
    if (newest->seq() != first + 2) return 3;
    if (!producer.claim(gpuring::seconds(0))) return 4;
    newest.reset();
    std::vector<gpuring::ReadSlot> window;
    for (int k = 0; k < 2; k++) {
        producer.claim()->publish();
        window.push_back(std::move(*frames.acquire()));
    }
    window.erase(window.begin());
    return window[0].seq() == first + 5 && producer.claim(gpuring::seconds(0)) ? 0 : 5;
}

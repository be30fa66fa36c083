#include <gpuring.hpp>
int main(int, char **argv) {
    const gpuring::milliseconds late(-1);
    const gpuring::Ring ring(argv[1], late);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    if (frames.acquire(late)) return 1;
    while (auto slot = producer.claim(late)) slot->publish();
    return frames.acquire(late) ? 0 : 2;
}

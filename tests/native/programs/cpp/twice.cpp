#include <gpuring.hpp>
template <class Verb> static bool is_refused(Verb verb) {
    try {
        verb();
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_INVALID;
    }
    return false;
}
int main(int, char **argv) {
    const gpuring::Ring ring(argv[1]);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    auto slot = producer.claim();
    slot->publish();
    if (!is_refused([&] { slot->publish(); })) return 1;
    if (!is_refused([&] { slot->set_shape({1}); })) return 2;
    if (!is_refused([&] { slot->array<unsigned char>(); })) return 3;
    if (!is_refused([&] { slot->set_meta("pts", std::int64_t(7)); })) return 4;
    auto frame = frames.acquire();
    frame->release();
    if (!is_refused([&] { frame->array<unsigned char>(); })) return 5;
    if (!is_refused([&] { frame->meta<std::int64_t>("pts"); })) return 6;
    if (!is_refused([&] { frame->shape(); })) return 7;
    return is_refused([&] { frame->release(); }) ? 0 : 8;
}

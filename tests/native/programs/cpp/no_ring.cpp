#include <gpuring.hpp>
#include <sys/wait.h>
#include <unistd.h>
template <class Verb> static gpuring_status told(Verb verb) {
    try {
        verb();
    } catch (const gpuring::Error &error) {
        return error.status();
    }
    return GPURING_OK;
}
int main(int, char **argv) {
    gpuring::Ring ring(argv[1]);
    gpuring::Producer producer(ring);
    auto slot = producer.claim();
    const pid_t child = fork();
    if (!child) {
        if (told([&] { ring.info(); }) != GPURING_FORKED) _exit(1);
        if (told([&] { ring.meta("none"); }) != GPURING_FORKED) _exit(2);
        _exit(told([&] { slot->array<unsigned char>(); }) == GPURING_FORKED ? 0 : 3);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) return 1;
    const auto moved = std::move(*slot);
    if (told([&] { slot->shape(); }) != GPURING_INVALID) return 2;
    const gpuring::Ring moved_too = std::move(ring);
    if (told([&] { ring.info(); }) != GPURING_INVALID) return 3;
    return told([&] { ring.field("none"); }) == GPURING_INVALID ? 0 : 4;
}

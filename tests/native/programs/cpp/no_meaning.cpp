#include <functional>
#include <gpuring.hpp>

/* Whether names of C++ that would be cut at a zero byte are refused. */
static bool whole_names(const std::string &name) {
    gpuring::Ring ring(name);
    const gpuring_create_options options = GPURING_CREATE_OPTIONS;
    const std::string other = name + std::string("\0other", 6), field("array\0x", 7);
    for (const auto &call : {
             std::function<void()>([&] { gpuring::Ring(other, gpuring::seconds(0)); }),
             std::function<void()>([&] { gpuring::Ring::create(other, options); }),
             std::function<void()>([&] { gpuring::Ring::unlink(other); }),
             std::function<void()>([&] { ring.subscribe(field); }),
             std::function<void()>([&] { ring.unsubscribe(field); }),
             std::function<void()>([&] { ring.field(field); }),
             std::function<void()>([&] { ring.meta(field); }),
         }) {
        try {
            call();
            return false;
        } catch (const gpuring::Error &error) {
            if (error.status() != GPURING_INVALID) return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    gpuring_ring *ring;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    gpuring_attach_options attach = GPURING_ATTACH_OPTIONS;
    gpuring_producer_options writes = GPURING_PRODUCER_OPTIONS;
    gpuring_consumer_options reads = GPURING_CONSUMER_OPTIONS;
    attach.owner = -5;
    if (argc != 2 || gpuring_attach(argv[1], &attach, &ring, nullptr) != GPURING_INVALID) return 1;
    if (gpuring_attach(argv[1], nullptr, &ring, nullptr) != GPURING_OK) return 2;
    writes.gate = reads.gate = (gpuring_gate)7;
    if (gpuring_join_producer(ring, &writes, &producer, nullptr) != GPURING_INVALID) return 3;
    if (gpuring_join_consumer(ring, &reads, &consumer, nullptr) != GPURING_INVALID) return 4;
    if (!whole_names(argv[1])) return 5;
    return gpuring_detach(ring, nullptr);
}

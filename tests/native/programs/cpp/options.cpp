#include <gpuring.hpp>
#include <iostream>
template <class Verb> static void told(Verb verb) {
    try {
        verb();
        std::cout << "accepted\n";
    } catch (const gpuring::Error &error) {
        std::cout << error.what() << '\n';
    }
}
int main(int, char **argv) {
    gpuring::Ring ring(argv[1]);
    told([&] { gpuring::Producer(ring, {}); });
    gpuring_producer_options writes = GPURING_PRODUCER_OPTIONS;
    writes.spin_ns = -2;
    told([&] { gpuring::Producer(ring, writes); });
    gpuring_consumer_options reads = GPURING_CONSUMER_OPTIONS;
    reads.spin_ns = -3;
    told([&] { gpuring::Consumer(ring, reads); });
    reads.spin_ns = 0, reads.subscription = "rec", reads.durable = true, reads.patience_ns = -4;
    told([&] { gpuring::Consumer(ring, reads); });
    gpuring_subscribe_options keeps = GPURING_SUBSCRIBE_OPTIONS;
    keeps.patience_ns = -5;
    told([&] { ring.subscribe("rec", keeps); });
    told([&] { ring.subscribe("\xe9"); });
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options makes = GPURING_CREATE_OPTIONS;
    const auto create = [&] { gpuring::Ring::create(std::string(argv[1]) + ".new", makes); };
    makes.field_count = 1;
    told(create);
    makes.fields = &field;
    told(create);
    field.name = "left";
    told(create);
    field.dtype = "float32";
    told(create);
    field.dtype = "f4", field.dimensions = 9;
    told(create);
    field.dimensions = 0, makes.meta = &field; // meta_count is 0
    told(create);
    makes.subscription_count = 1;
    told(create);
    makes.subscription_count = 0, makes.replace = static_cast<gpuring_replace>(3);
    told(create);
    const gpuring::Ring moved = std::move(ring);
    told([&] { gpuring::Consumer frames(ring); });
    told([&] { ring.subscribe("rec"); });
}

#include <gpuring.hpp>
int main(int, char **argv) {
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    field.name = "array", field.dtype = "<f4", field.dimensions = 1, field.shape[0] = 3;
    options.fields = &field, options.field_count = 1;
    const auto ring = gpuring::Ring::create(argv[1], options);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    if (frames.acquire(gpuring::milliseconds(1))) return 1;
    {
        auto slot = producer.claim();
        if (slot->shape() != std::vector<std::uint64_t>{3}) return 7;
        try {
            slot->set_shape({});
            return 11;
        } catch (const gpuring::Error &error) {
            if (!std::strstr(error.what(), "1 to 8 dimensions, not 0")) return 12;
        }
        slot->set_shape({1, 2});
        if (slot->shape() != std::vector<std::uint64_t>{1, 2}) return 8;
        if (slot->array<float>().size() != 2) return 10;
        slot.reset(); // and abandon
        slot = producer.claim();
        slot->array<float>()[2] = 5;
        slot->publish();
    }
    const auto frame = frames.next();
    if (frame->array<float>()[2] != 5) return 2;
    if (frame->shape() != std::vector<std::uint64_t>{3}) return 9;
    try {
        frames.latest();
        return 3;
    } catch (const gpuring::Error &error) {
        if (error.status() != GPURING_INVALID) return 4;
    }
    try {
        gpuring_attach_options of_another = GPURING_ATTACH_OPTIONS;
        of_another.owner = 12345;
        gpuring::Ring(argv[1], of_another);
        return 5;
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_NOT_PERMITTED ? 0 : 6;
    }
}

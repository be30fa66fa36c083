/* A ring of small frames, and how often this process maps one. */
#include <fstream>
#include <gpuring.hpp>

static inline gpuring::Ring made(const std::string &name, std::uint32_t slots) {
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    field.name = "array", field.dtype = "|u1", field.dimensions = 1, field.shape[0] = 4;
    options.fields = &field, options.field_count = 1, options.slots = slots;
    return gpuring::Ring::create(name, options);
}

static inline int mapped(const std::string &name) {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find(name) != line.npos;
    return n;
}

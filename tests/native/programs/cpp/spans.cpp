#include <gpuring.hpp>
void gray(const gpuring::WriteSlot &to, const gpuring::ReadSlot &from);
void gray(const gpuring::WriteSlot &to, const gpuring::ReadSlot &from) {
    std::span<float> written = to.array<float>();
    std::span read{from.array<float>()};
    written[0] = read[0];
}

#include "made.hpp"
static bool is_refused(gpuring::Producer &producer) {
    try {
        producer.claim_many(0);
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_INVALID;
    }
    return false;
}
int main(int, char **argv) {
    const gpuring::Ring ring = made(argv[1], 4);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    const gpuring::Timeout now = gpuring::seconds(0);
    if (!is_refused(producer)) return 1;
    if (frames.acquire_many(2, now)) return 2;
    producer.claim_many(3); // all are abandoned
    auto written = producer.claim_many(UINT32_MAX);
    if (!written || written->size() != 4 || producer.claim_many(1, now)) return 3;
    for (auto &slot : *written) slot.array<unsigned char>()[0] = static_cast<unsigned char>(slot.seq());
    (*written)[1].publish(); // by itself
    written->publish();
    written->publish(); // none is left

    std::optional<gpuring::ReadSlot> kept;
    {
        auto read = frames.acquire_many(3);
        if (!read || read->size() != 3) return 4;
        for (auto &slot : *read)
            if (slot.array<unsigned char>()[0] != slot.seq() % 256) return 5;
        if ((*read)[1].seq() != (*read)[0].seq() + 1) return 6;
        kept = std::move((*read)[2]);
        (*read)[0].release();
    } // the second one is released, and the third one is kept
    written = producer.claim_many(4, now);
    if (!written || written->size() != 2) return 7;
    written->publish();
    auto read = frames.acquire_many(4);
    if (read->size() != 3 || producer.claim(now)) return 8;
    kept.reset();
    producer.claim()->publish();
    read = frames.acquire_many(4); // those before are released
    if (read->size() != 1) return 9;
    written = producer.claim_many(4, now);
    if (!written || written->size() != 3) return 10;
    read->release();
    written.reset();
    return producer.claim_many(4, now)->size() == 4 ? 0 : 11;
}

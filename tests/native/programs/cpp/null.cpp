#include <gpuring.hpp>
#include <initializer_list>
int main(int, char **argv) {
    gpuring_ring *none;
    gpuring_slot slot = GPURING_SLOT;
    gpuring_info info = GPURING_INFO;
    gpuring_field field = GPURING_FIELD;
    uint32_t got;
    const gpuring::Ring made(argv[1]);
    gpuring::Producer writes(made);
    gpuring::Consumer reads(made);
    gpuring_ring *ring = made.get();
    gpuring_producer *producer = writes.get();
    gpuring_consumer *consumer = reads.get();
    int number = 0;
    for (const gpuring_status status : {
             gpuring_attach(nullptr, nullptr, &none, nullptr),
             gpuring_attach(argv[1], nullptr, nullptr, nullptr),
             gpuring_create(nullptr, nullptr, &none, nullptr),
             gpuring_create("x", nullptr, nullptr, nullptr),
             gpuring_unlink(nullptr, nullptr),
             gpuring_get_info(nullptr, &info),
             gpuring_get_info(ring, nullptr),
             gpuring_field_at(nullptr, 0, &field),
             gpuring_field_at(ring, 0, nullptr),
             gpuring_field_named(nullptr, "array", &field),
             gpuring_field_named(ring, nullptr, &field),
             gpuring_field_named(ring, "array", nullptr),
             gpuring_meta_at(nullptr, 0, &field),
             gpuring_meta_at(ring, 0, nullptr),
             gpuring_meta_named(nullptr, "pts", &field),
             gpuring_meta_named(ring, nullptr, &field),
             gpuring_subscribe(nullptr, "x", nullptr, nullptr),
             gpuring_subscribe(ring, nullptr, nullptr, nullptr),
             gpuring_unsubscribe(ring, nullptr, nullptr, nullptr),
             gpuring_join_producer(ring, nullptr, nullptr, nullptr),
             gpuring_join_consumer(ring, nullptr, nullptr, nullptr),
             gpuring_claim(producer, 0, nullptr, nullptr),
             gpuring_try_claim(producer, nullptr, nullptr),
             gpuring_claim_many(producer, 0, nullptr, 1, &got, nullptr),
             gpuring_claim_many(producer, 0, &slot, 1, nullptr, nullptr),
             gpuring_set_shape(producer, nullptr, 1, field.shape, nullptr),
             gpuring_set_shape(producer, &slot, 1, nullptr, nullptr),
             gpuring_publish(producer, nullptr, nullptr),
             gpuring_publish_many(producer, nullptr, 1, nullptr),
             gpuring_abandon(producer, nullptr, nullptr),
             gpuring_producer_use_on(producer, nullptr, nullptr, nullptr),
             gpuring_producer_fd(producer, nullptr, nullptr),
             gpuring_acquire(consumer, 0, nullptr, nullptr),
             gpuring_acquire_many(consumer, 0, &slot, 1, nullptr, nullptr),
             gpuring_release(consumer, nullptr, nullptr),
             gpuring_release_many(consumer, nullptr, 1, nullptr),
             gpuring_consumer_use_on(consumer, nullptr, nullptr, nullptr),
             gpuring_consumer_fd(consumer, nullptr, nullptr),
             gpuring_select(nullptr, 1, 0, nullptr),
         }) {
        number++;
        if (status != GPURING_INVALID) return number;
    }
    gpuring_producer_stream(nullptr, nullptr);
    gpuring_consumer_stream(nullptr, nullptr);
    if (gpuring_producer_number(nullptr) != UINT32_MAX) return 101;
    if (gpuring_consumer_number(nullptr) != UINT32_MAX) return 102;
    const gpuring::Producer moved = std::move(writes);
    if (writes.ring().get()) return 103;
    const gpuring::Consumer moved_too = std::move(reads);
    if (reads.ring().get()) return 104;
    return 0;
}

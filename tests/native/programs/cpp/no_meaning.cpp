#include <gpuring.h>
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
    return gpuring_detach(ring, nullptr);
}

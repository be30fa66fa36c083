"""NULL where a call of gpuring.h needs a pointer, and options that mean nothing."""

from __future__ import annotations

from tests.helpers.rings import small_ring
from tests.native.api.test_cpp import run_cpp

NOTHING = """
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
"""


def test_what_is_null_is_refused(name, tmp_path):
    with small_ring(name):
        assert run_cpp(NOTHING, name, tmp_path) == 0


NO_MEANING = """
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
"""


def test_an_owner_and_a_gate_that_mean_nothing_are_refused(name, tmp_path):
    with small_ring(name):
        assert run_cpp(NO_MEANING, name, tmp_path) == 0


NO_RING = """
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
        _exit(told([&] { slot->array<double>(); }) == GPURING_FORKED ? 0 : 3);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) return 1;
    const auto moved = std::move(*slot);
    if (told([&] { slot->shape(); }) != GPURING_INVALID) return 2;
    const gpuring::Ring moved_too = std::move(ring);
    if (told([&] { ring.info(); }) != GPURING_INVALID) return 3;
    return told([&] { ring.field("none"); }) == GPURING_INVALID ? 0 : 4;
}
"""


def test_an_object_of_cpp_without_a_ring_says_so(name, tmp_path):
    """One that was moved from, and one that a forked child has of its parent."""
    with small_ring(name):
        assert run_cpp(NO_RING, name, tmp_path) == 0

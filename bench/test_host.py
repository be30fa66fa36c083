"""What one whole transition costs on the host, uncontended.

    pytest bench --benchmark-only

`core` is the binding alone (one Python call, one transition), `python` the API; every round first
proves that the frames really go round.  The C transitions without Python are in transitions.c.
"""

from __future__ import annotations

import os
import secrets

import pytest

import gpuring
from gpuring.native import Header
from tests.helpers import raw_verbs

pytest.importorskip("pytest_benchmark")
SLOTS = 8


@pytest.fixture
def ring():
    name = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
    with gpuring.create(
        name, slots=SLOTS, shape=(64,), dtype="u1", meta=[("pts", "i8")], device="host"
    ) as ring:
        yield ring


@pytest.fixture
def header():
    fd = os.memfd_create("gpuring-bench")
    yield Header.create(
        fd, slots=SLOTS, max_peers=32, max_subscriptions=16, memory="host", sync="host",
        gate="stream", slot_nbytes=256, meta_nbytes=0, spec=b"{}", epoch=bytes(16),
    )  # fmt: skip
    os.close(fd)


def test_core_claim_publish(benchmark, header):
    producer = raw_verbs.join_producer(header)

    def pair() -> None:
        index = producer.claim(0)
        producer.publish(index, producer.seq)

    pair()
    assert producer.seq == SLOTS
    benchmark(pair)
    assert header.frontier == producer.seq + 1


def test_core_round(benchmark, header):
    """claim, publish, acquire, release through one lossless subscription."""
    producer, reader = (
        raw_verbs.join_producer(header),
        raw_verbs.join_consumer(header, b"x", True, "next"),
    )

    def hand_over() -> None:
        index = producer.claim(0)
        producer.publish(index, producer.seq)
        index = reader.acquire(0)
        reader.release(index, reader.seq)

    hand_over()
    assert producer.seq == reader.seq == SLOTS
    benchmark(hand_over)
    assert producer.seq == reader.seq == header.frontier - 1


def test_core_acquire_nothing(benchmark, header):
    """An acquire with timeout 0 that finds no frame."""
    reader = raw_verbs.join_consumer(header, b"x", True, "next")
    assert benchmark(lambda: reader.acquire(0)) < 0


@pytest.mark.parametrize("subscriptions", [0, 1, 4, 16])
def test_core_claim_publish_with_readers(benchmark, header, subscriptions):
    """A claim reads the column of every subscription; lossy ones gate nothing."""
    readers = [
        raw_verbs.join_consumer(header, b"%d" % k, False, "next") for k in range(subscriptions)
    ]
    producer = raw_verbs.join_producer(header)

    def pair() -> None:
        producer.publish(producer.claim(0), producer.seq)

    pair()
    assert all(reader.acquire(0) >= 0 for reader in readers)
    for reader in readers:
        reader.release(reader.seq % SLOTS, reader.seq)
    benchmark(pair)
    assert producer.seq == header.frontier - 1


def test_python_claim_publish(benchmark, ring):
    with ring.producer() as producer:

        def pair() -> None:
            producer.claim().publish()

        pair()
        assert ring.stats().cursor == SLOTS + 1
        benchmark(pair)


def test_python_acquire_release(benchmark, ring):
    """The setup of each round publishes a lap, which is not counted."""
    with ring.producer() as producer, ring.consumer() as frames:

        def lap() -> None:
            for _ in range(SLOTS):
                producer.claim().publish()

        def pairs() -> None:
            for _ in range(SLOTS):
                frames.acquire().release()

        benchmark.extra_info["frames per round"] = SLOTS
        benchmark.pedantic(pairs, setup=lap, rounds=2000, warmup_rounds=20)
        assert ring.stats().subscriptions[0].lag == 0


def test_python_round(benchmark, ring):
    with ring.producer() as producer, ring.consumer() as frames:

        def hand_over() -> None:
            producer.claim().publish()
            frames.acquire().release()

        hand_over()
        assert ring.stats().cursor == SLOTS + 1
        benchmark(hand_over)
        assert ring.stats().subscriptions[0].lag == 0


def test_python_round_with_statements(benchmark, ring):
    """The verbs as the README shows them, with metadata."""
    with ring.producer() as producer, ring.consumer() as frames:

        def hand_over() -> int:
            with producer.claim() as slot:
                slot.meta["pts"] = slot.seq
            with frames.acquire() as slot:
                return int(slot.meta["pts"])

        assert hand_over() == SLOTS
        benchmark(hand_over)
        assert hand_over() == ring.stats().cursor - 1

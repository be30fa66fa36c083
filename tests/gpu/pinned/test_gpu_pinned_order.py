"""The order of work in a pinned ring: who waits for whom."""

from __future__ import annotations

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.pinned import SLOTS, TAKES_S, WORDS, put, words
from tests.helpers.arrays import to_host

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]


def test_a_camera_waits_exactly_until_the_copy_engine_has_read_the_slot(ring, by_cpu):
    kernels = tools()
    stream = library.new_stream()
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        seqs = put(producer, SLOTS)
        uploads = [library.empty(WORDS) for _ in seqs]
        with kernels.Latch() as latch:
            latch.hold(stream)
            for out in uploads:
                with consumer.acquire(0, stream=stream) as slot:
                    slot.upload(out)
            for _ in range(3):
                with pytest.raises(gpuring.RingFull, match="GPU work"):
                    producer.claim(0)
            latch.open()
            again = put(producer, SLOTS)  # over the slots that were read
            assert again == [seq + SLOTS for seq in seqs]
            stream.synchronize()
            assert not latch.expired
        for seq, upload in zip(seqs, uploads, strict=True):
            assert (to_host(upload) == words(seq)).all()
        assert ring.stats().dropped == 0


def test_a_recorder_waits_exactly_until_the_copy_engine_has_written_the_slot(ring, by_cpu):
    kernels = tools()
    stream = library.new_stream()
    with ring.producer() as producer, by_cpu.consumer() as consumer:
        source = library.empty(WORDS)
        with kernels.Latch() as latch:
            latch.hold(stream)
            with producer.claim(0, stream=stream) as slot:
                kernels.stamp(source, slot.seq, stream)
                with stream:
                    slot.copy_from(source, stream=stream)
            with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                consumer.acquire(0)
            latch.open()
            with consumer.acquire(TAKES_S) as frame:
                assert (frame.array == words(frame.seq)).all()
                assert frame.lost == 0
            assert not latch.expired


@pytest.mark.parametrize("gate", ["stream", "host"])
def test_two_gpu_peers_are_ordered_as_on_a_gpu_ring(ring, gate):
    kernels = tools()
    writing, reading = (library.new_stream() for _ in range(2))
    wrong = kernels.counter()
    with ring.producer(gate=gate) as producer, ring.consumer(gate=gate) as consumer:
        for _ in range(5 * SLOTS):
            with producer.claim(TAKES_S, stream=writing) as slot:
                kernels.stamp(slot, slot.seq, writing)
            with consumer.acquire(TAKES_S, stream=reading) as slot:
                kernels.check(slot, slot.seq, wrong, reading)
        with kernels.Latch() as latch:
            latch.hold(writing)
            with producer.claim(TAKES_S, stream=writing) as slot:
                kernels.stamp(slot, slot.seq, writing)
            if gate == "stream":
                with consumer.acquire(0, stream=reading) as slot:
                    kernels.check(slot, slot.seq, wrong, reading)
                assert not library.done(reading)
            else:
                with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                    consumer.acquire(0, stream=reading)
            latch.open()
            reading.synchronize()
            assert not latch.expired
    assert kernels.count(wrong) == 0


def test_upload_on_another_stream_is_waited_for_by_the_release(ring, by_cpu):
    kernels = tools()
    first, other = (library.new_stream() for _ in range(2))
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        seqs, upload = put(producer, SLOTS), library.empty(WORDS)
        with kernels.Latch() as latch:
            latch.hold(other)
            with consumer.acquire(0, stream=first) as slot:
                slot.upload(upload, stream=other)
            with pytest.raises(gpuring.RingFull, match="GPU work"):
                producer.claim(0)
            latch.open()
            other.synchronize()
            assert not latch.expired
        assert (to_host(upload) == words(seqs[0])).all()

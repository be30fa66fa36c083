"""Who waits for whom in a pinned ring."""

from __future__ import annotations

import pytest

import gpuring
from tests.gpu.ordering import done, tools
from tests.gpu.pinned import SLOTS, TAKES_S, WORDS, put, words

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]


def test_a_camera_waits_exactly_until_the_copy_engine_has_read_the_slot(ring, by_cpu):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        seqs = put(producer, SLOTS)
        uploads = [cupy.empty(WORDS, "u8") for _ in seqs]
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
            assert (upload.get() == words(seq)).all()
        assert ring.stats().dropped == 0


def test_a_recorder_waits_exactly_until_the_copy_engine_has_written_the_slot(ring, by_cpu):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with ring.producer() as producer, by_cpu.consumer() as consumer:
        source = cupy.empty(WORDS, "u8")
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
    cupy, kernels = tools()
    writing, reading = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    wrong = kernels.counter()
    with ring.producer(gate=gate) as producer, ring.consumer(gate=gate) as consumer:
        for _ in range(5 * SLOTS):
            with producer.claim(TAKES_S, stream=writing) as slot:
                kernels.stamp(slot.array, slot.seq, writing)
            with consumer.acquire(TAKES_S, stream=reading) as slot:
                kernels.check(slot.array, slot.seq, wrong, reading)
        with kernels.Latch() as latch:
            latch.hold(writing)
            with producer.claim(TAKES_S, stream=writing) as slot:
                kernels.stamp(slot.array, slot.seq, writing)
            if gate == "stream":
                with consumer.acquire(0, stream=reading) as slot:
                    kernels.check(slot.array, slot.seq, wrong, reading)
                assert not done(cupy, reading)
            else:
                with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                    consumer.acquire(0, stream=reading)
            latch.open()
            reading.synchronize()
            assert not latch.expired
    assert int(wrong.get()[0]) == 0


def test_upload_on_another_stream_is_waited_for_by_the_release(ring, by_cpu):
    cupy, kernels = tools()
    first, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        seqs, upload = put(producer, SLOTS), cupy.empty(WORDS, "u8")
        with kernels.Latch() as latch:
            latch.hold(other)
            with consumer.acquire(0, stream=first) as slot:
                slot.upload(upload, stream=other)
            with pytest.raises(gpuring.RingFull, match="GPU work"):
                producer.claim(0)
            latch.open()
            other.synchronize()
            assert not latch.expired
        assert (upload.get() == words(seqs[0])).all()

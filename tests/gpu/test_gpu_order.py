"""Device order is real: what stands behind a wait has not run, and no frame is ever torn.

A latch holds one process's stream; work of another process that the ring has ordered behind it must
not be done before the latch is opened.  With `order=False` the wait is taken away, so the latch is
known to notice.  Stamps count, on the GPU, words that are not those of their sequence.
"""

from __future__ import annotations

import pytest

import gpuring
from tests.gpu.ordering import ORDER, Waits, done, tools
from tests.helpers.promise import promise
from tests.helpers.support import ON_GPU

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
STAMPED_FRAMES = 100_000


# ---- the consumer behind a held producer ---------------------------------------------------------


def read_one(pipe, name, order):
    """Acquires one frame and enqueues a check of it; says whether it ran before and after."""
    with gpuring.attach(name, timeout=20) as ring:
        if not order:
            Waits(ring).leave_out()
        return _read_one(pipe, ring, order)


def _read_one(pipe, ring, order):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with ring.consumer("c") as consumer:
        pipe.send("joined")
        slot = consumer.acquire(30, stream=stream)
        kernels.check(slot.array, slot.seq, wrong, stream)
        if not order:
            stream.synchronize()
        pipe.send(done(cupy, stream))
        pipe.receive()  # the latch was opened
        stream.synchronize()
        slot.release()
        return int(wrong.get()[0])


@promise(
    "failure.md",
    "It goes on: a survivor stores the word. | nothing",
    "With gate `stream` no claim and no acquire waits for a GPU, because the wait goes into the "
    "stream.",
)
@ORDER
def test_a_readers_work_stays_behind_a_held_producer(gated, name, children, order):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with gated.create(name, slots=2, shape=(WORDS,), dtype="u8") as ring:
        producer, child = ring.producer(), children(read_one, name, order)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=40) as latch:
            slot = producer.claim(10, stream=stream)
            latch.hold(stream)
            kernels.stamp(slot.array, slot.seq, stream)
            slot.publish()
            early = child.receive()
            held = not done(cupy, stream)
            latch.open()
        child.send()
        wrong = child.result()
        assert held
        assert not latch.expired
    assert (early, wrong > 0) == (not order, not order)


# ---- host gate: acquire itself waits -----------------------------------------------------------


def read_gated(pipe, name):
    cupy, kernels = tools()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        pipe.send("joined")
        pipe.receive()  # published, and its work is held
        try:
            consumer.acquire(0.2)
            pipe.send("acquired")
        except gpuring.RingTimeout as error:
            pipe.send(str(error))
        pipe.receive()  # the latch was opened
        with consumer.acquire(20) as slot:
            kernels.check(slot.array, slot.seq, wrong, None)
            cupy.cuda.get_current_stream().synchronize()
        return int(wrong.get()[0]), slot.seq


@promise("failure.md", "`gate=` can be given for a ring, a producer or a consumer.")
@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_the_host_gate_waits_times_out_and_gives_the_frame_back(sync, name, children):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gpuring.create(name, slots=2, shape=(WORDS,), dtype="u8", sync=sync, gate="host") as ring,
        ring.producer() as producer,
    ):
        child = children(read_gated, name)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=40) as latch:
            slot = producer.claim(10, stream=stream)
            latch.hold(stream)
            kernels.stamp(slot.array, slot.seq, stream)
            slot.publish()
            child.send()
            said = child.receive()
            latch.open()
        assert "GPU work" in said
        child.send()
        assert child.result() == (0, 2)
        assert not latch.expired


# ---- the producer behind a held consumer -------------------------------------------------------


def read_held(pipe, name):
    """Reads one frame late: its check stands behind a latch, its release is stream-ordered."""
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        with kernels.Latch(limit_s=40) as latch:
            pipe.send("joined")
            slot = consumer.acquire(30, stream=stream)
            latch.hold(stream)
            kernels.check(slot.array, slot.seq, wrong, stream)
            slot.release()
            pipe.send("released")
            pipe.receive()  # the producer has enqueued its overwrite
            latch.open()
            stream.synchronize()
        assert not latch.expired
        return int(wrong.get()[0])


@promise(
    "failure.md",
    "With gate `stream` no claim and no acquire waits for a GPU, because the wait goes into the "
    "stream.",
)
def test_an_overwrite_stays_behind_a_held_consumer(gated, name, children):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gated.create(name, slots=1, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
    ):
        child = children(read_held, name)
        assert child.receive() == "joined"
        with producer.claim(10, stream=stream) as slot:
            kernels.stamp(slot.array, slot.seq, stream)
        assert child.receive() == "released"
        with producer.claim(10, stream=stream) as slot:  # the same slot: the host may go on
            kernels.stamp(slot.array, slot.seq, stream)
        early = done(cupy, stream)
        child.send()
        assert child.result() == 0
        assert not early
        stream.synchronize()


# ---- stamps ------------------------------------------------------------------------------------


def count_wrong(pipe, name, newest):
    """Checks every frame it gets, on the GPU: (frames, lost, words that were wrong)."""
    _, kernels = tools()
    wrong = kernels.counter()
    frames = lost = 0
    with gpuring.attach(name, timeout=20) as ring, ring.consumer(lossless=not newest) as consumer:
        pipe.send("joined")
        while True:
            try:
                slot = consumer.latest(60) if newest else consumer.acquire(60)
            except gpuring.EndOfStream:
                break
            kernels.check(slot.array, slot.seq, wrong, None)
            frames, lost = frames + 1, lost + slot.lost
            slot.release()
    return frames, lost, int(wrong.get()[0])


@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
def test_no_frame_is_torn(place, name, children):
    _, kernels = tools()
    with place.create(name, slots=8, shape=(2048,), dtype="u8") as ring:
        lossless, newest = children(count_wrong, name, False), children(count_wrong, name, True)
        assert [lossless.receive(), newest.receive()] == ["joined", "joined"]
        with ring.producer() as producer:
            published = 0
            while published < STAMPED_FRAMES:
                with producer.claim(60) as slot:
                    kernels.stamp(slot.array, slot.seq, None)
                published += 1
        assert lossless.result() == (STAMPED_FRAMES, 0, 0)
        frames, lost, wrong = newest.result()
        assert wrong == 0
        assert 0 < frames <= STAMPED_FRAMES
        assert frames + lost <= STAMPED_FRAMES + 8 * STAMPED_FRAMES  # void sequences count as lost

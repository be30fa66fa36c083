"""Device order is real: what stands behind a wait has not run, and no frame is ever torn.

A latch holds one process's stream; work of another process that the ring has ordered behind it must
not be done before the latch is opened.  With `order=False` the wait is taken away, so the latch is
known to notice.  Stamps count, on the GPU, words that are not those of their sequence.
"""

from __future__ import annotations

import contextlib
import random

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import ORDER, Waits, tools
from tests.helpers.places import ON_GPU
from tests.helpers.promise import promise

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
BATCH = 3
LIMIT_S = 40
STAMPED_FRAMES = 50_000

HELD = pytest.mark.parametrize(
    "held", [None, 0, BATCH - 1], ids=["one frame", "a batch", "the end of a batch"]
)
"""From which slot of a batch on the work on it stands behind the latch.  All work of others on the
batch waits for it, also that on the last slot alone.  None: it is one frame instead.

One frame is claimed and acquired with a stream that is not current.  For a batch the stream is made
current, so that a timeline records the batch by one call."""


def current(stream, held):
    return contextlib.nullcontext() if held is None else stream


def claim(producer, stream, held):
    return producer.claim(10, stream=stream) if held is None else producer.claim_many(BATCH, 10)


def acquire(consumer, stream, held):
    return consumer.acquire(30, stream=stream) if held is None else consumer.acquire_many(BATCH, 30)


def each_of(slots, held):
    """(index in the batch, slot) of a batch or a single slot."""
    found = [slots] if held is None else slots
    assert len(found) == (1 if held is None else BATCH)
    return enumerate(found)


# ---- the consumer behind a held producer ---------------------------------------------------------


def read(pipe, name, order, held):
    """Enqueues a check of what it acquires.  Sends whether the check ran before the latch
    opened."""
    kernels = tools()
    stream = library.new_stream()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring:
        if not order:
            Waits(ring).leave_out()
        with ring.consumer("c") as consumer, current(stream, held):
            pipe.send("joined")
            pipe.receive()  # all is published
            slots = acquire(consumer, stream, held)
            for _, slot in each_of(slots, held):
                kernels.check(slot, slot.seq, wrong, stream)
            if not order:
                stream.synchronize()
            pipe.send(library.done(stream))
            pipe.receive()  # the latch was opened
            slots.release()
            stream.synchronize()
            return kernels.count(wrong, stream)


@promise(
    "streams.md",
    "With gate `stream` no claim and no acquire waits for a GPU, because the wait goes into the "
    "stream.",
)
@ORDER
@HELD
def test_a_readers_work_stays_behind_a_held_producer(gated, name, children, order, held):
    kernels = tools()
    stream = library.new_stream()
    with (
        gated.create(name, slots=4, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
    ):
        child = children(read, name, order, held)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with current(stream, held), claim(producer, stream, held) as slots:
                for k, slot in each_of(slots, held):
                    if k == (held or 0):
                        latch.hold(stream)
                    kernels.stamp(slot, slot.seq, stream)
            early = child.ask()
            still_held = not library.done(stream)
            latch.open()
        wrong = child.finish()
        assert still_held
        assert not latch.expired
        stream.synchronize()
    assert (early, wrong > 0) == (not order, not order)


# ---- the producer behind a held consumer -------------------------------------------------------


def read_held(pipe, name, held):
    """Reads late, because its checks are behind a latch.  Its release is stream-ordered."""
    kernels = tools()
    stream = library.new_stream()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        with kernels.Latch(limit_s=LIMIT_S) as latch, current(stream, held):
            pipe.send("joined")
            pipe.receive()  # all is published
            with acquire(consumer, stream, held) as slots:
                for k, slot in each_of(slots, held):
                    if k == (held or 0):
                        latch.hold(stream)
                    kernels.check(slot, slot.seq, wrong, stream)
            pipe.send("released")
            pipe.receive()  # the producer has enqueued its overwrites
            latch.open()
            stream.synchronize()
        assert not latch.expired
        return kernels.count(wrong, stream)


@ORDER
@HELD
def test_an_overwrite_stays_behind_a_held_consumer(gated, name, children, order, held):
    kernels = tools()
    stream = library.new_stream()

    def write():
        with claim(producer, stream, held) as slots:
            for _, slot in each_of(slots, held):
                kernels.stamp(slot, slot.seq, stream)

    slots = 1 if held is None else BATCH
    with (
        gated.create(name, slots=slots, shape=(WORDS,), dtype="u8") as ring,
        contextlib.nullcontext() if order else Waits(ring) as waits,
        ring.producer() as producer,
        current(stream, held),
    ):
        child = children(read_held, name, held)
        assert child.receive() == "joined"
        write()
        child.send()
        assert child.receive() == "released"
        if not order:
            waits.leave_out()
        write()  # into the same slots.  The host does not wait.
        if not order:
            stream.synchronize()
        early = library.done(stream)
        wrong = child.finish()
        stream.synchronize()
    assert (early, wrong > 0) == (not order, not order)


# ---- host gate: acquire itself waits -----------------------------------------------------------


def read_gated(pipe, name):
    """Acquires while the GPU has finished one frame of three, and again afterwards."""
    kernels = tools()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        pipe.send("joined")
        pipe.receive()  # the first is done, and the work on the others is held
        with consumer.acquire_many(BATCH, 20) as batch:
            seqs = [slot.seq for slot in batch]
            kernels.check(batch[0], batch[0].seq, wrong, None)
        said = []
        for acquired in (consumer.acquire, lambda timeout: consumer.acquire_many(BATCH, timeout)):
            with pytest.raises(gpuring.RingTimeout) as told:
                acquired(timeout=0.2)
            said.append(str(told.value))
        pipe.send((seqs, said))
        pipe.receive()  # the latch was opened
        while len(seqs) < BATCH:
            with consumer.acquire_many(BATCH, 20) as batch:
                for slot in batch:
                    seqs.append(slot.seq)
                    kernels.check(slot, slot.seq, wrong, None)
        return seqs, kernels.count(wrong)


@promise("failure.md", "`gate=` can be given for a ring, a producer or a consumer.")
@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_the_host_gate_waits_times_out_and_gives_frames_back(sync, name, children):
    """A batch ends before the first frame that the GPU has not finished."""
    kernels = tools()
    stream = library.new_stream()
    with (
        gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", sync=sync, gate="host") as ring,
        ring.producer() as producer,
    ):
        child = children(read_gated, name)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with stream, producer.claim_many(BATCH, 10) as batch:
                kernels.stamp(batch[0], batch[0].seq, stream)
                batch[0].publish()
                stream.synchronize()
                latch.hold(stream)
                for slot in batch[1:]:
                    kernels.stamp(slot, slot.seq, stream)
            child.send()
            seqs, said = child.receive()
            latch.open()
        child.send()
        assert seqs == [4]
        assert ["GPU work" in each for each in said] == [True, True]
        assert child.result() == ([4, 5, 6], 0)
        assert not latch.expired
        stream.synchronize()


# ---- stamps ------------------------------------------------------------------------------------


def count_wrong(pipe, name, how):
    """Checks every frame that it gets on the GPU.  Returns (frames, lost, wrong words)."""
    kernels = tools()
    streams = [library.new_stream() for _ in range(2)]
    chosen, wrong = random.Random(2), kernels.counter()
    frames = lost = last = 0
    with (
        gpuring.attach(name, timeout=20) as ring,
        ring.consumer(lossless=how != "newest") as consumer,
    ):
        take = {
            "one by one": lambda: consumer.acquire(60),
            "newest": lambda: consumer.latest(60),
            "batches": lambda: consumer.acquire_many(chosen.randint(1, 8), 60),
        }[how]
        pipe.send("joined")
        while True:
            with chosen.choice(streams) as stream:
                try:
                    taken = take()
                except gpuring.EndOfStream:
                    break
                with taken:
                    for slot in taken if how == "batches" else [taken]:
                        kernels.check(slot, slot.seq, wrong, stream)
                        assert slot.seq > last
                        frames, lost, last = frames + 1, lost + slot.lost, slot.seq
        for stream in streams:
            stream.synchronize()
    return frames, lost, kernels.count(wrong)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
def test_no_frame_is_torn(place, name, children, many):
    """Frames are written one by one, or in batches of random length on two streams in turns."""
    kernels = tools()
    streams = [library.new_stream() for _ in range(2)]
    chosen = random.Random(1)
    with place.create(name, slots=8, shape=(2048,), dtype="u8") as ring:
        readers = [children(count_wrong, name, how) for how in ("one by one", "newest", "batches")]
        assert [reader.receive() for reader in readers] == ["joined"] * 3
        with ring.producer() as producer:
            published = 0
            while published < STAMPED_FRAMES:
                n = min(chosen.randint(1, 8), STAMPED_FRAMES - published)
                with (
                    chosen.choice(streams) as stream,
                    producer.claim_many(n, 60) if many else producer.claim(60) as claimed,
                ):
                    slots = claimed if many else [claimed]
                    for slot in slots:
                        kernels.stamp(slot, slot.seq, stream)
                published += len(slots)
        one_by_one, (frames, lost, wrong), batches = (reader.result() for reader in readers)
        assert one_by_one == batches == (STAMPED_FRAMES, 0, 0)
        assert wrong == 0
        assert 0 < frames <= STAMPED_FRAMES
        assert frames + lost <= STAMPED_FRAMES + 8 * STAMPED_FRAMES  # void sequences count as lost

"""Batches are ordered as single frames are: by latches and by stamps.

As in test_gpu_order.py a latch holds one process's stream, and what is ordered behind it must not
be done before it is opened; with `order=False` the order is taken away, and the test must notice.
Streams are made current, so that a timeline records a batch by one call.
"""

from __future__ import annotations

import contextlib
import random

import pytest

import gpuring
from tests.gpu.ordering import ORDER, Waits, done, tools
from tests.helpers.support import ON_GPU

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
BATCH = 3
LIMIT_S = 40
STAMPED_FRAMES = 20_000


# ---- the consumer behind a held producer ---------------------------------------------------------


def read_batch(pipe, name, order):
    """Acquires a batch and enqueues checks of it; says whether they ran before the latch opened."""
    with gpuring.attach(name, timeout=20) as ring:
        if not order:
            Waits(ring).leave_out()
        return _read_batch(pipe, ring, order)


def _read_batch(pipe, ring, order):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with ring.consumer("c") as consumer, stream:
        pipe.send("joined")
        pipe.receive()  # all are published
        batch = consumer.acquire_many(BATCH, 30)
        assert len(batch) == BATCH
        for slot in batch:
            kernels.check(slot.array, slot.seq, wrong, stream)
        if not order:
            stream.synchronize()
        pipe.send(done(cupy, stream))
        pipe.receive()  # the latch was opened
        batch.release()
        stream.synchronize()
        return int(wrong.get(stream=stream)[0])


@ORDER
@pytest.mark.parametrize("held", [0, BATCH - 1])
def test_work_on_an_acquired_batch_stays_behind_a_held_producer(gated, name, children, order, held):
    """`held`: the slot of the batch from which on the producer's work stands behind the latch.  All
    work on the batch waits for it, also that on the last slot alone."""
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gated.create(name, slots=4, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
    ):
        child = children(read_batch, name, order)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with stream, producer.claim_many(BATCH, 10) as batch:
                assert len(batch) == BATCH
                for k, slot in enumerate(batch):
                    if k == held:
                        latch.hold(stream)
                    kernels.stamp(slot.array, slot.seq, stream)
            child.send()
            ran_early = child.receive()
            still_held = not done(cupy, stream)
            latch.open()
        child.send()
        wrong = child.result()
        assert still_held
        assert not latch.expired
        stream.synchronize()
    assert (ran_early, wrong > 0) == (not order, not order)


# ---- the producer behind a held consumer -------------------------------------------------------


def read_held(pipe, name, held):
    """Reads a batch late: from one of its frames on the checks stand behind a latch."""
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        with kernels.Latch(limit_s=LIMIT_S) as latch, stream:
            pipe.send("joined")
            pipe.receive()  # all are published
            with consumer.acquire_many(BATCH, 30) as batch:
                assert len(batch) == BATCH
                for k, slot in enumerate(batch):
                    if k == held:
                        latch.hold(stream)
                    kernels.check(slot.array, slot.seq, wrong, stream)
            pipe.send("released")
            pipe.receive()  # the producer has enqueued its overwrites
            latch.open()
            stream.synchronize()
        assert not latch.expired
        return int(wrong.get(stream=stream)[0])


@ORDER
@pytest.mark.parametrize("held", [0, BATCH - 1])
def test_writes_to_a_claimed_batch_stay_behind_a_held_consumer(gated, name, children, order, held):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gated.create(name, slots=BATCH, shape=(WORDS,), dtype="u8") as ring,
        contextlib.nullcontext() if order else Waits(ring) as waits,
        ring.producer() as producer,
        stream,
    ):
        child = children(read_held, name, held)
        assert child.receive() == "joined"
        with producer.claim_many(BATCH, 10) as batch:
            for slot in batch:
                kernels.stamp(slot.array, slot.seq, stream)
        child.send()
        assert child.receive() == "released"
        if not order:
            waits.leave_out()
        with producer.claim_many(BATCH, 10) as batch:  # the same slots: the host may go on
            assert len(batch) == BATCH
            for slot in batch:
                kernels.stamp(slot.array, slot.seq, stream)
        if not order:
            stream.synchronize()
        early = done(cupy, stream)
        child.send()
        wrong = child.result()
        stream.synchronize()
    assert (early, wrong > 0) == (not order, not order)


# ---- host gate ---------------------------------------------------------------------------------


def read_gated(pipe, name):
    """What is acquired while the GPU has finished one frame of three, and afterwards."""
    _, kernels = tools()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        pipe.send("joined")
        pipe.receive()  # one is done, and the work on the others is held
        with consumer.acquire_many(BATCH, 20) as batch:
            seqs = [slot.seq for slot in batch]
            kernels.check(batch[0].array, batch[0].seq, wrong, None)
        try:
            consumer.acquire_many(BATCH, 0.2)
            said = "acquired"
        except gpuring.RingTimeout as error:
            said = str(error)
        pipe.send((seqs, said))
        pipe.receive()  # the latch was opened
        while len(seqs) < BATCH:
            with consumer.acquire_many(BATCH, 20) as batch:
                for slot in batch:
                    seqs.append(slot.seq)
                    kernels.check(slot.array, slot.seq, wrong, None)
        return seqs, int(wrong.get()[0])


@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_with_the_host_gate_a_batch_ends_before_what_the_gpu_has_not_done(sync, name, children):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", sync=sync, gate="host") as ring,
        ring.producer() as producer,
    ):
        child = children(read_gated, name)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with stream, producer.claim_many(BATCH, 10) as batch:
                kernels.stamp(batch[0].array, batch[0].seq, stream)
                batch[0].publish()
                stream.synchronize()
                latch.hold(stream)
                for slot in batch[1:]:
                    kernels.stamp(slot.array, slot.seq, stream)
            child.send()
            seqs, said = child.receive()
            latch.open()
        child.send()
        assert seqs == [4]
        assert "GPU work" in said
        assert child.result() == ([4, 5, 6], 0)
        assert not latch.expired
        stream.synchronize()


# ---- stamps ------------------------------------------------------------------------------------


def count_wrong(pipe, name, seed):
    """Checks every frame, in batches of random length on two streams in turns."""
    cupy, kernels = tools()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    chosen, wrong = random.Random(seed), kernels.counter()
    frames, seqs_rise, last = 0, True, 0
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer:
        pipe.send("joined")
        while True:
            with chosen.choice(streams) as stream:
                try:
                    batch = consumer.acquire_many(chosen.randint(1, 8), 60)
                except gpuring.EndOfStream:
                    break
                with batch:
                    for slot in batch:
                        kernels.check(slot.array, slot.seq, wrong, stream)
                        seqs_rise, last = seqs_rise and slot.seq > last, slot.seq
                    frames += len(batch)
        for stream in streams:
            stream.synchronize()
    return frames, seqs_rise, int(wrong.get()[0])


@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
def test_no_frame_of_a_batch_is_torn(place, name, children):
    cupy, kernels = tools()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    chosen = random.Random(1)
    with place.create(name, slots=8, shape=(2048,), dtype="u8") as ring:
        child = children(count_wrong, name, 2)
        assert child.receive() == "joined"
        with ring.producer() as producer:
            published = 0
            while published < STAMPED_FRAMES:
                wanted = min(chosen.randint(1, 8), STAMPED_FRAMES - published)
                with chosen.choice(streams) as stream, producer.claim_many(wanted, 60) as batch:
                    for slot in batch:
                        kernels.stamp(slot.array, slot.seq, stream)
                published += len(batch)
        assert child.result() == (STAMPED_FRAMES, True, 0)

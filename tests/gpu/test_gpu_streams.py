"""Facts that a stream's handle does not show: it may be used again, be another thread's, or be
captured."""

from __future__ import annotations

import contextlib
import threading

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import ORDER, Waits, tools
from tests.helpers.places import ON_GPU

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
LIMIT_S = 40
PATIENCE_S = 30


# ---- handles are used again ----------------------------------------------------------------------


def _again(handle):
    """Returns a new stream with the handle of one that was destroyed."""
    others = []
    for _ in range(64):
        stream = library.new_stream()
        if stream.ptr == handle:
            return stream
        others.append(stream)
    return None


@ORDER
def test_a_new_stream_with_an_old_handle_waits_for_the_destroyed_one(gated, name, order):
    """Work on the next claim of a slot does not run before the work on the last one is done."""
    pytest.importorskip("cupy", reason="torch does not destroy streams")
    kernels = tools()
    first = library.new_stream()
    with (
        gated.create(name, slots=1, shape=(WORDS,), dtype="u8") as ring,
        contextlib.nullcontext() if order else Waits(ring) as waits,
        ring.producer() as producer,
        kernels.Latch(limit_s=LIMIT_S) as latch,
    ):
        slot = producer.claim(0, stream=first)
        latch.hold(first)
        kernels.stamp(slot, slot.seq, first)
        with first:
            slot.publish()
        handle = first.ptr
        del first  # destroyed while its work is pending
        second = _again(handle)
        if second is None:
            latch.open()
            library.synchronize()
            pytest.skip("this driver has not used the handle again")
        if not order:
            waits.leave_out()
        slot = producer.claim(0, stream=second)
        kernels.stamp(slot, slot.seq, second)
        if not order:
            second.synchronize()
        early = library.done(second)
        latch.open()
        library.synchronize()
        wrong = kernels.counter()
        kernels.check(slot, slot.seq, wrong, second)
        second.synchronize()
        with second:
            slot.publish()
        assert not latch.expired
        assert (early, kernels.count(wrong, second) > 0) == (not order, not order)


# ---- another thread's default stream -------------------------------------------------------------


@pytest.mark.parametrize("current", ["per-thread", "own", "legacy"])
def test_a_slot_is_published_behind_the_default_stream_of_the_thread_that_wrote_it(
    gated, name, current
):
    kernels = tools()
    stream = library.new_stream()
    wrong = kernels.counter()
    mine = {
        "per-thread": library.per_thread_stream(),
        "own": library.new_stream(),
        "legacy": library.default_stream(),
    }[current]
    claimed, written, over = [], threading.Event(), threading.Event()
    with (
        gated.create(name, slots=2, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
        kernels.Latch(limit_s=LIMIT_S) as latch,
    ):

        def write():
            ptds = library.per_thread_stream()
            with ptds:
                slot = producer.claim(0)
                latch.hold(ptds)
                kernels.stamp(slot, slot.seq, ptds)
            claimed.append(slot)
            written.set()
            over.wait(LIMIT_S)  # the stream lives as long as this thread

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert written.wait(PATIENCE_S)
            with mine:
                claimed[0].publish()
            with consumer.acquire(0, stream=stream) as slot, stream:
                kernels.check(slot, slot.seq, wrong, stream)
            early = library.done(stream)
            latch.open()
            stream.synchronize()
        finally:
            latch.open()
            over.set()
            thread.join(LIMIT_S)
        assert not early
        assert not latch.expired
        assert kernels.count(wrong, stream) == 0


# ---- captures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
@pytest.mark.parametrize("many", [False, True])
def test_a_slot_is_not_handed_over_inside_a_capture_and_the_capture_goes_on(place, name, many):
    kernels = tools()
    stream = library.new_stream()
    wrong = kernels.counter()
    with (
        place.create(name, slots=4, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
        stream,
    ):
        slots = producer.claim_many(2, PATIENCE_S) if many else producer.claim(PATIENCE_S)
        first = slots[0] if many else slots
        stream.begin_capture()
        kernels.stamp(first, first.seq, stream)
        for verb in (slots.publish, slots.abandon):
            with pytest.raises(gpuring.DeviceError, match="captured"):
                verb()
        graph = stream.end_capture()
        graph.launch(stream)
        slots.publish()
        with consumer.acquire(PATIENCE_S) as slot:
            kernels.check(slot, slot.seq, wrong, stream)
        stream.synchronize()
        assert kernels.count(wrong, stream) == 0
        for other in consumer.acquire_many(4, PATIENCE_S) if many else ():
            other.release()


def test_a_captured_stream_is_made_to_wait_for_nobody_and_the_capture_goes_on(gated, name):
    kernels = tools()
    stream, captured = (library.new_stream() for _ in range(2))
    array = library.zeros(WORDS)
    with (
        gated.create(name, slots=4, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
        kernels.Latch(limit_s=LIMIT_S) as latch,
    ):
        with stream, producer.claim(0) as slot:
            latch.hold(stream)
            kernels.stamp(slot, slot.seq, stream)
        captured.begin_capture()
        kernels.stamp(array, 7, captured)
        with pytest.raises(gpuring.DeviceError, match="captured"):
            consumer.acquire(0, stream=captured)
        graph = captured.end_capture()
        latch.open()
        graph.launch(captured)
        captured.synchronize()
        with consumer.acquire(PATIENCE_S, stream=captured) as slot, captured:
            assert slot.seq == 4
        assert not latch.expired

"""The Python API on one ring: slots, frames, metadata, late joiners, figures, ends."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import gpuring
from tests.helpers.arrays import array_of
from tests.helpers.processes import poll
from tests.helpers.promise import promise

FIELDS = {"y": ((6, 8), "u1"), "uv": ((3, 4, 2), "i2"), "scale": ((), "f4")}


@pytest.fixture
def ring(place, name):
    with place.create(
        name, slots=4, shape=(3, 5), dtype="f4", meta=[("pts", "i8"), ("box", "f4", 2)]
    ) as ring:
        yield ring


def test_what_a_ring_says_of_itself(place, ring, name):
    assert (ring.name, ring.slots, ring.memory) == (name, 4, place.memory)
    synchroniser = "timeline" if place.memory == "pinned" else "host"
    assert ring.sync == dict(place.options).get("sync", synchroniser)
    assert ring.gate == dict(place.options).get("gate", "stream")
    assert not ring.closed
    assert name in repr(ring)
    ring.close()
    ring.close()
    assert ring.closed
    with pytest.raises(gpuring.RingClosed, match=name):
        ring.producer()
    with pytest.raises(gpuring.RingClosed, match=name):
        ring.consumer()
    with pytest.raises(gpuring.RingClosed, match=name):
        ring.stats()


def test_a_frame_with_its_metadata_goes_through(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        for lap in range(10):
            sent = np.arange(15, dtype="f4").reshape(3, 5) + lap
            before = time.monotonic_ns()
            with producer.claim() as slot:
                assert (slot.seq, slot.index) == (4 + lap, lap % 4)
                assert array_of(slot).shape == (3, 5)
                place.fill(slot, sent)
                slot.meta["pts"] = -lap
                slot.meta["box"] = (lap, 0.5)
            with frames.acquire(timeout=5) as slot:
                assert (slot.seq, slot.lost, slot.redelivered) == (4 + lap, 0, False)
                assert (place.read(slot) == sent).all()
                assert slot.meta["pts"] == -lap
                assert slot.meta["box"].tolist() == [lap, 0.5]
                assert before <= slot.time_ns <= time.monotonic_ns()
                assert 0 <= slot.age < 60
                slot.check()


def test_an_exception_abandons_the_frame(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with pytest.raises(ZeroDivisionError), producer.claim() as slot:
            place.fill(slot, 1 / 0)
        with producer.claim() as slot:
            place.fill(slot, 2)
        with frames.acquire(timeout=5) as slot:
            assert slot.seq == 5
        assert ring.stats().producers[0].holding == ()


def test_slots_can_be_ended_by_hand(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        slot = producer.claim()
        slot.abandon()
        with producer.claim() as slot:
            place.fill(slot, 1)
            slot.publish()
        with producer.claim() as slot:
            slot.abandon()
        with frames.acquire() as slot:
            slot.release()
        with pytest.raises(gpuring.RingTimeout):
            frames.acquire(timeout=0)


def test_several_slots_at_once_are_read_in_order(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        claimed = [producer.claim() for _ in range(4)]
        for slot in reversed(claimed):
            place.fill(slot, slot.seq)
            slot.publish()
        held = [frames.acquire() for _ in range(4)]
        assert [slot.seq for slot in held] == [4, 5, 6, 7]
        assert [int(place.read(slot)[0, 0]) for slot in held] == [4, 5, 6, 7]
        for slot in reversed(held):
            slot.release()


def test_a_slot_is_nobodys_after_its_end(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        written = producer.claim()
        place.fill(written, 0)
        written.publish()
        read = frames.acquire()
        read.release()
        for slot, verbs in ((written, ("publish", "abandon")), (read, ("release", "check"))):
            for use in (
                *(getattr(slot, verb) for verb in verbs),
                lambda slot=slot: slot.array,
                lambda slot=slot: slot.meta,
                lambda slot=slot: slot["array"],
                lambda slot=slot: slot.__dlpack__(),
                lambda slot=slot: slot.__dlpack_device__(),
            ):
                with pytest.raises(gpuring.RingError, match=rf"{ring.name}.*sequence 4.*no longer"):
                    use()
        with pytest.raises(gpuring.RingError):
            _ = read.time_ns


def test_several_fields_in_one_slot(place, name):
    ring = place.create(name, slots=2, fields=FIELDS)
    with ring, ring.producer() as producer, ring.consumer() as frames:
        for lap in range(5):
            with producer.claim() as slot:
                for k, (field, (shape, dtype)) in enumerate(FIELDS.items()):
                    array = array_of(slot, field)
                    assert array.shape == shape
                    assert place.read(array).dtype == dtype
                    place.fill(array, np.full(shape, lap + k, dtype))
                with pytest.raises(TypeError, match=r"'y', 'uv', 'scale'"):
                    _ = slot.array
                with pytest.raises(KeyError, match="no field 'z'; its fields: 'y', 'uv', 'scale'"):
                    slot["z"]
                with pytest.raises(TypeError, match=f"{name!r} has no metadata"):
                    slot.meta["pts"] = 1
            with frames.acquire() as slot:
                for k, (field, (shape, _)) in enumerate(FIELDS.items()):
                    assert (place.read(array_of(slot, field)) == np.full(shape, lap + k)).all()
        with pytest.raises((TypeError, ValueError), match=name):
            producer.claim(shape=(2,))
        assert ring.stats().producers[0].holding == ()


@promise("limits.md", "Slots have a fixed size, but a frame may be smaller than its slot.")
@pytest.mark.parametrize("shape", [(3, 5), (2, 5), (3, 1), (7,), (1, 1, 15), (1,) * 8])
def test_a_frame_may_be_smaller_than_its_slot(place, ring, shape):
    with ring.producer() as producer, ring.consumer() as frames:
        for _ in range(2):
            sent = np.arange(np.prod(shape), dtype="f4").reshape(shape)
            with producer.claim(shape=shape) as slot:
                assert array_of(slot).shape == shape
                place.fill(slot, sent)
            with producer.claim() as slot:
                place.fill(slot, 9)
            with frames.acquire() as slot:
                assert (place.read(slot) == sent).all()
                assert (place.read(array_of(slot, "array")) == sent).all()
            with frames.acquire() as slot:
                assert array_of(slot).shape == (3, 5)


def test_many_different_shapes_are_no_leak(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        for k in range(200):
            with producer.claim(shape=(1 + k % 15,)):
                pass
            with frames.acquire() as slot:
                assert array_of(slot).shape == (1 + k % 15,)


@pytest.mark.parametrize("shape", [(4, 5), (16,), (0,), (-1,), (1.5,), (1,) * 9, (), "ab"])
def test_a_shape_that_does_not_fit_claims_nothing(ring, shape):
    with ring.producer() as producer:
        with pytest.raises((ValueError, TypeError)):
            producer.claim(shape=shape)
        assert ring.stats().cursor == 4


def test_iteration_ends_with_the_stream(place, ring):
    frames, seen = ring.consumer(), []
    with ring.producer() as producer:
        for k in range(3):
            with producer.claim() as slot:
                place.fill(slot, k)
    for slot in frames:
        seen.append((slot.seq, int(place.read(slot)[0, 0])))
        assert len(ring.stats().peers[0].holding) == 1
    assert seen == [(4, 0), (5, 1), (6, 2)]
    assert list(frames) == []
    with pytest.raises(gpuring.EndOfStream, match=ring.name):
        frames.acquire()
    assert ring.stats().subscriptions[0].lag == 0


def test_a_loop_that_is_left_gives_its_frame_back(ring):
    frames = ring.consumer()
    with ring.producer() as producer:
        for _ in range(3):
            producer.claim().publish()
        for slot in frames:
            assert slot.seq == 4
            break
        poll(lambda: ring.stats().subscriptions[0].lag < 3)
        for slot in frames:
            slot.release()  # a release by hand works, too
            if slot.seq == 6:
                break
        assert ring.stats().subscriptions[0].lag == 0


def test_a_consumer_that_is_closed_releases_what_it_held(ring):
    with ring.producer() as producer:
        keeper, frames = ring.consumer("x"), ring.consumer("x")
        producer.claim().publish()
        held = frames.acquire()
        frames.close()
        assert ring.stats().subscriptions[0].lag == 0
        with pytest.raises(gpuring.RingClosed, match="given back when this consumer was closed"):
            held.check()
        keeper.close()
        with pytest.raises(gpuring.RingError, match="closed"):
            frames.acquire(timeout=0)


def test_a_producer_that_is_closed_abandons_what_it_claimed(ring):
    frames, producer = ring.consumer(), ring.producer()
    slot = producer.claim()
    producer.close()
    producer.close()
    with pytest.raises(gpuring.RingError):
        slot.publish()
    with pytest.raises(gpuring.EndOfStream):
        frames.acquire()
    with pytest.raises(gpuring.RingClosed, match="producer was closed"):
        producer.claim()


def test_the_creators_close_ends_the_stream_for_the_others(place, name):
    ring = place.create(name, slots=4, shape=4, dtype="u1")
    other = gpuring.attach(name)
    frames, producer = other.consumer(), other.producer()
    with producer.claim() as slot:
        place.fill(slot, 3)
    ring.close()
    with pytest.raises(gpuring.RingClosed, match=name):
        producer.claim()
    with frames.acquire() as slot:
        assert place.read(slot).tolist() == [3] * 4
    with pytest.raises(gpuring.EndOfStream):
        frames.acquire()
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name)
    other.close()


def test_latest_needs_a_lossy_consumer(ring):
    with ring.consumer() as frames, pytest.raises(TypeError, match="lossless=False"):
        frames.latest()


def test_a_lossy_consumer_is_told_what_it_missed(place, ring):
    with ring.producer() as producer, ring.consumer(lossless=False) as frames:
        for k in range(10):
            with producer.claim() as slot:
                place.fill(slot, k)
        with frames.acquire() as slot:
            assert (slot.seq, slot.lost) == (10, 6)
            assert place.read(slot)[0, 0] == 6
        with frames.latest() as slot:
            assert (slot.seq, slot.lost) == (13, 2)
            assert place.read(slot)[0, 0] == 9
        with pytest.raises(gpuring.RingTimeout):
            frames.latest(timeout=0)
        (subscription,) = ring.stats().subscriptions
        assert (subscription.lost, subscription.lossless) == (8, False)


def test_late_join(place, ring):
    with ring.producer() as producer:
        for k in range(6):
            with producer.claim() as slot:
                place.fill(slot, k)
        oldest, at, after = ring.consumer(start="oldest"), ring.consumer(start=8), ring.consumer()
        for frames, seq in ((oldest, 7), (at, 8)):
            with frames.acquire() as slot:
                assert slot.seq == seq
                assert place.read(slot)[0, 0] == seq - 4
        with pytest.raises(gpuring.RingTimeout):
            after.acquire(timeout=0)


def test_stats(ring):
    empty = ring.stats()
    assert (empty.name, empty.slots, empty.cursor, empty.closed) == (ring.name, 4, 4, False)
    assert empty.creator_pid == os.getpid()
    assert empty.creator_alive
    assert (empty.subscriptions, empty.peers, empty.reaps) == ((), (), 0)
    assert abs(empty.created_ns - time.time_ns()) < 600e9
    with ring.producer() as producer, ring.consumer("a") as a, ring.consumer("a") as b:
        for _ in range(3):
            producer.claim().publish()
        claimed, held = producer.claim(), a.acquire()
        with b.acquire():
            pass
        stats = ring.stats()
        (subscription,) = stats.subscriptions
        assert (subscription.name, subscription.lag, subscription.lost) == ("a", 4, 0)
        assert subscription.members == (a.peer, b.peer)
        assert stats.producers[0].holding[0].seq == claimed.seq
        by_number = {peer.number: peer for peer in stats.peers}
        assert [hold.seq for hold in by_number[a.peer].holding] == [held.seq]
        assert by_number[b.peer].holding == ()
        assert by_number[b.peer].subscription == "a"
        assert [by_number[e.peer].frames for e in (producer, a, b)] == [3, 1, 1]
        assert {peer.pid for peer in stats.peers} == {os.getpid()}
        assert all(peer.alive and not peer.waiting and not peer.stopped for peer in stats.peers)
        with pytest.raises(AttributeError):
            stats.cursor = 1
        claimed.abandon()

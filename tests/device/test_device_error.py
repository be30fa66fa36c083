"""A GPU error keeps no other slot, and hides neither what was lost nor what is torn."""

from __future__ import annotations

from functools import partial

import pytest
from support import tear

import gpuring
from device.instant_driver import (
    STREAM,
    Sync,
    count_a_death,
    fences,
    no_current_stream,
    pay,
    raises_at,
)
from gpuring import _core, debug


def test_a_slot_that_is_published_after_its_events_were_given_up(ring):
    """What a Ring.close() that found a GPU error leaves behind."""
    ring._sync = Sync(ring._header, events=True)
    producer = ring.producer()
    ring._sync.rows[producer.peer] = _core.EventRow(producer._peer.id, ring.slots)
    first, second = producer.claim(), producer.claim()
    first.publish()
    ring._sync.rows[:] = [None] * len(ring._sync.rows)  # EventSync.close
    ring._sync._header.raise_fence(producer.peer, first.index, first.seq << 16)
    second.publish()
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


def test_what_a_lossy_reader_lost_is_told_after_a_batch_that_failed(ring, open_fence):
    producer, _ = open_fence  # frame 4
    reader = ring.consumer(lossless=False, start="oldest")
    for _ in range(3):
        producer.claim(stream=STREAM).publish()
    pay(ring, producer, 0)
    for _ in range(5):
        producer.claim(stream=STREAM).publish()
    ring._sync.disarm()
    ring._sync.record = lambda *_: None
    producer.claim(stream=STREAM).publish()  # frame 13: open
    del ring._sync.record
    ring._sync.rearm()
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        reader.acquire_many(4, 0, stream=STREAM)
    ring._sync.driver.status = 0
    batch = reader.acquire_many(4, 0, stream=STREAM)
    assert [(slot.seq, slot.lost) for slot in batch] == [(10, 6), (11, 0), (12, 0), (13, 0)]
    batch.release()
    for slot in range(ring.slots):
        pay(ring, producer, slot)


@pytest.mark.parametrize("debugging", [False, True])
@pytest.mark.parametrize("verb", ["publish", "release"])
def test_one_slot_of_a_batch_that_cannot_be_recorded_does_not_keep_the_others(
    ring, verb, debugging, monkeypatch
):
    """On several streams, or with events, a batch is recorded slot by slot.  What is behind a frame
    that cannot be published is not published either."""
    monkeypatch.setattr(debug, "ON", debugging)
    producer, reader = ring.producer(), ring.consumer()
    batch = producer.claim_many(3)
    if verb == "release":
        batch.publish()
        batch = reader.acquire_many(3)
    bad = batch[1].index

    def record(peer, index, value, streams):
        if index == bad:
            raise gpuring.DeviceError("no")
        ring._header.raise_fence(peer.number, index, value)

    ring._sync.disarm()
    ring._sync.record = record
    with pytest.raises(gpuring.DeviceError, match="no"):
        batch.publish() if verb == "publish" else batch.release()
    del ring._sync.record
    assert (producer if verb == "publish" else reader)._peer.holding() == []
    if verb == "publish":
        assert [slot.seq for slot in reader.acquire_many(3)] == [4]


def test_a_slot_whose_current_stream_cannot_be_had_is_still_ours(ring):
    producer = ring.producer()
    slot = producer.claim()
    no_current_stream(ring)
    with pytest.raises(OSError, match="no current stream"):
        slot.publish()
    ring._sync.rearm()
    slot.publish()
    assert ring._header.frontier == 5


# ---- a GPU error and a torn frame at once --------------------------------------------------------


def told_later(reader, how):
    """What the consumer says of torn frames after an error that could not name them."""
    with pytest.raises(gpuring.FrameTorn) as caught:
        reader.acquire(0) if how == "acquire" else reader.close()
    with pytest.raises(gpuring.RingTimeout if how == "acquire" else gpuring.RingClosed):
        reader.acquire(0)  # told once
    return caught.value.seqs


@pytest.mark.parametrize("how", ["acquire", "close"])
@pytest.mark.parametrize("together", [True, False])
def test_a_gpu_error_in_a_batch_hides_no_torn_frame(ring, together, how):
    """together: all are recorded by one call, which fails; else one record of three."""
    producer, reader = ring.producer(), ring.consumer()
    producer.claim_many(3).publish()
    batch = reader.acquire_many(3)
    tear(ring, batch[0].seq)
    tear(ring, batch[2].seq)
    if together:
        ring._sync.driver.status = 1
    else:
        raises_at(ring, batch[1].index)
    with pytest.raises(gpuring.DeviceError):
        batch.release()
    ring._sync.driver.status = 0
    ring._sync.rearm()
    assert reader._peer.holding() == []
    assert gpuring.select([reader], 0) == [reader]
    assert told_later(reader, how) == (4, 6)


@pytest.mark.parametrize("how", ["acquire", "close"])
def test_a_gpu_error_at_release_hides_no_torn_frame(ring, how):
    producer, reader = ring.producer(), ring.consumer()
    producer.claim().publish()
    slot = reader.acquire()
    tear(ring, slot.seq)
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        slot.release()
    ring._sync.driver.status = 0
    assert told_later(reader, how) == (4,)


@pytest.mark.parametrize("how", ["acquire", "close"])
@pytest.mark.parametrize("many", [False, True])
def test_a_frame_whose_release_met_a_gpu_error_may_turn_out_torn_later(ring, open_fence, many, how):
    """Its producer's GPU was still at work on it."""
    producer, index = open_fence
    reader = ring.consumer(start="oldest")
    take = partial(reader.acquire_many, 2) if many else reader.acquire
    slot = take(stream=STREAM)
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        slot.release()
    ring._sync.driver.status = 0
    with pytest.raises(gpuring.RingTimeout):
        reader.acquire(0)
    tear(ring, 4)
    pay(ring, producer, index)
    count_a_death(ring)
    assert told_later(reader, how) == (4,)

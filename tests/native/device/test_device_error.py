"""A GPU error keeps no other slot, and hides neither what was lost nor what is torn."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

import gpuring
from gpuring.ring import debug
from tests.helpers.words import tear
from tests.native.device.instant_driver import STREAM, at, count_a_death, fences, pay, raises_at


@pytest.mark.parametrize("verb", ["publish", "claim", "close", "use_on"])
def test_a_slot_that_a_closed_ring_could_not_end_may_still_be_used(ring, verb):
    """The device of the slot lives as long as somebody may call it."""
    producer = ring.producer()
    slot = producer.claim()
    ring.driver.capturing = {STREAM}
    with pytest.raises(gpuring.DeviceError, match="is being captured"):
        ring.close()
    assert ring.closed
    assert slot._open
    ring.driver.capturing = set()
    verbs = {
        "publish": slot.publish, "claim": lambda: producer.claim(0), "close": producer.close,
        "use_on": lambda: slot.use_on(STREAM + 4),
    }  # fmt: skip
    with contextlib.suppress(gpuring.RingError, OSError):  # its locks are gone
        verbs[verb]()
    slot.publish() if slot._open else None
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


def test_what_a_lossy_reader_lost_is_told_after_a_batch_that_failed(ring, open_fence):
    producer, _ = open_fence  # frame 4
    reader = ring.consumer(lossless=False, start="oldest")
    for _ in range(3):
        producer.claim(stream=STREAM).publish()
    pay(ring, producer, 0)
    for _ in range(5):
        producer.claim(stream=STREAM).publish()
    ring.driver.stuck = True
    producer.claim(stream=STREAM).publish()  # frame 13: open
    ring.driver.refuse(1)
    with pytest.raises(gpuring.DeviceError):
        reader.acquire_many(4, 0, stream=STREAM)
    ring.driver.refuse(0)
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
    """On several streams, or with events, a batch is recorded slot by slot.  Frames behind one that
    cannot be published are not published either."""
    monkeypatch.setattr(debug, "ON", debugging)
    producer, reader = ring.producer(), ring.consumer()
    batch = producer.claim_many(3)
    if verb == "release":
        batch.publish()
        batch = reader.acquire_many(3)
    batch[0].use_on(STREAM + 4)  # so each has a record of its own
    bad = batch[1].index
    raises_at(ring, bad)
    with pytest.raises(gpuring.DeviceError, match=at(bad)):
        batch.publish() if verb == "publish" else batch.release()
    raises_at(ring)
    assert (producer if verb == "publish" else reader)._peer.holding() == []
    if verb == "publish":
        assert [slot.seq for slot in reader.acquire_many(3)] == [4]


def test_a_slot_whose_current_stream_cannot_be_had_is_still_ours(ring):
    producer = ring.producer()
    slot = producer.claim()
    ring.driver.has_current_stream = False
    with pytest.raises(OSError, match="no current stream"):
        slot.publish()
    ring.driver.has_current_stream = True
    slot.publish()
    assert ring._header.frontier == 5


# ---- a GPU error and a torn frame at once --------------------------------------------------------


def told_later(reader, how):
    """The sequences that the consumer reports as torn after an error that could not name them."""
    with pytest.raises(gpuring.FrameTorn) as caught:
        reader.acquire(0) if how == "acquire" else reader.close()
    with pytest.raises(gpuring.RingTimeout if how == "acquire" else gpuring.RingClosed):
        reader.acquire(0)  # reported once
    return caught.value.seqs


@pytest.mark.parametrize("how", ["acquire", "close"])
@pytest.mark.parametrize("together", [True, False])
def test_a_gpu_error_in_a_batch_hides_no_torn_frame(ring, together, how):
    """`together`: one call records all, and fails.  Otherwise one of three records fails."""
    producer, reader = ring.producer(), ring.consumer()
    producer.claim_many(3).publish()
    batch = reader.acquire_many(3)
    tear(ring, batch[0].seq)
    tear(ring, batch[2].seq)
    if not together:
        batch[0].use_on(STREAM + 4)
    raises_at(ring, batch[1].index)
    with pytest.raises(gpuring.DeviceError, match=at(batch[1].index)):
        batch.release()
    raises_at(ring)
    assert reader._peer.holding() == []
    assert gpuring.select([reader], 0) == [reader]
    assert told_later(reader, how) == (4, 6)


@pytest.mark.parametrize("how", ["acquire", "close"])
@pytest.mark.parametrize("many", [False, True])
def test_a_frame_whose_release_met_a_gpu_error_may_turn_out_torn_later(ring, open_fence, many, how):
    """The producer's GPU was still writing the frame."""
    producer, index = open_fence
    reader = ring.consumer(start="oldest")
    take = partial(reader.acquire_many, 2) if many else reader.acquire
    slot = take(stream=STREAM)
    ring.driver.refuse(1)
    with pytest.raises(gpuring.DeviceError):
        slot.release()
    ring.driver.refuse(0)
    with pytest.raises(gpuring.RingTimeout):
        reader.acquire(0)
    tear(ring, 4)
    pay(ring, producer, index)
    count_a_death(ring)
    assert told_later(reader, how) == (4,)

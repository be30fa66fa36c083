"""How a batch ends: slot by slot, as a whole, by an exception, with its endpoint; never twice."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.rings import drain
from tests.ring.batch import idle, put, seqs_of


def test_slots_published_one_by_one_are_left_alone(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim_many(4, 0) as batch:
            batch[0].publish()
            batch[2].abandon()
            assert drain(frames) == [4]
        assert drain(frames) == [5, 7]
        batch.publish()
        batch.abandon()
        assert ring.stats().producers[0].frames == 3


def test_frames_released_one_by_one_are_left_alone(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 4)
        with frames.acquire_many(4, 0) as batch:
            batch[1].release()
            assert [seq for _, seq in sorted(frames._peer.holding())] == [4, 6, 7]
        assert idle(frames)
        batch.release()
        put(place, producer, 4)
        assert drain(frames) == [8, 9, 10, 11]


def test_a_slot_that_was_claimed_again_is_not_the_batchs_any_more(place, ring):
    """An old batch changes neither the new claim nor its slot object."""
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim_many(2, 0) as batch:
            for slot in list(batch):
                slot.publish()
            put(place, producer, 2)
            assert drain(frames) == [4, 5, 6, 7]
            again = producer.claim_many(2, 0)
            assert again[0] is not batch[0]
            assert seqs_of(again) == [8, 9]
        batch.publish()
        batch.abandon()
        assert len(producer._peer.holding()) == 2
        assert drain(frames) == []
        again.publish()
        assert drain(frames) == [8, 9]


def test_a_frame_that_was_acquired_again_is_not_the_batchs_any_more(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 2)
        with frames.acquire_many(2, 0) as batch:
            for slot in list(batch):
                slot.release()
            put(place, producer, 4)
            others = frames.acquire_many(2, 0)
            again = frames.acquire_many(2, 0)
            assert again[0] is not batch[0]
        batch.release()
        assert len(frames._peer.holding()) == 4
        assert seqs_of(others + again) == [6, 7, 8, 9]


def test_an_exception_abandons_what_is_open_and_releases_what_is_held(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        batch = producer.claim_many(4, 0)
        batch[1].publish()
        with pytest.raises(ZeroDivisionError), batch:
            place.fill(batch[0], 1 / 0)
        assert idle(producer)
        assert drain(frames) == [5]
        assert put(place, producer, 4) == [8, 9, 10, 11]
        batch = frames.acquire_many(4, 0)
        batch[0].release()
        with pytest.raises(ZeroDivisionError), batch:
            place.fill(None, 1 / 0)
        assert idle(frames)
        assert put(place, producer, 4) == [12, 13, 14, 15]


def test_abandoned_batches_are_passed_over_and_gate_nobody(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        for lap in range(5):
            producer.claim_many(3, 0).abandon()
            assert put(place, producer) == [4 * lap + 7]
            with frames.acquire_many(4, 0) as batch:
                assert seqs_of(batch) == [4 * lap + 7]


def test_the_slots_of_a_batch_are_nobodys_after_its_end(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim_many(2, 0) as written:
            pass
        with frames.acquire_many(2, 0) as read:
            pass
        for slot in (*written, *read):
            with pytest.raises(gpuring.RingError, match="no longer yours"):
                _ = slot.array
        for use in (written[0].publish, written[1].abandon, read[0].release, read[1].check):
            with pytest.raises(gpuring.RingError, match="no longer yours"):
                use()


def test_several_batches_at_once_may_end_in_any_order(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        first, second = producer.claim_many(2, 0), producer.claim_many(2, 0)
        second.publish()
        with pytest.raises(gpuring.RingTimeout):
            frames.acquire_many(4, 0)
        first.publish()
        one, two = frames.acquire_many(3, 0), frames.acquire_many(3, 0)
        assert (seqs_of(one), seqs_of(two)) == ([4, 5, 6], [7])
        two.release()
        with pytest.raises(gpuring.RingFull, match="sequence 4"):
            producer.claim_many(4, 0)
        one.release()
        with producer.claim_many(4, 0) as batch:
            assert seqs_of(batch) == [8, 9, 10, 11]


# ---- closed endpoints --------------------------------------------------------------------------


def test_a_closed_endpoint_makes_no_batch(place, ring):
    producer, frames = ring.producer(), ring.consumer()
    producer.close()
    frames.close()
    for many in (producer.claim_many, frames.acquire_many):
        with pytest.raises(gpuring.RingClosed, match="was closed"):
            many(2, 0)


def test_close_abandons_an_open_batch(place, ring):
    with ring.consumer() as frames, ring.producer() as other:
        producer = ring.producer()
        batch = producer.claim_many(3, 0)
        batch[0].publish()
        producer.close()
        with pytest.raises(gpuring.RingClosed, match=r"sequence 5.* was given back"):
            batch.publish()
        batch.abandon()
        for slot in batch[1:]:
            with pytest.raises(gpuring.RingClosed):
                slot.publish()
        assert drain(frames) == [4]
        assert put(place, other, 4) == [7, 8, 9, 10]


def test_close_releases_an_open_batch(place, ring):
    with ring.producer() as producer, ring.consumer("shared") as other:
        put(place, producer, 4)
        frames = ring.consumer("shared")
        with frames.acquire_many(3, 0) as batch:
            batch[2].release()
            frames.close()
        batch.release()
        assert drain(other) == [7]
        assert put(place, producer, 4) == [8, 9, 10, 11]


def test_closing_the_ring_ends_open_batches(place, name):
    ring = place.create(name, slots=4, shape=(16,), dtype="u1")
    producer, frames = ring.producer(), ring.consumer()
    put(place, producer, 2)
    held, claimed = frames.acquire_many(1, 0), producer.claim_many(1, 0)
    with pytest.raises(gpuring.RingClosed), held, claimed:
        ring.close()
    assert not held[0]._open
    assert not claimed[0]._open

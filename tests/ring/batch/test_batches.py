"""Several slots by one call: how many, which, and what is waited for.

Device order of batches: the tests over a fake driver say which driver calls are made,
test_gpu_order.py that they order anything.
"""

from __future__ import annotations

import threading

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S
from tests.helpers.rings import drain
from tests.ring.batch import idle, put, seqs_of

# ---- how many, and which -----------------------------------------------------------------------


def test_frames_go_through_in_batches(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        first = 4
        for _ in range(10):
            with producer.claim_many(3, 5) as batch:
                assert isinstance(batch, tuple)
                assert seqs_of(batch) == [first, first + 1, first + 2]
                assert [slot.index for slot in batch] == [slot.seq % 4 for slot in batch]
                for slot in batch:
                    place.fill(slot, slot.seq)
            with frames.acquire_many(3, 5) as batch:
                assert seqs_of(batch) == [first, first + 1, first + 2]
                for slot in batch:
                    assert (place.read(slot) == slot.seq).all()
                    assert (slot.lost, slot.redelivered) == (0, False)
            first += 3
        assert idle(producer, frames)


def test_a_claim_takes_what_is_free_and_at_most_what_was_asked_for(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer)
        batch = producer.claim_many(2, 0)
        assert seqs_of(batch) == [5, 6]
        rest = producer.claim_many(2, None)  # may wait for ever, but only for the first slot
        assert seqs_of(rest) == [7]
        with pytest.raises(gpuring.RingFull):
            producer.claim_many(2, 0)
        batch.publish()
        rest.publish()
        assert drain(frames) == [4, 5, 6, 7]


def test_an_acquire_takes_what_is_published_and_at_most_what_was_asked_for(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 3)
        batch = frames.acquire_many(2, 0)
        assert seqs_of(batch) == [4, 5]
        rest = frames.acquire_many(2, None)
        assert seqs_of(rest) == [6]
        with pytest.raises(gpuring.RingTimeout):
            frames.acquire_many(2, 0)
        rest.release()
        batch.release()


@pytest.mark.parametrize("n", [4, 5, 2**31, 2**80])
def test_more_than_the_ring_has_is_all_of_it(place, ring, n):
    with ring.producer() as producer, ring.consumer() as frames:
        producer.claim_many(n, 0).publish()
        with frames.acquire_many(n, 0) as batch:
            assert len(batch) == 4


def test_wrong_arguments_claim_and_hold_nothing(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 2)
        for many in (producer.claim_many, frames.acquire_many):
            for n in (0, -1, -(2**80)):
                with pytest.raises(ValueError, match="at least one"):
                    many(n, 0)
            for n in (1.5, True, "2", None):
                with pytest.raises(TypeError, match="n must be an int, not"):
                    many(n, 0)
            with pytest.raises(TypeError):
                many(2, 0, stream="s")
            with pytest.raises(ValueError, match="timeout"):
                many(2, -1)
        assert idle(producer, frames)
        assert drain(frames) == [4, 5]


# ---- waiting, and when there is none -----------------------------------------------------------


def test_a_full_ring_is_waited_for(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 4)
        claimed = []
        waiter = threading.Thread(target=lambda: claimed.extend(producer.claim_many(3, PATIENCE_S)))
        waiter.start()
        frames.acquire_many(2, 0).release()
        waiter.join(PATIENCE_S)
        assert 1 <= len(claimed) <= 2  # the first was free, and the second perhaps not yet
        assert claimed[0].seq == 8
        for slot in claimed:
            slot.abandon()


def test_who_is_in_the_way_is_named(place, ring):
    with ring.producer() as producer, ring.consumer("tail") as frames:
        put(place, producer, 4)
        with pytest.raises(gpuring.RingFull, match=r"'tail'.*sequence 4"):
            producer.claim_many(2, 0)
        held = frames.acquire_many(1, 0)
        with pytest.raises(gpuring.RingFull, match=f"peer {frames.peer}.*has held sequence 4"):
            producer.claim_many(2, 0.01)
        held.release()
        assert idle(producer, frames)


def test_a_batch_that_is_being_written_is_waited_for(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        batch = producer.claim_many(2, 0)
        with pytest.raises(gpuring.RingTimeout, match="writing sequence 4"):
            frames.acquire_many(2, 0)
        batch[1].publish()
        with pytest.raises(gpuring.RingTimeout, match="writing sequence 4"):
            frames.acquire_many(2, 0)
        batch[0].publish()
        with frames.acquire_many(2, 0) as held:
            assert seqs_of(held) == [4, 5]


def test_the_end_of_the_stream_comes_after_everything_was_read(place, ring):
    with ring.consumer() as frames:
        with ring.producer() as producer:
            put(place, producer, 3)
        with frames.acquire_many(2, 0) as batch:
            assert seqs_of(batch) == [4, 5]
        with frames.acquire_many(2, None) as batch:  # does not wait for a second frame
            assert seqs_of(batch) == [6]
        for _ in range(2):
            with pytest.raises(gpuring.EndOfStream):
                frames.acquire_many(2, None)


def test_a_closed_ring_takes_no_batch(name):
    with (
        gpuring.create(name, slots=4, shape=8, dtype="u1", device="host") as creator,
        gpuring.attach(name) as ring,
    ):
        producer = ring.producer()
        creator.close()
        with pytest.raises(gpuring.RingClosed):
            producer.claim_many(2, None)
        assert idle(producer)


# ---- shared, lossy -----------------------------------------------------------------------------


def test_members_share_a_subscription_by_batches(place, ring):
    with (
        ring.producer() as producer,
        ring.consumer("shared") as one,
        ring.consumer("shared") as two,
        ring.consumer() as other,
    ):
        put(place, producer, 4)
        first, second = one.acquire_many(3, 0), two.acquire_many(3, 0)
        assert (seqs_of(first), seqs_of(second)) == ([4, 5, 6], [7])
        with other.acquire_many(4, 0) as everything:
            assert seqs_of(everything) == [4, 5, 6, 7]
        second.release()
        with pytest.raises(gpuring.RingFull):
            producer.claim_many(1, 0)
        first.release()
        with producer.claim_many(4, 0) as batch:
            assert len(batch) == 4


def test_what_a_lossy_consumer_was_made_to_skip_is_told_with_the_first(place, ring):
    with ring.producer() as producer, ring.consumer(lossless=False) as frames:
        put(place, producer, 10)  # 4 … 13, of which 10 … 13 are there
        with frames.acquire_many(2, 0) as batch:
            assert [(slot.seq, slot.lost) for slot in batch] == [(10, 6), (11, 0)]
        put(place, producer, 5)  # 12, 13 and 14 are gone
        with frames.acquire_many(9, 0) as batch:
            assert [(slot.seq, slot.lost) for slot in batch] == [
                (15, 3), (16, 0), (17, 0), (18, 0),
            ]  # fmt: skip
        assert ring.stats().subscriptions[0].lost == 9


def test_a_void_inside_a_lossy_batch_is_told_with_the_frame_behind_it(place, ring):
    with ring.producer() as producer, ring.consumer(lossless=False) as frames:
        with producer.claim_many(4, 0) as batch:
            batch[1].abandon()
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.lost) for slot in batch] == [(4, 0), (6, 1), (7, 0)]


def test_a_lossy_reader_that_holds_a_batch_is_not_overwritten(place, ring):
    """The sequences of its slots are void until it releases them.  The ring goes on with the other
    slots."""
    with ring.producer() as producer, ring.consumer(lossless=False) as frames:
        put(place, producer, 4)
        batch = frames.acquire_many(2, 0)
        for _ in range(3):
            with producer.claim_many(4, 0) as claimed:
                assert {slot.index for slot in claimed} <= {2, 3}
                for slot in claimed:
                    place.fill(slot, 0)
        assert [int(place.read(slot)[0]) for slot in batch] == [4, 5]
        batch.release()

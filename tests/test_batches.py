"""Several slots by one call: what a batch holds, how it ends, and that nothing is left of it.

Device order of batches: test_device_order.py says which driver calls are made,
gpu/test_gpu_batches.py that they order anything.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from support import PLACES, poll
from test_torn import Victim, make

import gpuring
from gpuring import _core

PATIENCE_S = 10


@pytest.fixture(
    params=[
        pytest.param(place, id=place.name, marks=[pytest.mark.gpu] if place.on_gpu else [])
        for place in PLACES
        if "hostgate" not in place.name
    ]
)
def place(request):
    """With the host gate a call that may not block may find that the GPU is not done: that is for
    gpu/test_gpu_batches.py."""
    return request.param


@pytest.fixture
def ring(place, name):
    with place.create(name, slots=4, shape=(16,), dtype="u1") as ring:
        yield ring


def put(place, producer, frames=1):
    """Publishes frames filled with their sequence; the sequences."""
    seqs = []
    for _ in range(frames):
        with producer.claim(0) as slot:
            place.fill(slot.array, slot.seq)
            seqs.append(slot.seq)
    return seqs


def seqs_of(batch):
    return [slot.seq for slot in batch]


def drain(consumer):
    """Everything that can be read now."""
    seqs = []
    while True:
        try:
            with consumer.acquire(0) as slot:
                seqs.append(slot.seq)
        except gpuring.RingTimeout:
            return seqs


def idle(*endpoints):
    """Whether nobody has claimed or holds anything, by the header's words."""
    return [each._peer.holding() for each in endpoints] == [[] for _ in endpoints]


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
                    place.fill(slot.array, slot.seq)
            with frames.acquire_many(3, 5) as batch:
                assert seqs_of(batch) == [first, first + 1, first + 2]
                for slot in batch:
                    assert (place.read(slot.array) == slot.seq).all()
                    assert (slot.lost, slot.redelivered) == (0, False)
            first += 3
        assert idle(producer, frames)


def test_a_claim_takes_what_is_free_and_at_most_what_was_asked_for(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer)
        batch = producer.claim_many(2, 0)
        assert seqs_of(batch) == [5, 6]
        rest = producer.claim_many(2, None)  # for ever, but only for the first
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


@pytest.mark.parametrize("n", [0, -1, -(2**80)])
def test_less_than_one_is_an_error(place, ring, n):
    with ring.producer() as producer, ring.consumer() as frames:
        for many in (producer.claim_many, frames.acquire_many):
            with pytest.raises(ValueError, match="at least one"):
                many(n, 0)
        put(place, producer, 4)
        for many in (producer.claim_many, frames.acquire_many):
            with pytest.raises(ValueError, match="at least one"):
                many(n, 0)
        assert idle(producer, frames)
        assert drain(frames) == [4, 5, 6, 7]


def test_wrong_arguments_claim_and_hold_nothing(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 2)
        for many in (producer.claim_many, frames.acquire_many):
            with pytest.raises(TypeError):
                many("2", 0)
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
        with pytest.raises(gpuring.RingFull, match=r"'tail'.*frame 4"):
            producer.claim_many(2, 0)
        held = frames.acquire_many(1, 0)
        with pytest.raises(gpuring.RingFull, match=f"peer {frames.peer}.*holds frame 4"):
            producer.claim_many(2, 0.01)
        held.release()
        assert idle(producer, frames)


def test_a_batch_that_is_being_written_is_waited_for(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        batch = producer.claim_many(2, 0)
        with pytest.raises(gpuring.RingTimeout, match="writing frame 4"):
            frames.acquire_many(2, 0)
        batch[1].publish()
        with pytest.raises(gpuring.RingTimeout, match="writing frame 4"):
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
        with frames.acquire_many(2, None) as batch:  # not blocked: the end is no frame
            assert seqs_of(batch) == [6]
        for _ in range(2):
            with pytest.raises(gpuring.EndOfStream):
                frames.acquire_many(2, None)


def test_a_closed_ring_takes_no_batch(name):
    with make(name) as creator, gpuring.attach(name) as ring:
        producer = ring.producer()
        creator.close()
        with pytest.raises(gpuring.RingClosed):
            producer.claim_many(2, None)
        assert idle(producer)


def claims_batch(pipe, name):
    batch = gpuring.attach(name, timeout=PATIENCE_S).producer().claim_many(3, PATIENCE_S)
    pipe.send(seqs_of(batch))
    pipe.receive()


def test_a_producer_that_dies_with_a_batch_is_lost_and_its_claims_are_void(name, children):
    with make(name) as ring, ring.consumer() as frames:
        child = children(claims_batch, name)
        assert child.receive() == [4, 5, 6]
        child.kill()
        with pytest.raises(gpuring.PeerLost):
            frames.acquire_many(2, PATIENCE_S)
        with ring.producer() as producer:
            producer.claim_many(4, PATIENCE_S).publish()
            with frames.acquire_many(4, 0) as batch:
                assert seqs_of(batch) == [7, 8, 9, 10]


def holds_batch(pipe, name):
    batch = gpuring.attach(name, timeout=PATIENCE_S).consumer("shared").acquire_many(2, PATIENCE_S)
    pipe.send(seqs_of(batch))
    pipe.receive()


def test_the_frames_of_a_member_that_dies_with_a_batch_go_to_its_fellow(name, children):
    with make(name) as ring, ring.producer() as producer, ring.consumer("shared") as fellow:
        for _ in range(3):
            producer.claim(0).publish()
        child = children(holds_batch, name)
        assert child.receive() == [4, 5]
        with fellow.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.redelivered) for slot in batch] == [(6, False)]
        child.kill()
        reopened = []
        while len(reopened) < 2:  # one by one, as the reaper opens them
            with fellow.acquire_many(4, PATIENCE_S) as batch:
                reopened += [(slot.seq, slot.redelivered) for slot in batch]
        assert reopened == [(4, True), (5, True)]


# ---- how a batch ends --------------------------------------------------------------------------


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
    """Slot objects are used again each lap: an old batch has the object, but not the claim."""
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim_many(2, 0) as batch:
            for slot in list(batch):
                slot.publish()
            put(place, producer, 2)
            assert drain(frames) == [4, 5, 6, 7]
            again = producer.claim_many(2, 0)
            assert again[0] is batch[0]
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
            assert seqs_of(frames.acquire_many(2, 0)) == [6, 7]
            again = frames.acquire_many(2, 0)
            assert again[0] is batch[0]
        batch.release()
        assert len(frames._peer.holding()) == 4
        assert seqs_of(again) == [8, 9]


def test_an_exception_abandons_what_is_open(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        batch = producer.claim_many(4, 0)
        batch[1].publish()
        with pytest.raises(ZeroDivisionError), batch:
            place.fill(batch[0].array, 1 / 0)
        assert idle(producer)
        assert drain(frames) == [5]
        assert put(place, producer) == [8]
        assert drain(frames) == [8]


def test_an_exception_releases_what_is_held(place, ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(place, producer, 4)
        batch = frames.acquire_many(4, 0)
        batch[0].release()
        with pytest.raises(ZeroDivisionError), batch:
            place.fill(None, 1 / 0)
        assert idle(frames)
        assert put(place, producer, 4) == [8, 9, 10, 11]


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
        with pytest.raises(gpuring.RingFull, match="frame 4"):
            producer.claim_many(4, 0)
        one.release()
        with producer.claim_many(4, 0) as batch:
            assert seqs_of(batch) == [8, 9, 10, 11]


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
    """Its slots are void until it lets go; the ring goes on with the others."""
    with ring.producer() as producer, ring.consumer(lossless=False) as frames:
        put(place, producer, 4)
        batch = frames.acquire_many(2, 0)
        for _ in range(3):
            with producer.claim_many(4, 0) as claimed:
                assert {slot.index for slot in claimed} <= {2, 3}
                for slot in claimed:
                    place.fill(slot.array, 0)
        assert [int(place.read(slot.array)[0]) for slot in batch] == [4, 5]
        batch.release()


# ---- torn frames -------------------------------------------------------------------------------


def test_every_torn_frame_of_a_batch_is_named_when_all_are_released(name, children):
    with make(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 4)
        poll(lambda: ring.stats().cursor == 8)
        batch = frames.acquire_many(4, PATIENCE_S)
        for slot in batch[1:3]:
            victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn, match=r"frames \[5, 6\] are torn") as caught:
            batch.release()
        assert caught.value.seqs == (5, 6)
        assert idle(frames)
        assert not any(slot._open for slot in batch)
        with pytest.raises(gpuring.PeerLost):  # told once
            frames.acquire_many(2, 0)
        frames.close()


def test_a_torn_frame_does_not_hide_the_error_of_the_block(name, children):
    with make(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 2)
        poll(lambda: ring.stats().cursor == 6)
        batch = frames.acquire_many(2, PATIENCE_S)
        victim.stick(batch[0])
        victim.die()
        with pytest.raises(gpuring.FrameTorn) as caught, batch:
            raise ZeroDivisionError
        assert isinstance(caught.value.__context__, ZeroDivisionError)
        assert caught.value.seqs == (4,)
        assert idle(frames)


def test_frames_that_turn_out_torn_are_told_before_the_next_batch(name, children):
    with make(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 3)
        poll(lambda: ring.stats().cursor == 7)
        with frames.acquire_many(2, PATIENCE_S) as batch:
            for slot in batch:
                victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn) as caught:
            frames.acquire_many(2, 0)
        assert caught.value.seqs == (4, 5)
        assert idle(frames)
        with frames.acquire_many(2, 0) as batch:
            assert seqs_of(batch) == [6]


# ---- calls that raise --------------------------------------------------------------------------


def unpay(ring, producer, index):
    """As if the producer's GPU had not got to its work on the slot."""
    header = ring._header
    fence = header.fence_region[0] + header.fence_offset(producer.peer, index)
    ctypes.c_uint64.from_address(fence).value = 1


def test_a_fence_that_is_not_paid_ends_a_batch_before_its_frame(name):
    """On the host: acquire waits for the fence of the first, and of the others not at all."""
    with make(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        producer.claim_many(4, 0).publish()
        header = ring._header
        unpay(ring, producer, 2)
        with frames.acquire_many(4, 0) as batch:
            assert seqs_of(batch) == [4, 5]
        with pytest.raises(gpuring.RingTimeout, match="GPU work"):
            frames.acquire_many(4, 0)
        assert idle(frames)
        header.raise_fence(producer.peer, 2, header.work(producer.peer, 2))
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.redelivered) for slot in batch] == [(6, False), (7, False)]


def damage(ring, slot):
    """Gives a slot's frame 99 dimensions."""
    fields = {(table, field): at for table, field, at, _ in _core.layout_fields()}
    table = 4096 + 128 * (ring._header.max_subscriptions + ring._header.max_peers)
    words = np.memmap(f"/dev/shm/gpuring.{ring.name}", np.uint64, "r+")
    words[(table + 128 * slot + fields["slot", "ndim"]) // 8] = 99


def test_a_damaged_frame_behind_the_first_is_told(name):
    """As by acquire, it is told once and passed over; the frames before it are not held."""
    with make(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        producer.claim_many(4, 0).publish()
        damage(ring, 2)
        with pytest.raises(gpuring.RingIncompatible):
            frames.acquire_many(4, 0)
        assert idle(frames)
        with frames.acquire_many(4, 0) as batch:
            assert seqs_of(batch) == [4, 5, 7]


class Full(Exception):
    pass


class NoRoom(tuple):
    def __init__(self, slots):
        raise Full


def test_a_claim_that_raises_has_claimed_nothing(name, monkeypatch):
    with make(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        monkeypatch.setattr(type(producer), "_batch", NoRoom)
        with pytest.raises(Full):
            producer.claim_many(4, 0)
        monkeypatch.undo()
        assert idle(producer)
        assert not any(slot._open for slot in producer._slots)
        producer.claim_many(4, 0).publish()
        assert drain(frames)


@pytest.mark.parametrize("lossless", [True, False])
def test_an_acquire_that_raises_holds_nothing(name, monkeypatch, lossless):
    with (
        make(name) as ring,
        ring.producer() as producer,
        ring.consumer(lossless=lossless) as frames,
    ):
        producer.claim_many(4, 0).publish()
        monkeypatch.setattr(type(frames), "_batch", NoRoom)
        with pytest.raises(Full):
            frames.acquire_many(4, 0)
        monkeypatch.undo()
        assert idle(frames)
        assert not any(slot._open for slot in frames._slots)
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.lost, slot.redelivered) for slot in batch] == [
                (seq, 0, False) for seq in (4, 5, 6, 7)
            ]


def test_what_a_batch_gave_back_and_was_then_passed_counts_as_lost(name, monkeypatch):
    with (
        make(name) as ring,
        ring.producer() as producer,
        ring.consumer(lossless=False) as frames,
    ):
        producer.claim_many(4, 0).publish()
        monkeypatch.setattr(type(frames), "_batch", NoRoom)
        with pytest.raises(Full):
            frames.acquire_many(4, 0)
        monkeypatch.undo()
        producer.claim_many(4, 0).publish()
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.lost) for slot in batch] == [(8, 4), (9, 0), (10, 0), (11, 0)]


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
        with producer.claim_many(3, 0) as batch:
            batch[0].publish()
            producer.close()
        batch.publish()
        batch.abandon()
        for slot in batch:
            with pytest.raises(gpuring.RingError, match="no longer yours"):
                slot.publish()
        assert drain(frames) == [4]
        assert put(place, other, 4) == [7, 8, 9, 10]


def test_close_releases_an_open_batch(place, ring):
    with ring.producer() as producer, ring.consumer("shared") as fellow:
        put(place, producer, 4)
        frames = ring.consumer("shared")
        with frames.acquire_many(3, 0) as batch:
            batch[2].release()
            frames.close()
        batch.release()
        assert drain(fellow) == [7]
        assert put(place, producer, 4) == [8, 9, 10, 11]


def test_closing_the_ring_ends_open_batches(place, name):
    ring = place.create(name, slots=4, shape=(16,), dtype="u1")
    producer, frames = ring.producer(), ring.consumer()
    put(place, producer, 2)
    with frames.acquire_many(1, 0) as held, producer.claim_many(1, 0) as claimed:
        ring.close()
    assert not held[0]._open
    assert not claimed[0]._open

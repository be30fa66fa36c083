"""Torn frames that were released before anybody knew, and what is lost besides: each told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from victim import Victim, make

import gpuring
from gpuring import _core, diagnosis


class Streams:
    """A synchroniser with gate "stream": nobody waits.  Whether its GPU ever gets to the work is
    the test's choice."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.stuck = stuck

    def order(self, peer, stream, owner, index, value):
        return True

    def record(self, peer, index, value, streams):
        if not self.stuck:
            peer.header.raise_fence(peer.number, index, value)


def put(producer, frames, sync):
    """Claims and publishes on a GPU; the sequences."""
    seqs = []
    for _ in range(frames):
        index = producer.peer.claim(0, sync, 0)
        assert index >= 0
        seqs.append(producer.peer.seq)
        assert producer.peer.publish(index, seqs[-1], sync, (0,), None) == 0
    return seqs


def get(reader, frames):
    """Acquires and releases on a GPU; the sequences."""
    seqs, sync = [], Streams()
    for _ in range(frames):
        index = reader.peer.acquire(0, sync, 0)
        assert index >= 0
        seqs.append(reader.peer.seq)
        assert reader.peer.release(index, seqs[-1], sync, (0,)) == 0
    return seqs


def pay(ring, producer):
    for index in range(ring.slots):
        promised = ring.creator.work(producer.number, index)
        ring.creator.raise_fence(producer.number, index, promised)


def told(reader):
    """What the next acquire says of frames that were released: their sequences."""
    result = reader.peer.acquire(0, Streams(), 0)
    return list(reader.peer.released.torn) if result == _core.TORN else result


# ---- which frames ------------------------------------------------------------------------------


def test_all_laps_of_a_slot_whose_gpu_work_was_pending_are_told(segment):
    ring, stuck = segment(2), Streams(stuck=True)
    reader, producer = ring.consumer(), ring.producer()
    seqs = []
    for _ in range(3):
        seqs += put(producer, 2, stuck)
        assert get(reader, 2) == seqs[-2:]
    producer.die()
    ring.reap()
    assert told(reader) == seqs == [2, 3, 4, 5, 6, 7]
    assert told(reader) == _core.PEER_LOST


def test_a_frame_released_below_the_one_that_was_torn_is_told_too(segment):
    """The slot's mark names the last sequence only, and that one was never read."""
    ring, stuck = segment(2), Streams(stuck=True)
    reader, producer = ring.consumer(), ring.producer()
    assert get(reader, len(put(producer, 2, stuck))) == [2, 3]
    put(producer, 2, stuck)
    producer.die()
    ring.reap()
    assert told(reader) == [2, 3]
    assert told(reader) == _core.PEER_LOST


def test_a_frame_whose_gpu_work_was_done_when_it_was_released_is_not_told(segment):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    assert get(reader, len(put(producer, 2, Streams()))) == [2, 3]
    seqs = put(producer, 2, Streams(stuck=True))
    assert get(reader, 1) == seqs[:1] == [4]
    producer.die()
    ring.reap()
    assert told(reader) == [4]
    assert told(reader) == _core.PEER_LOST


def test_gpu_work_that_is_done_after_the_release_tears_nothing(segment):
    ring, stuck = segment(2), Streams(stuck=True)
    reader, producer = ring.consumer(), ring.producer()
    put(producer, 2, stuck)
    get(reader, 2)
    pay(ring, producer)
    producer.die()
    ring.reap()
    assert told(reader) == _core.PEER_LOST
    assert reader.peer.leave() == 0
    assert not reader.peer.released.look()


def test_only_the_dead_producers_frames_are_told(segment):
    ring, stuck = segment(4), Streams(stuck=True)
    reader, victim, other = ring.consumer(), ring.producer(), ring.producer()
    mine, others = put(victim, 2, stuck), put(other, 2, stuck)
    assert get(reader, 4) == mine + others
    victim.die()
    ring.reap()
    assert told(reader) == mine
    other.die()
    ring.reap()
    assert told(reader) == others


def test_a_healthy_frame_of_another_producer_in_the_same_slot_is_not_told(segment):
    """It was still being written when its reader released it, and when the other producer died."""
    ring, stuck = segment(2), Streams(stuck=True)
    reader, victim, other = ring.consumer(), ring.producer(), ring.producer()
    put(other, 2, stuck)
    get(reader, 2)
    put(victim, 2, stuck)
    victim.die()
    ring.reap()
    pay(ring, other)
    assert told(reader) == _core.BLOCKED
    assert not reader.peer.released.look()


def test_frames_that_were_finished_before_their_producer_died_are_not_told(segment):
    """Their GPU work was done after the release, and a later frame's in the same slot never."""
    ring, stuck = segment(2), Streams(stuck=True)
    reader, victim = ring.consumer(), ring.producer()
    put(victim, 2, stuck)
    get(reader, 2)
    pay(ring, victim)
    seqs = put(victim, 2, stuck)
    get(reader, 2)
    victim.die()
    ring.reap()
    assert told(reader) == seqs


def test_frames_that_turned_out_torn_are_told_after_leaving(segment):
    ring, stuck = segment(2), Streams(stuck=True)
    reader, producer = ring.consumer(), ring.producer()
    seqs = put(producer, 2, stuck)
    get(reader, 2)
    producer.die()
    ring.reap()
    assert reader.peer.leave() == 0
    assert reader.peer.released.look()
    assert reader.peer.released.torn == seqs
    assert not reader.peer.released.look()


def test_a_frame_known_torn_at_its_release_is_told_once(segment):
    ring, stuck = segment(2), Streams(stuck=True)
    reader, producer = ring.consumer(), ring.producer()
    put(producer, 1, stuck)
    index = reader.peer.acquire(0, Streams(), 0)
    producer.die()
    ring.reap()
    assert reader.peer.release(index, reader.peer.seq, Streams(), (0,)) == _core.TORN
    assert told(reader) == _core.PEER_LOST
    assert not reader.peer.released.look()


def test_an_older_mark_of_the_slot_tears_nothing(segment):
    ring, stuck = segment(2), Streams(stuck=True)
    reader, victim, other = ring.consumer(), ring.producer(), ring.producer()
    seqs = put(victim, 2, stuck)
    get(reader, 2)
    victim.die()
    ring.reap()
    assert told(reader) == seqs
    put(other, 2, stuck)
    get(reader, 2)
    pay(ring, other)
    assert not reader.peer.released.look()


def test_ready_is_whoever_would_be_told(segment):
    """Not before the death is counted, as the last thing that a reaper does: acquire looks then."""
    ring, stuck = segment(2), Streams(stuck=True)
    reader, victim = ring.consumer(), ring.producer()
    seqs = put(victim, 2, stuck)
    get(reader, 2)
    for index in range(2):  # as a reaper does, up to there
        ring.poke("tear", "id", victim.peer.id, ring.work_row(index, victim.number))
    pay(ring, victim)
    assert not _core.ready(reader.peer)
    assert told(reader) == _core.BLOCKED
    ring.poke("head", "reaps", ring.peek("head", "reaps") + 1)
    assert _core.ready(reader.peer)
    assert told(reader) == seqs
    assert not _core.ready(reader.peer)


@pytest.mark.parametrize(
    ("seqs", "words"),
    [
        ([5], "frame 5"),
        ([5, 7], "frames 5, 7"),
        ([7, 6, 5], "frames 5–7, 3 of them"),
        (range(6, 1022), "frames 6–1021, 1,016 of them"),
        ([4, 6, 7, 9, 12, 13], "frames 4, 6–7, 9, 12–13, 6 of them"),
        (range(0, 10, 2), "frames 0, 2, 4, 6, 8"),
        (range(0, 4000, 2), "frames 0, 2, 4, 6, 8 and 1,995 more, 2,000 of them"),
    ],
)
def test_torn_frames_are_named_in_few_words(seqs, words):
    for released in (False, True):
        error = diagnosis.torn("r", seqs, released=released)
        assert f"'r': {words}" in str(error)
        assert len(str(error)) < 300
        assert error.seqs == tuple(seqs)


# ---- lost, and given back ----------------------------------------------------------------------


def unpaid(ring, producer):
    """As if the producer's GPU had not got to its work: an acquire on the host gives back."""
    for index in range(ring.slots):
        ring.poke("fence", "", 1, ring.work_row(index, producer.number))


def test_what_was_lost_before_a_frame_that_went_back_is_told_with_the_next(segment):
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(10)  # 4 … 13, of which 10 … 13 are there
    unpaid(ring, producer)
    assert reader.acquire() == _core.BLOCKED
    pay(ring, producer)
    assert (reader.acquire(), reader.peer.lost) == (10, 6)
    assert (reader.acquire(), reader.peer.lost) == (11, 0)
    assert ring.peek("sub", "lost", reader.subscription) == 6


def test_a_frame_that_went_back_and_was_then_passed_counts_as_lost(segment):
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(4)
    unpaid(ring, producer)
    assert reader.acquire() == _core.BLOCKED
    pay(ring, producer)
    producer.put(4)
    assert (reader.acquire(), reader.peer.lost) == (8, 4)
    assert reader.release(8) == 0
    assert reader.drain() == ([9, 10, 11], _core.BLOCKED)
    assert ring.peek("peer", "lost", reader.number) == 4
    assert ring.peek("peer", "frames", reader.number) == 4


# ---- consumers ---------------------------------------------------------------------------------


def released_torn(consumer, victim, frames=1):
    """Reads frames, releases them, and lets their producer die; their sequences."""
    seqs = []
    for _ in range(frames):
        slot = consumer.acquire(10)
        victim.stick(slot)
        slot.release()
        seqs.append(slot.seq)
    victim.die()
    return seqs


def leave_without(consumer, error):
    """close() says nothing, and neither does an acquire before it."""
    with pytest.raises(error):
        consumer.acquire(0)
    consumer.close()
    assert consumer.closed


@pytest.mark.parametrize("how", ["acquire", "latest", "close"])
def test_released_frames_that_turn_out_torn_are_told_once(name, children, how):
    with make(name) as ring:
        consumer = ring.consumer(lossless=how != "latest")
        seqs = released_torn(consumer, Victim(ring, children, 3), 3)
        with pytest.raises(
            gpuring.FrameTorn, match=f"frames {seqs[0]}–{seqs[-1]}, 3 of them, "
        ) as caught:
            consumer.close() if how == "close" else getattr(consumer, how)(0)
        assert caught.value.seqs == tuple(seqs)
        if how != "close":
            leave_without(consumer, gpuring.PeerLost)
        consumer.close()
        assert consumer.closed
        assert ring._header.live_peers() == []


def test_a_torn_frame_that_is_still_held_is_told_by_close(name, children):
    with make(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        slot = consumer.acquire(10)
        victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn) as caught:
            consumer.close()
        assert caught.value.seqs == (slot.seq,)
        assert not hasattr(caught.value, "__notes__")  # told once
        assert consumer.closed


def test_a_frame_torn_at_its_release_is_not_told_again(name, children):
    with make(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        slot = consumer.acquire(10)
        victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn, match=str(slot.seq)):
            slot.release()
        leave_without(consumer, gpuring.PeerLost)


@pytest.mark.parametrize("how", ["acquire", "close"])
def test_leaving_a_loop_does_not_swallow_a_torn_frame(name, children, how):
    """`break` closes the generator, where an error has nobody to go to."""
    with make(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        for slot in consumer:
            seq = slot.seq
            victim.stick(slot)
            victim.die()
            break
        with pytest.raises(gpuring.FrameTorn, match=str(seq)):
            consumer.acquire(0) if how == "acquire" else consumer.close()
        if how == "acquire":
            leave_without(consumer, gpuring.PeerLost)
        assert consumer.closed


def test_a_loop_that_goes_on_raises_for_a_torn_frame_at_once(name, children):
    with make(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        frames = iter(consumer)
        slot = next(frames)
        victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn, match=f"frame {slot.seq} "):
            next(frames)
        leave_without(consumer, gpuring.PeerLost)


def test_a_ring_closes_everything_before_it_tells_of_torn_frames(name, children):
    ring = make(name)
    header, consumer, victim = ring._header, ring.consumer("first"), Victim(ring, children)
    ring.consumer("second")
    ring.producer()
    (seq,) = released_torn(consumer, victim)
    with pytest.raises(gpuring.FrameTorn, match=str(seq)):
        ring.close()
    assert ring.closed
    assert header.closed
    assert header.live_peers() == []
    assert not list(Path("/dev/shm").glob(f"gpuring.{name}*"))
    ring.close()

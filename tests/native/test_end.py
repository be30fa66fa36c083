"""How a stream ends (by a leave, a death or a close), what is read before that, and how it starts
again."""

from __future__ import annotations

import pytest

from gpuring import native
from tests.helpers import raw_verbs


def wave(ring, how: str, frames: int = 2):
    """A producer that comes, publishes, and goes."""
    producer = ring.producer()
    seqs = producer.put(frames)
    if how == "leave":
        assert producer.peer.leave() == 0
    else:
        producer.die()
        assert ring.reap() == [producer.number]
    return seqs


ENDS = {"leave": native.ENDED, "die": native.PEER_LOST}


def test_a_ring_without_a_producer_yet_is_not_at_its_end(segment):
    ring = segment()
    reader, lossy = ring.consumer(), ring.consumer("v", lossless=False)
    assert reader.acquire() == lossy.acquire() == lossy.latest() == native.BLOCKED


@pytest.mark.parametrize("how", ENDS)
def test_the_end_comes_after_everything_published_was_read(segment, how):
    ring = segment(4)
    reader, lossy = ring.consumer(), ring.consumer("v", lossless=False)
    seqs = wave(ring, how, 3)
    assert reader.drain() == (seqs, ENDS[how])
    before = ring.bytes()
    assert reader.acquire() == reader.acquire(1) == ENDS[how]
    assert ring.bytes() == before
    assert lossy.latest() == seqs[-1]
    assert lossy.latest() == lossy.acquire() == ENDS[how]


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_a_later_producer_starts_the_stream_again(segment, first, second):
    ring = segment(4)
    reader = ring.consumer()
    seqs = wave(ring, first)
    assert reader.drain() == (seqs, ENDS[first])
    idle = ring.producer()
    assert reader.acquire() == native.BLOCKED
    seqs = wave(ring, second)
    assert reader.drain() == (seqs, native.BLOCKED)  # the idle one may still publish
    assert idle.peer.leave() == 0
    assert reader.acquire() == native.ENDED


@pytest.mark.parametrize("last", ENDS)
def test_the_last_producer_decides_how_it_ended(segment, last):
    ring = segment(4)
    reader, survivor = ring.consumer(), ring.producer()
    wave(ring, "leave" if last == "die" else "die", 1)
    assert reader.drain()[1] == native.BLOCKED
    if last == "leave":
        assert survivor.peer.leave() == 0
    else:
        survivor.die()
        assert ring.reap() == [survivor.number]
    assert reader.acquire() == ENDS[last]


def test_a_producer_that_died_first_is_not_the_last_one(segment):
    """E9: nobody had cleared it when the last one left."""
    ring = segment(4)
    reader, dead, last = ring.consumer(), ring.producer(), ring.producer()
    assert dead.claim() == 4
    dead.die(unnoticed=False)
    assert last.peer.leave() == 0
    assert ring.peek("peer", "word", dead.number) == 0
    assert reader.acquire() == native.ENDED
    assert ring.peek("head", "producers") == 1 << 40 | 1 << 16 | 1  # one died, and one left last


def test_a_producer_that_had_left_and_is_killed_before_its_entry_is_free_has_left(segment):
    """D6: the producer counted itself in the first stage of leave.  The reaper finds LEAVING."""
    ring = segment(4)
    reader, producer = ring.consumer(), ring.producer()
    producer.put(1)
    live = ring.peek("peer", "word", producer.number)
    assert producer.peer.leave() == 0
    gone = ring.peek("head", "producers")
    ring.poke("peer", "word", live + (1 << 16), producer.number)  # LIVE 1, LEAVING 2
    ring.poke("head", "peer_mask", ring.mask("peer_mask") | 1 << producer.number)
    assert reader.drain() == ([4], native.ENDED)
    producer.die()
    assert ring.reap() == [producer.number]
    assert ring.peek("head", "producers") == gone
    assert reader.acquire() == native.ENDED


def test_who_left_and_is_reaped_late_does_not_say_how_it_ended(segment):
    """E8: the last producer died, and the one that is reaped after it had left before."""
    ring = segment(4)
    reader, first, last = ring.consumer(), ring.producer(), ring.producer()
    live = ring.peek("peer", "word", first.number)
    assert first.peer.leave() == 0
    last.die()
    assert ring.reap() == [last.number]
    assert reader.acquire() == native.PEER_LOST
    ring.poke("peer", "word", live + (1 << 16), first.number)  # killed before its entry was free
    ring.poke("head", "peer_mask", ring.mask("peer_mask") | 1 << first.number)
    first.die()
    assert ring.reap() == [first.number]
    assert reader.acquire() == native.PEER_LOST


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_a_stream_of_two_ends_when_two_have_come_and_gone(segment, first, second):
    ring = segment(4, producers=2)
    reader = ring.consumer()
    seqs = wave(ring, first)
    assert reader.drain() == (seqs, native.BLOCKED)
    seqs = wave(ring, second)
    both_left = first == second == "leave"
    assert reader.drain() == (seqs, native.ENDED if both_left else native.PEER_LOST)


def test_a_reaper_that_repeats_what_a_dead_one_did_counts_nobody_twice(segment):
    """E7: the first reaper was killed before the entry was free."""
    ring = segment(4, producers=2)
    reader, producer = ring.consumer(), ring.producer()
    live = ring.peek("peer", "word", producer.number)
    producer.die()
    assert ring.reap() == [producer.number]
    counted = ring.peek("head", "producers")
    ring.poke("peer", "word", live, producer.number)
    ring.poke("head", "peer_mask", ring.mask("peer_mask") | 1 << producer.number)
    assert ring.process().reap() == [producer.number]
    assert ring.peek("head", "producers") == counted
    assert reader.acquire() == native.BLOCKED
    wave(ring, "leave", 0)
    assert reader.acquire() == native.PEER_LOST


def test_a_dead_producer_that_nobody_has_cleared_is_not_the_end_yet(segment):
    ring = segment(4)
    reader, producer = ring.consumer(), ring.producer()
    assert producer.claim() == 4
    producer.die()
    assert reader.acquire(0) == native.BLOCKED
    ring.unlock()
    assert reader.acquire(20) == native.PEER_LOST  # the wait itself looks for deaths


# ---- close -------------------------------------------------------------------------------------


def test_a_closed_ring_takes_no_claim_and_no_peer(segment):
    ring = segment(4)
    producer = ring.producer()
    ring.creator.close_ring()
    frontier = ring.creator.frontier
    assert producer.claim() == native.CLOSED
    assert producer.peer.holding() == []
    assert ring.slot(frontier % 4)[2] == "void"
    assert raw_verbs.join_producer(ring.process()) == native.CLOSED
    assert raw_verbs.join_consumer(ring.process(), b"x", True, "oldest") == native.CLOSED


def test_a_full_ring_that_was_closed_says_so_to_its_producers(segment):
    """C1 of the model: closed must be looked at by a claim that the gate holds back."""
    ring = segment(2)
    ring.consumer()
    producer = ring.producer()
    producer.put(2)
    ring.creator.close_ring()
    before = ring.claims()
    assert producer.claim(0) == native.CLOSED
    assert ring.claims() == before


@pytest.mark.parametrize("verb", ["publish", "abandon"])
def test_a_claim_from_before_the_close_may_be_finished(segment, verb):
    ring = segment(4)
    reader, lossy, producer = ring.consumer(), ring.consumer("v", lossless=False), ring.producer()
    assert producer.claim() == 4
    ring.creator.close_ring()
    assert reader.acquire() == lossy.latest() == native.BLOCKED
    assert getattr(producer, verb)(4) == 0
    frames = [4] if verb == "publish" else []
    assert reader.drain() == (frames, native.ENDED)


# ---- the end and other members -----------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["release", "give_back", "die"])
def test_no_end_while_another_member_holds_a_frame_that_may_come_back(segment, outcome):
    ring = segment(4)
    a, b = ring.consumer("jobs"), ring.consumer("jobs")
    (seq,) = wave(ring, "leave", 1)
    assert a.acquire() == seq
    assert b.acquire() == native.BLOCKED
    assert b.peer.culprit[:4] == (native.BY_HOLDER, a.number, a.subscription, seq)
    if outcome == "die":
        a.die()
        assert ring.reap() == [a.number]
    else:
        assert getattr(a, outcome)(seq) == 0
    assert b.drain() == ([] if outcome == "release" else [seq], native.ENDED)


def test_a_holder_is_not_in_his_own_way_at_the_end(segment):
    ring = segment(4)
    reader = ring.consumer()
    (seq,) = wave(ring, "leave", 1)
    assert reader.acquire() == seq
    assert reader.acquire() == native.ENDED


def test_a_frame_opened_by_a_reaper_that_died_there_is_found_before_the_end(segment):
    """E1: the frame is OPEN, but the reaper did not raise the redo count any more."""
    ring = segment(4)
    a, b = ring.consumer("jobs"), ring.consumer("jobs")
    seqs = wave(ring, "leave", 2)
    assert a.acquire() == seqs[0]
    assert b.get() == seqs[1]
    ring.poke("take", "word", seqs[0] << 16 | 255 << 8 | 1, a.subscription)
    assert b.acquire() == seqs[0]

"""Join and leave: the two tables, where a subscription starts, and what a number's next owner
finds."""

from __future__ import annotations

import os

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.promise import promise
from tests.helpers.segment import Actor


def test_a_join_takes_the_lowest_free_number_and_a_new_id(segment):
    ring = segment()
    first, second = ring.producer(), ring.consumer()
    assert (first.number, second.number) == (0, 1)
    assert (first.peer.id, second.peer.id) == (1, 2)
    assert first.peer.leave() == 0
    third = ring.producer()
    assert (third.number, third.peer.id) == (0, 3)
    assert raw_verbs.joins(ring.creator) == 3
    assert raw_verbs.peer_id(ring.creator, 0) == 3
    assert ring.creator.peer_pid(0) == os.getpid()


def test_what_leave_leaves(segment):
    ring = segment()
    empty = ring.claims()
    producer, reader = ring.producer(), ring.consumer()
    assert ring.mask("peer_mask") == 0b11
    assert ring.mask("sub_mask") == 0b1
    assert ring.creator.live_peers() == [0, 1]
    assert producer.peer.leave() == reader.peer.leave() == 0
    after = ring.claims()
    assert after.pop("head.producers[0]") == 1 << 16 | 1  # none lives, and one has left
    empty.pop("head.producers[0]")
    assert after == empty
    assert producer.peer.leave() == reader.peer.leave() == native.REAPED


def test_verbs_after_leave_are_refused_and_change_nothing(segment):
    ring = segment()
    producer, reader = ring.producer(), ring.consumer(lossless=False)
    producer.put()
    assert producer.peer.leave() == reader.peer.leave() == 0
    before = ring.bytes()
    assert producer.claim() == reader.acquire() == reader.latest() == native.REAPED
    assert ring.bytes() == before


def test_a_full_peer_table_refuses_and_changes_nothing(segment):
    ring = segment(max_peers=2)
    producer, reader = ring.producer(), ring.consumer()
    late = ring.process()
    before = ring.bytes()
    assert (
        raw_verbs.join_producer(late)
        == raw_verbs.join_consumer(late, b"y", True, "next")
        == native.FULL_PEERS
    )
    assert raw_verbs.join_consumer(late, b"x", True, "next") == native.FULL_PEERS
    assert ring.bytes() == before
    assert reader.peer.leave() == 0
    assert ring.producer(late).number == 1
    assert producer.put() == [4]


def test_the_dead_make_room(segment):
    ring = segment(max_peers=2)
    ring.producer()
    ring.consumer().die(unnoticed=False)
    assert ring.producer().number == 1


def test_a_full_subscription_table_refuses_new_names_only(segment):
    ring = segment(max_subscriptions=2)
    ring.consumer("a")
    ring.consumer("b", lossless=False)
    late = ring.process()
    before = ring.bytes()
    assert raw_verbs.join_consumer(late, b"c", True, "next") == native.FULL_SUBSCRIPTIONS
    assert ring.bytes() == before
    assert ring.consumer("b", lossless=False, header=late).subscription == 1


@pytest.mark.parametrize("lossless", [True, False])
def test_members_of_one_subscription_agree_on_its_mode(segment, lossless):
    ring = segment()
    member = ring.consumer("x", lossless=lossless)
    late = ring.process()
    before = ring.bytes()
    assert raw_verbs.join_consumer(late, b"x", not lossless, "next") == native.MODE_MISMATCH
    assert ring.bytes() == before
    assert member.peer.leave() == 0
    ring.consumer("x", lossless=not lossless, header=late)


def test_names_have_at_most_64_bytes_and_all_of_them_count(segment):
    ring = segment()
    longest = "ü" * 32
    a, b = ring.consumer(longest), ring.consumer(longest[:-1] + "é")
    assert a.subscription != b.subscription
    assert ring.creator.subscription_name(a.subscription).decode() == longest
    assert ring.consumer(longest).subscription == a.subscription
    with pytest.raises(ValueError, match="64"):
        raw_verbs.join_consumer(ring.process(), b"x" * 65, True, "next")


# ---- where a subscription starts ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "first"),
    # 12 frames have gone through 4 slots: 12 … 15 are there, 12 may just be being overwritten
    [("next", 16), ("oldest", 13), (14, 14), (16, 16), (4, 13), (0, 13), (18, 18)],
)
@pytest.mark.parametrize("lossless", [True, False])
def test_a_subscription_starts_where_it_was_told(segment, start, first, lossless):
    ring = segment(4)
    producer = ring.producer()
    producer.put(12)
    reader = ring.consumer(start=start, lossless=lossless)
    assert reader.peer.position == first
    seqs = reader.drain()[0]
    for _ in range(4):
        if producer.claim() > 0:
            assert producer.publish(producer.peer.seq) == 0
        seqs += reader.drain()[0]
    assert seqs == list(range(first, 20))


@pytest.mark.parametrize(("frames", "first"), [(0, 4), (1, 4), (3, 4), (4, 5), (5, 6)])
def test_oldest_is_all_there_is_until_the_first_lap_is_full(segment, frames, first):
    ring = segment(4)
    ring.producer().put(frames)
    assert ring.consumer(start="oldest").peer.position == first


def test_a_subscription_that_starts_later_does_not_gate_before(segment):
    ring = segment(2)
    reader, producer = ring.consumer(start=9), ring.producer()
    assert producer.put(9) == list(range(2, 11))
    assert producer.claim() == native.BLOCKED
    assert reader.drain()[0] == [9, 10]
    assert reader.peer.lost == 0


def test_a_member_that_joins_later_goes_on_with_the_others(segment):
    ring = segment(4)
    a, producer = ring.consumer("jobs"), ring.producer()
    producer.put(4)
    assert [a.get(), a.get()] == [4, 5]
    b = ring.consumer("jobs", start="oldest")  # start= is for new subscriptions
    assert b.acquire() == 6
    assert a.acquire() == 7
    assert b.peer.lost == 0


def test_an_index_that_is_used_again_hides_no_frames(segment):
    """H11: the predecessor's take words said (s, DONE) of frames that are still there."""
    ring = segment(4)
    producer = ring.producer()
    first = ring.consumer("first")
    producer.put(3)
    assert first.drain()[0] == [4, 5, 6]
    assert first.peer.leave() == 0
    second = ring.consumer("second", start="oldest")
    assert second.subscription == first.subscription
    assert second.drain()[0] == [4, 5, 6]


def test_the_last_member_takes_the_subscription_with_it(segment):
    ring = segment(2)
    a, b, producer = ring.consumer("x"), ring.consumer("x"), ring.producer()
    producer.put(2)
    assert a.peer.leave() == 0
    assert producer.claim() == native.BLOCKED
    assert b.peer.leave() == 0
    assert producer.claim() == 4


# ---- numbers -----------------------------------------------------------------------------------


def test_a_number_whose_gpu_work_is_not_done_is_not_given_out(segment):
    ring = segment()
    ring.poke("work", "", 4 << 16, ring.work_row(1, 0))
    assert ring.producer().number == 1
    ring.poke("fence", "", 4 << 16, ring.work_row(1, 0))
    assert ring.producer().number == 0


def test_a_number_whose_byte_is_locked_is_not_given_out(segment):
    """Its owner is joining or leaving.  A free entry alone is not enough."""
    ring = segment()
    fd = ring.hold(0)
    assert ring.producer().number == 1
    os.close(fd)
    assert ring.producer().number == 0


@promise(
    "architecture.md",
    "Each process holds file locks in the rings that it has joined. The kernel drops them when the "
    "process dies, and the others notice that.",
)
def test_a_joiner_holds_his_byte(segment):
    ring = segment()
    producer = ring.producer()
    with pytest.raises(BlockingIOError):
        os.close(ring.hold(producer.number))
    assert producer.peer.leave() == 0
    os.close(ring.hold(producer.number))


@pytest.mark.slow
def test_a_held_membership_lock_times_joins_out_and_holds_no_frame_verb_up(segment):
    ring = segment()
    reader, producer = ring.consumer(), ring.producer()
    fd = ring.hold_lock()
    late = ring.process()
    dead = ring.creator  # its reap does not wait
    producer.put(2)
    assert reader.drain()[0] == [4, 5]
    before = ring.bytes()
    assert dead.reap() == []
    assert raw_verbs.join_producer(late) == native.LOCK_TIMEOUT
    assert ring.bytes() == before
    os.close(fd)
    assert isinstance(Actor(ring, raw_verbs.join_producer(late)), Actor)


def test_the_creator_is_known_to_live_until_it_gives_its_locks_up(segment):
    ring = segment()
    other = ring.process()
    assert other.creator_alive
    assert other.creator_pid == os.getpid()
    ring.poke("head", "creator_pid", 1)  # for another process only the lock counts
    assert other.creator_alive
    ring.creator.disown()
    assert not other.creator_alive

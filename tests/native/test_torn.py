"""Torn frames: their producer has died before its GPU work was done."""

from __future__ import annotations

import os

import pytest

from gpuring import native
from gpuring.native import Header
from gpuring.native.snapshot import snapshot
from tests.helpers import raw_verbs
from tests.helpers.processes import poll
from tests.helpers.promise import promise


def unfinished(ring, peer, slot: int) -> int:
    """Makes the peer's last promise on the slot look unpaid."""
    row = ring.work_row(slot, peer.number)
    ring.poke("fence", "", 1, row)
    return ring.peek("work", "", row)


@promise("failure.md", "The frame is **torn**. Acquire passes over it.")
def test_a_frame_whose_producer_died_before_its_gpu_work_was_done_is_torn(segment):
    ring = segment(4)
    reader, lossy = ring.consumer(), ring.consumer("v", lossless=False)
    producer, other = ring.producer(), ring.producer()
    producer.put(2)
    other.put(1)
    promised = unfinished(ring, producer, 0)
    producer.die()
    assert ring.reap() == [producer.number]
    assert ring.slot(0) == (4, producer.number, "torn")
    assert ring.slot(1) == (5, producer.number, "ready")
    marks = [ring.tear(i, producer.number) for i in range(4)]
    assert marks == [(producer.peer.id, 1), (0, 0), (0, 0), (0, 0)]
    assert [raw_verbs.torn(ring.creator, i, *ring.record(i)) for i in range(3)] == [
        True,
        False,
        False,
    ]
    assert raw_verbs.fence(ring.creator, producer.number, 0) == promised  # never further (G3)
    assert reader.drain()[0] == [5, 6]
    assert ring.peek("peer", "torn", reader.number) == 1
    assert (lossy.acquire(), lossy.peer.lost) == (5, 0)  # torn is not lost
    assert ring.peek("peer", "torn", lossy.number) == 1


def test_a_torn_frame_gates_nobody_but_its_holder(segment):
    ring = segment(2)
    a, b = ring.consumer("a"), ring.consumer("b")
    producer, other = ring.producer(), ring.producer()
    producer.put(2)
    assert a.acquire() == 2
    unfinished(ring, producer, 0)
    producer.die()
    ring.reap()
    assert b.drain() == ([3], native.BLOCKED)
    assert other.claim() == native.BLOCKED
    assert other.peer.culprit[1:4] == (a.number, a.subscription, 2)
    assert a.release(2) == native.TORN  # and released
    assert other.claim() == 4


def test_the_torn_mark_does_not_need_the_slot_word(segment):
    """G5: the slot was claimed again, but a reader's stream may still be at the old frame."""
    ring = segment(1)
    producer, other = ring.producer(), ring.producer()
    producer.put(1)
    frame = ring.record(0)
    assert other.claim() == 2
    unfinished(ring, producer, 0)
    producer.die()
    ring.reap()
    assert raw_verbs.torn(ring.creator, 0, *frame)
    assert ring.slot(0) == (2, other.number, "writing")
    assert other.publish(2) == 0
    assert not raw_verbs.torn(ring.creator, 0, *ring.record(0))


@promise(
    "failure.md",
    "Each frame is judged by its own producer, and by how far the GPU work of that producer had "
    "come.",
)
def test_a_frame_that_was_finished_is_not_torn_by_a_later_one(segment):
    """Both frames are of one producer and in one slot."""
    ring = segment(1)
    producer = ring.producer()
    producer.put(1)
    first, reached = ring.record(0), ring.peek("fence", "", producer.number)
    producer.put(1)
    second = ring.record(0)
    ring.poke("fence", "", reached, producer.number)
    producer.die()
    ring.reap()
    assert ring.tear(0, producer.number) == (producer.peer.id, reached)
    assert not raw_verbs.torn(ring.creator, 0, *first)
    assert raw_verbs.torn(ring.creator, 0, *second)


def test_the_next_owner_of_a_number_has_its_own_mark(segment):
    ring = segment(1)
    first = ring.producer()
    first.put(1)
    frame = ring.record(0)
    unfinished(ring, first, 0)
    first.die()
    ring.reap()
    heir = ring.producer()
    assert heir.number == first.number
    heir.put(1)
    healthy, reached = ring.record(0), ring.peek("fence", "", heir.number)
    assert raw_verbs.torn(ring.creator, 0, *frame)
    assert not raw_verbs.torn(ring.creator, 0, *healthy)
    heir.put(1)
    ring.poke("fence", "", reached, heir.number)
    heir.die()
    ring.reap()
    assert ring.tear(0, heir.number) == (heir.peer.id, reached)
    assert not raw_verbs.torn(ring.creator, 0, *healthy)
    assert raw_verbs.torn(ring.creator, 0, *ring.record(0))
    assert raw_verbs.torn(ring.creator, 0, *frame)  # its mark is gone, so it counts as torn


def test_a_frame_that_a_cpu_has_written_is_whole_whoever_has_died_since(segment):
    """Nothing was promised for the frame.  It does not matter which mark has replaced its
    producer's."""
    ring = segment(1)
    producer = ring.producer()
    producer.put(1)
    number, by, value = ring.record(0)
    ring.poke("tear", "id", producer.peer.id + 1, producer.number)
    assert raw_verbs.torn(ring.creator, 0, number, by, value)
    assert not raw_verbs.torn(ring.creator, 0, number, by, 0)


def test_a_mark_that_is_being_written_tears_nothing_of_its_owner(segment):
    """A reaper that is killed there leaves such a mark.  What its owner's fence had reached by then
    was finished."""
    ring = segment(1)
    producer = ring.producer()
    producer.put(1)
    ring.poke("tear", "id", producer.peer.id | 1 << 63, producer.number)
    assert not raw_verbs.torn(ring.creator, 0, *ring.record(0))
    ring.poke("tear", "id", producer.peer.id + 1 | 1 << 63, producer.number)
    assert raw_verbs.torn(ring.creator, 0, *ring.record(0))


def publishes(pipe, path):
    peer = raw_verbs.join_producer(Header.attach(os.open(path, os.O_RDWR)))
    index = peer.claim(0)
    assert peer.publish(index, peer.seq) == 0
    pipe.ask((peer.number, peer.id))


@pytest.mark.parametrize("sync", ["event", "timeline"])
def test_with_events_a_frame_that_may_have_been_written_stays_ready(segment, children, sync):
    """The fence of an event does not rise by itself.  A consumer that acquires the frame looks at
    the event."""
    ring = segment(2, memory="ipc", sync=sync)
    child = children(publishes, ring.path)
    number, peer_id = child.receive()
    row = ring.work_row(0, number)
    ring.poke("fence", "", 1, row)
    child.kill()
    poll(lambda: ring.creator.reap() or ring.creator.reaps)
    assert ring.slot(0) == (2, number, "ready" if sync == "event" else "torn")
    assert ring.tear(0, number) == (peer_id, 1)
    assert ring.peek("fence", "", row) == ring.peek("work", "", row)
    assert snapshot(ring.creator)["deaths"][0]["torn"] == 1


@promise(
    "failure.md",
    "A frame that a consumer has *released* counts as read, although its GPU may not have read it "
    "yet, because release is ordered by the stream.",
)
def test_a_dead_reader_tears_nothing(segment):
    ring = segment(2)
    a, b, producer = ring.consumer("x"), ring.consumer("x"), ring.producer()
    producer.put(1)
    assert a.get() == 2
    promised = unfinished(ring, a, 0)
    a.die()
    ring.reap()
    assert ring.tear(0, a.number) == (0, 0)
    assert raw_verbs.fence(ring.creator, a.number, 0) == promised
    assert b.acquire() == native.BLOCKED

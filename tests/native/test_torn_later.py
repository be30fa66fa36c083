"""Frames that were released before anybody knew that they were torn: each is reported once."""

from __future__ import annotations

import pytest

from gpuring import native
from gpuring.registry import diagnosis
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import event_of
from tests.helpers.gpu_peers import OnGpu, consumer_of, get, make_ring, pay, producer_of, told
from tests.helpers.promise import promise

timeline_only = pytest.mark.parametrize("ring", ["timeline"], indirect=True)
event_only = pytest.mark.parametrize("ring", ["event"], indirect=True)


@pytest.fixture(params=["timeline", "event"])
def ring(request, segment):
    """A ring of two slots over a driver whose GPU finishes nothing by itself."""
    return make_ring(segment, request.param)


def read_written(ring, reader, producer):
    """Publishes and reads two frames whose GPU work is done by then."""
    producer.put(2)
    pay(ring, producer)
    return get(reader, 2)


def test_all_laps_of_a_slot_whose_gpu_work_was_pending_are_told(ring):
    reader, producer = consumer_of(ring), producer_of(ring)
    seqs = []
    for _ in range(3):
        seqs += producer.put(2)
        assert get(reader, 2) == seqs[-2:]
    producer.dies()
    assert told(reader) == seqs == [2, 3, 4, 5, 6, 7]
    assert told(reader) == native.PEER_LOST


def test_a_frame_released_below_the_one_that_was_torn_is_told_too(ring):
    """The slot's mark names the last sequence only, and that one was never read."""
    reader, producer = consumer_of(ring), producer_of(ring)
    assert get(reader, len(producer.put(2))) == [2, 3]
    producer.put(2)
    producer.dies()
    assert told(reader) == [2, 3]
    assert told(reader) == native.PEER_LOST


def test_a_frame_whose_gpu_work_was_done_when_it_was_released_is_not_told(ring):
    reader, producer = consumer_of(ring), producer_of(ring)
    assert read_written(ring, reader, producer) == [2, 3]
    seqs = producer.put(2)
    assert get(reader, 1) == seqs[:1] == [4]
    producer.dies()
    assert told(reader) == [4]
    assert told(reader) == native.PEER_LOST


def test_gpu_work_that_is_done_after_the_release_tears_nothing(ring):
    reader, producer = consumer_of(ring), producer_of(ring)
    producer.put(2)
    get(reader, 2)
    pay(ring, producer)
    producer.dies()
    assert told(reader) == native.PEER_LOST
    assert reader.peer.leave() == 0
    assert not reader.peer.look_at_released()


@promise(
    "failure.md",
    "A death does not tear frames of other producers, apart from the first case below.",
)
@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_only_the_dead_producers_frames_are_told(segment, kind):
    ring = make_ring(segment, kind, 4)
    reader, victim, other = consumer_of(ring), producer_of(ring), producer_of(ring)
    mine, others = victim.put(2), other.put(2)
    assert get(reader, 4) == mine + others
    victim.dies()
    assert told(reader) == mine
    other.dies()
    assert told(reader) == others


@promise(
    "failure.md",
    "Each frame is judged by its own producer, and by how far the GPU work of that producer had "
    "come.",
)
def test_a_healthy_frame_of_another_producer_in_the_same_slot_is_not_told(ring):
    """The frame was still being written when its reader released it, and when the other producer
    died."""
    reader, victim, other = consumer_of(ring), producer_of(ring), producer_of(ring)
    other.put(2)
    get(reader, 2)
    victim.put(2)
    victim.dies()
    pay(ring, other)
    assert told(reader) == native.BLOCKED
    assert not reader.peer.look_at_released()


@timeline_only  # an event that was recorded anew meanwhile tells nothing of its earlier record
def test_frames_that_were_finished_before_their_producer_died_are_not_told(ring):
    """Their GPU work was done after the release.  That of a later frame in the same slot never
    was."""
    reader, victim = consumer_of(ring), producer_of(ring)
    victim.put(2)
    get(reader, 2)
    pay(ring, victim)
    seqs = victim.put(2)
    get(reader, 2)
    victim.dies()
    assert told(reader) == seqs


@timeline_only  # with events it leaves when its own are done, which wait for the producer's
def test_frames_that_turned_out_torn_are_told_after_leaving(ring):
    reader, producer = consumer_of(ring), producer_of(ring)
    seqs = producer.put(2)
    get(reader, 2)
    producer.dies()
    assert reader.peer.leave() == 0
    assert reader.peer.look_at_released()
    assert reader.peer.take_torn() == seqs
    assert not reader.peer.look_at_released()


def test_a_frame_known_torn_at_its_release_is_told_once(ring):
    reader, producer = consumer_of(ring), producer_of(ring)
    producer.put(1)
    index = reader.peer.acquire(0)
    producer.dies()
    assert reader.peer.release(index, reader.peer.seq) == native.TORN
    assert told(reader) == native.PEER_LOST
    assert not reader.peer.look_at_released()


@promise(
    "failure.md",
    "It also asks its own, so frames that were read and released long before are not called torn.",
)
@event_only
@pytest.mark.parametrize("whose", ["reader", "producer"])
@pytest.mark.parametrize("released", [False, True])
def test_a_frame_whose_event_says_that_it_was_written_is_not_torn(ring, whose, released):
    """A fence is raised only when somebody looks at the event.  So the reaper also marks frames
    that were written."""
    reader, producer = consumer_of(ring), producer_of(ring)
    producer.put(2)
    first, second = reader.peer.acquire(0), reader.peer.acquire(0)
    if released:
        assert reader.peer.release(first, 2) == reader.peer.release(second, 3) == 0
    if whose == "producer" or not released:
        ring.driver.pending -= {event_of(producer, 0)}  # that of slot 1 is not done
    else:
        ring.driver.pending -= {event_of(reader, 0)}
    producer.dies()
    if released:
        assert told(reader) == [3]
    else:
        assert not reader.peer.is_torn(first)
        assert reader.peer.is_torn(second)
        assert reader.peer.release(first, 2) == 0
        assert reader.peer.release(second, 3) == native.TORN
    assert told(reader) == native.PEER_LOST


@event_only
def test_who_was_taken_for_dead_is_told_of_torn_frames_too(ring):
    """Whoever clears a reader raises its fences.  That does not say that its GPU work is done."""
    reader, producer = consumer_of(ring), producer_of(ring)
    seqs = producer.put(2)
    get(reader, 2)
    reader.dies()
    producer.dies()
    assert reader.peer.look_at_released()
    assert reader.peer.take_torn() == seqs


@event_only
def test_the_event_of_the_next_owner_of_a_number_says_nothing_of_the_last_one(ring):
    reader, victim = consumer_of(ring), producer_of(ring)
    seqs = victim.put(2)
    get(reader, 2)
    victim.dies()
    heir = producer_of(ring)
    assert heir.number == victim.number
    ring.driver.queries.clear()
    heirs = {event_of(heir, slot) for slot in range(2)}
    assert not heirs & ring.driver.pending - {event_of(victim, slot) for slot in range(2)}
    ring.driver.opened.clear()
    assert told(reader) == seqs
    assert ring.driver.opened == []


@event_only
def test_an_event_opened_while_the_number_changed_hands_is_nobodys(ring):
    """Another producer gets the number while a consumer opens the event of the last owner.  The
    newcomer's event counts as done, because nothing was recorded in it.  It must never be asked
    about the last owner's frames."""
    victim, header = producer_of(ring), ring.process()
    others = native.Driver(ring.driver.addresses)  # a process that made none of these events
    device = native.Device(header, 0, None, None, others)
    readers = [
        OnGpu(ring, raw_verbs.join_consumer(header, name, True, "next", True, device))
        for name in (b"a", b"b")
    ]
    victim_id = ring.peek("peer", "id", victim.number)
    victim.put(1)
    victim.dies()
    heir = producer_of(ring)
    assert heir.number == victim.number
    heir_id = ring.peek("peer", "id", heir.number)
    ring.driver.pending.clear()  # the events of both owners are one to the fake driver
    ring.poke("peer", "id", victim_id, heir.number)

    def has_joined(name):
        if name == "open_handle":
            ring.poke("peer", "id", heir_id, heir.number)

    ring.driver.on_call = has_joined
    assert [reader.acquire() for reader in readers] == [native.BLOCKED, native.BLOCKED]
    assert [ring.peek("peer", "torn", reader.number) for reader in readers] == [1, 1]
    ring.driver.on_call = lambda _: None  # otherwise has_joined would keep the ring


def test_an_older_mark_of_the_slot_tears_nothing(ring):
    reader, victim, other = consumer_of(ring), producer_of(ring), producer_of(ring)
    seqs = victim.put(2)
    get(reader, 2)
    victim.dies()
    assert told(reader) == seqs
    other.put(2)
    get(reader, 2)
    pay(ring, other)
    assert not reader.peer.look_at_released()


@timeline_only  # a mark does not tell of an event that is done
def test_ready_is_whoever_would_be_told(ring):
    """A reader is ready when the death is counted, which a reaper does last.  acquire looks for
    torn frames then."""
    reader, victim = consumer_of(ring), producer_of(ring)
    seqs = victim.put(2)
    get(reader, 2)
    for index in range(2):  # all that a reaper does before
        ring.poke("tear", "id", victim.peer.id, ring.work_row(index, victim.number))
    pay(ring, victim)
    assert not native.ready(reader.peer)
    assert told(reader) == native.BLOCKED
    ring.poke("head", "reaps", ring.peek("head", "reaps") + 1)
    assert native.ready(reader.peer)
    assert told(reader) == seqs
    assert not native.ready(reader.peer)


@pytest.mark.parametrize(
    ("seqs", "words"),
    [
        ([5], "sequence 5"),
        ([5, 7], "sequences 5, 7"),
        ([7, 6, 5], "sequences 5–7, 3 of them"),
        (range(6, 1022), "sequences 6–1021, 1,016 of them"),
        ([4, 6, 7, 9, 12, 13], "sequences 4, 6–7, 9, 12–13, 6 of them"),
        (range(0, 10, 2), "sequences 0, 2, 4, 6, 8"),
        (range(0, 4000, 2), "sequences 0, 2, 4, 6, 8 and 1,995 more, 2,000 of them"),
    ],
)
def test_torn_frames_are_named_in_few_words(seqs, words):
    for released in (False, True):
        error = diagnosis.torn("r", seqs, released=released)
        assert f"'r': {words}" in str(error)
        assert len(str(error)) < 300
        assert error.seqs == tuple(seqs)

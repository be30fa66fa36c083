"""Released frames are remembered only as long as they may turn out torn.  Fences are raised for
what is done, and for nobody else."""

from __future__ import annotations

import pytest

import gpuring
from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import PER_THREAD, C
from tests.helpers.gpu_peers import consumer_of, get, make_ring, pay, producer_of, told

LAPS = 40


def lap(producer, consumer):
    producer.claim_many(4, 0).publish()
    consumer.acquire_many(4, 0).release()


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_who_synchronises_after_each_release_remembers_a_few_laps(rig, kind):
    """The list of frames looks at the events itself when it is long, because nobody else does."""
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    most = 0
    for _ in range(LAPS):
        lap(producer, consumer)
        most = max(most, raw_verbs.remembered(consumer._peer))
        ring.finish()
    assert 4 <= most <= 4 * 4
    assert raw_verbs.reserved(consumer._peer) == 0


@pytest.mark.parametrize("stream", [C, PER_THREAD])
def test_a_host_that_is_always_a_lap_ahead_remembers_a_few_laps(rig, stream):
    """Each event is recorded anew before anybody sees it complete.  The checkpoint is not."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    consumer._ring.current.ptr = stream

    def gets_there(event):
        if event >> 16 == 0:
            ring.driver.pending.discard(event)

    ring.driver.on_query = gets_there
    most = 0
    for _ in range(LAPS):
        lap(producer, consumer)
        most = max(most, raw_verbs.remembered(consumer._peer))
    assert 4 <= most <= 8 * 4


def test_a_checkpoint_that_is_not_done_keeps_every_frame(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    for _ in range(10):
        lap(producer, consumer)
    assert raw_verbs.remembered(consumer._peer) == 40
    ring.finish()
    assert not consumer._peer.look_at_released()
    assert raw_verbs.remembered(consumer._peer) == 0


def test_a_checkpoint_is_recorded_once(rig):
    """A later record would put off when it is complete, again and again."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    for _ in range(10):
        lap(producer, consumer)
    records = [call[2] for call in ring.driver.calls if call[0] == "record"]
    assert len([event for event in records if not event >> 16]) == 1


def test_who_can_make_no_checkpoint_goes_on_without_one(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    lap(producer, consumer)
    ring.driver.errors["event_create"] = 2
    for _ in range(9):
        lap(producer, consumer)
    assert raw_verbs.remembered(consumer._peer) == 40


def test_there_is_no_checkpoint_on_a_stream_that_has_no_id(rig):
    """It would tell of frames that other streams have read."""
    ring = rig("event")
    ring.driver.errors["get_id"] = 1
    producer, consumer = ring.producer(), ring.consumer()
    for _ in range(10):
        lap(producer, consumer)
    ring.driver.pending = {event for event in ring.driver.pending if event >> 16}
    assert not consumer._peer.look_at_released()
    assert raw_verbs.remembered(consumer._peer) == 40


def test_a_checkpoint_tells_of_its_own_stream_only(rig):
    """Another stream may still be reading."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    own, other = consumer._ring.current.ptr, 0x99

    def read(stream):
        consumer._ring.current.ptr = stream
        consumer.acquire(0).release()

    for streams in ([own] * 4, [own] * 4, [own] * 3 + [other]):
        producer.claim_many(4, 0).publish()
        for stream in streams:
            read(stream)
    producer.claim(0).publish()
    read(own)  # after three laps, the checkpoint
    producer.claim(0).publish()
    read(own)  # behind it
    assert raw_verbs.remembered(consumer._peer) == 14
    ring.driver.pending = {event for event in ring.driver.pending if event >> 16}
    assert not consumer._peer.look_at_released()
    # Three of the slot that the other stream has read, and the one behind the checkpoint.
    assert raw_verbs.remembered(consumer._peer) == 4


def test_a_checkpoint_that_is_late_is_not_asked_after_the_end(rig):
    """The fences of all frames are reached, and then its event can be given to another peer."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    for _ in range(10):
        lap(producer, consumer)
    ring.driver.pending = {event for event in ring.driver.pending if not event >> 16}
    consumer.close()
    assert not consumer._peer.look_at_released()


def test_who_sees_that_an_event_is_done_raises_the_fences(segment):
    """No stream stores them.  For a fence that is behind, a reaper marks the frame as torn."""
    ring = make_ring(segment, "event")
    reader, producer = consumer_of(ring), producer_of(ring)
    producer.put(2)
    get(reader, 2)
    pay(ring, producer, reader)
    of = [(ring.creator, who.number, index) for who in (reader, producer) for index in range(2)]
    assert not any(raw_verbs.fence(*each) for each in of)
    assert not reader.peer.look_at_released()
    assert all(raw_verbs.fence(*each) == raw_verbs.work(*each) > 0 for each in of)


def test_a_torn_frame_whose_release_has_failed_is_told_later(segment):
    ring = make_ring(segment, "event")
    reader, victim, _other = consumer_of(ring), producer_of(ring), producer_of(ring)
    (seq,) = victim.put(1)
    index = reader.peer.acquire(0)
    victim.dies()
    ring.driver.refuses[index] = 1
    with pytest.raises(gpuring.DeviceError):
        reader.peer.release(index, seq)
    assert native.ready(reader.peer)
    assert told(reader) == [seq]
    assert raw_verbs.reserved(reader.peer) == 0


def test_who_was_taken_for_dead_raises_no_fence_of_the_next_owner_of_its_number(segment):
    """Its record was refused, and it waits until its stream is idle."""
    ring = make_ring(segment, "event")
    victim, others = producer_of(ring), []

    def is_idle(_):
        if not others:
            victim.dies()
            others.append(producer_of(ring))
            ring.driver.refuses.clear()
            others[0].put(2)
        return 0

    index = victim.peer.claim(0)
    ring.driver.refuses[index] = 1
    ring.driver.on_stream_query = is_idle
    with pytest.raises(gpuring.DeviceError):
        victim.peer.publish(index, victim.peer.seq)
    assert others[0].number == victim.number
    of = ring.creator, victim.number, index
    assert raw_verbs.fence(*of) < raw_verbs.work(*of)

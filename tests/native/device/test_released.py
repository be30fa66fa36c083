"""Released frames are remembered only as long as they may turn out torn."""

from __future__ import annotations

import pytest

from tests.helpers import raw_verbs
from tests.helpers.fake_driver import PER_THREAD, C

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

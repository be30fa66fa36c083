"""Released frames are remembered only as long as they may turn out torn."""

from __future__ import annotations

import pytest

from tests.helpers import raw_verbs

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


def test_a_host_that_is_always_a_lap_ahead_remembers_a_few_laps(rig):
    """Each event is recorded anew before anybody sees it complete.  The checkpoint is not."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()

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
    assert raw_verbs.remembered(consumer._peer) == 13
    ring.driver.pending = {event for event in ring.driver.pending if event >> 16}
    assert not consumer._peer.look_at_released()
    assert raw_verbs.remembered(consumer._peer) == 3  # of the slot that the other stream has read

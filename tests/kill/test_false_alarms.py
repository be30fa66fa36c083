"""The three cases in which a frame is called torn though it was written, and only these.

docs/decisions/0011 says why.  test_device_kill.py checks that no other frame is called torn.
"""

from __future__ import annotations

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import INVALID
from tests.helpers.gpu_peers import OnGpu, consumer_of, get, make_ring, pay, producer_of, told
from tests.helpers.promise import promise


@promise(
    "failure.md",
    "Another peer has taken the place of its producer in the ring, and died with GPU work pending "
    "on the same slot before the consumer looked.",
)
@pytest.mark.parametrize("later", ["had work pending", "had none"])
def test_a_later_owner_of_the_number_died_with_work_pending_on_the_slot(segment, later):
    ring = make_ring(segment, "timeline")
    reader, first = consumer_of(ring), producer_of(ring)
    seqs = first.put(2)
    assert get(reader, 2) == seqs  # the frames are released while they are still being written
    pay(ring, first)
    assert first.peer.leave() == 0
    heir = producer_of(ring)
    assert heir.number == first.number
    heir.put(2)
    if later == "had none":
        pay(ring, heir)
    heir.dies()
    assert told(reader) == (seqs if later == "had work pending" else 0)  # 0: the next frame's slot


def elsewhere(ring, start="next"):
    """A reader in another process, which has to open the events."""
    header = ring.process()
    others = native.Driver(ring.driver.addresses)
    device = native.Device(header, 0, None, None, others)
    return OnGpu(ring, raw_verbs.join_consumer(header, b"x", True, start, True, device))


def dies(ring, producer):
    """The producer dies.  From then on the driver opens no event of its process."""
    producer.dies()
    ring.driver.errors["open_handle"] = INVALID


@promise(
    "failure.md",
    "The frames are read as usual, with [three exceptions](#torn-frames).",
    "With `sync=\"event\"`, the consumer's process had never found that producer's work on that "
    "slot pending before the death, for example because it joined afterwards.",
)
@pytest.mark.parametrize("how", ["it had met it", "it had not looked", "it joined afterwards"])
def test_the_readers_process_had_never_found_that_producers_work_pending(segment, how):
    ring, met = make_ring(segment, "event"), how == "it had met it"
    reader, producer = None, producer_of(ring)
    if how != "it joined afterwards":
        reader = elsewhere(ring)
    producer.put(1)
    if met:
        assert reader.acquire() == 2
    pay(ring, producer)
    assert raw_verbs.fence(ring.creator, producer.number, 0) == 0  # nobody has looked at the event
    dies(ring, producer)
    if met:
        assert not reader.peer.is_torn(0)
        assert reader.release(2) == 0
    reader = reader or elsewhere(ring, "oldest")
    assert reader.acquire() == native.PEER_LOST
    assert ring.peek("peer", "torn", reader.number) == (0 if met else 1)


@promise(
    "failure.md",
    "With `sync=\"event\"`, another peer has taken the producer's place, and the consumer's "
    "process has met pending work of that peer since.",
)
@pytest.mark.parametrize("met", [True, False])
def test_the_readers_process_has_met_the_next_owner_of_the_number(segment, met):
    ring = make_ring(segment, "event")
    reader, producer = elsewhere(ring), producer_of(ring)
    producer.put(1)
    assert reader.acquire() == 2
    pay(ring, producer)
    producer.dies()
    heir = producer_of(ring)
    assert heir.number == producer.number
    heir.put(1)
    if met:
        assert reader.acquire() == 3
    assert reader.peer.is_torn(0) is met

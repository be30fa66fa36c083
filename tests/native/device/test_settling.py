"""Work that could not be recorded is awaited on the host before its slot is given up: settled."""

from __future__ import annotations

import threading

import pytest

import gpuring
from gpuring.native.snapshot import snapshot
from tests.helpers import raw_verbs
from tests.helpers.ctrl_c import ctrl_c
from tests.helpers.fake_driver import INVALID, NOT_READY, PER_THREAD
from tests.helpers.promise import promise
from tests.native.device.instant_driver import STREAM, fences


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("verb", ["publish", "abandon", "release"])
def test_a_promise_that_may_be_unpaid_is_seen_by_nobody(ring, verb, n):
    """Streams of anybody would wait for it, and only a leave of this peer could end that."""
    producer, reader = ring.producer(), ring.consumer()
    peer, slots = producer, producer.claim_many(n)
    if verb == "release":
        slots.publish()
        peer, slots = reader, reader.acquire_many(n)
    ring.driver.refuse(1)
    with ctrl_c(ring.driver), pytest.raises(KeyboardInterrupt):
        getattr(slots, verb)()
    assert len(peer._peer.holding()) == n
    assert all(slot._open for slot in slots)
    ring.driver.refuse(0)
    getattr(slots, verb)()  # again
    assert peer._peer.holding() == []
    assert all(paid == promised for paid, promised in fences(ring, peer.peer))


def refused_publish(ring, stream):
    """Publishes on `stream`, on which records fail."""
    producer = ring.producer()
    slot = producer.claim(stream=stream)
    ring.driver.refuse(INVALID)
    with pytest.raises(gpuring.DeviceError):
        slot.publish()
    ring.driver.refuse(0)
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))
    assert producer._peer.holding() == []


@promise(
    "streams.md",
    "The slot can be given up only then.",
)
@pytest.mark.parametrize("error", [0, 700])
def test_the_work_of_a_destroyed_stream_is_awaited_before_its_slot_is_given_up(ring, error):
    """The handle of a destroyed stream cannot be used any more, but its work goes on."""
    held = []

    def synchronize(name):
        if name == "synchronize":
            held.append(
                [word["phase"] for word in snapshot(ring._header)["slots"]].count("writing")
            )
            ring.driver.errors["synchronize"] = error

    ring.driver.on_call = synchronize
    ring.driver.on_stream_query = lambda _: INVALID
    refused_publish(ring, STREAM)
    assert held == [1]
    assert not ring.driver.contexts
    ring.driver.on_stream_query = lambda _: 0


@pytest.mark.parametrize("current", [0, 1])
def test_a_default_stream_is_awaited_on_the_rings_gpu_and_on_the_current_one(ring, current):
    """The stream may have been refused because another GPU was current, now or when it was used."""
    driver, asked = ring.driver, []

    def query(stream):
        asked.append((0 if driver.contexts else current, stream))
        return NOT_READY if asked.count(asked[-1]) < 3 else 0

    driver.device = current
    driver.on_stream_query = query
    refused_publish(ring, 0)
    for number in {0, current}:
        assert asked.count((number, 0)) >= 3
    driver.device = 0
    driver.on_stream_query = lambda _: 0


def test_the_per_thread_stream_of_another_thread_is_awaited_with_everything_else(ring):
    """In this thread the handle means another stream, and the legacy default stream knows only of
    its own work."""
    producer, asked = ring.producer(), []
    slot = producer.claim(stream=PER_THREAD)
    ring.driver.on_call = lambda name: (
        name == "synchronize" and asked.append(len(producer._peer.holding()))
    )
    ring.driver.refuse(INVALID)
    errors = []

    def publishes():
        try:
            slot.publish()
        except gpuring.DeviceError as error:
            errors.append(error)

    thread = threading.Thread(target=publishes)
    thread.start()
    thread.join(20)
    ring.driver.refuse(0)
    ring.driver.on_call = lambda _: None
    assert len(errors) == 1
    assert asked == [1]
    assert producer._peer.holding() == []


@pytest.mark.parametrize("many", [False, True])
def test_one_threads_doubt_about_its_slot_is_not_anothers(ring, many):
    """Threads of a service publish slots of one peer.  While one thread settles, the other is not
    disturbed."""
    producer = ring.producer()
    doubtful = producer.claim()
    other = producer.claim_many(2) if many else producer.claim()
    settling, is_done = threading.Event(), threading.Event()

    def query(_stream):
        settling.set()
        return 0 if is_done.is_set() else NOT_READY

    def publish():
        with pytest.raises(gpuring.DeviceError):
            doubtful.publish()

    ring.driver.on_stream_query = query
    ring.driver.refuse(1)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        assert settling.wait(20)
        ring.driver.refuse(0)
        other.publish()
        assert producer._peer.holding() == [(doubtful.index, doubtful.seq)]
        assert doubtful._open
        assert not any(slot._open for slot in (other if many else (other,)))
        assert raw_verbs.fence(ring._header, producer.peer, doubtful.index) == 0
    finally:
        is_done.set()
        thread.join(20)
    assert producer._peer.holding() == []
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))

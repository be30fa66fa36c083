"""close() ends everything that its endpoint has, also when the GPU reports an error."""

from __future__ import annotations

import re

import pytest

import gpuring
from tests.helpers.ctrl_c import ctrl_c
from tests.helpers.fake_driver import PER_THREAD
from tests.helpers.words import tear
from tests.native.device.instant_driver import STREAM, at, fences, pay, raises_at

LOST = 719


def held_open(ring, role):
    """A producer with three claims, or a consumer that holds three frames, and those slots."""
    producer, reader = ring.producer(), ring.consumer()
    batch = producer.claim_many(3)
    if role == "producer":
        return producer, batch
    batch.publish()
    return reader, reader.acquire_many(3)


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_close_ends_everything_though_the_gpu_reports_an_error(ring, role):
    endpoint, _held = held_open(ring, role)
    number = endpoint.peer
    raises_at(ring, 0, 2)
    with pytest.raises(gpuring.DeviceError, match=at(0)) as caught:
        endpoint.close()
    (note,) = caught.value.__notes__
    assert re.search(rf"^And then: DeviceError: .*{at(2)}", note)
    assert endpoint.closed
    assert number not in ring._header.live_peers()
    assert all(paid == promised for paid, promised in fences(ring, number))
    endpoint.close()  # reported once


def test_why_it_is_still_open_comes_first(ring):
    """The endpoint's GPU has lost its work."""
    producer, _held = held_open(ring, "producer")
    raises_at(ring, 0)
    ring.driver.stuck = True
    ring.driver.on_stream_query = lambda stream: LOST if stream == PER_THREAD else 0
    with pytest.raises(gpuring.DeviceError, match=rf"has failed: {LOST}") as caught:
        producer.close()
    (note,) = caught.value.__notes__
    assert re.search(rf"^And then: DeviceError: .*{at(0)}", note)
    assert not producer.closed
    ring.driver.on_stream_query = lambda _: 0
    ring.driver.finish()
    producer.close()
    assert producer.closed


def test_a_ring_tells_of_all_errors_of_all_its_endpoints(ring):
    _held = held_open(ring, "producer"), ring.producer().claim()
    raises_at(ring, 0, 2, 3)
    with pytest.raises(gpuring.DeviceError, match=at(0)) as caught:
        ring.close()
    for note, index in zip(caught.value.__notes__, (2, 3), strict=True):
        assert re.search(rf"^And then: DeviceError: .*{at(index)}", note)
    assert ring.closed


def test_close_pays_what_an_interrupt_left_unpaid_though_the_gpu_reports_an_error(ring):
    producer = ring.producer()
    first, second = producer.claim(), producer.claim()
    ring.driver.refuse(1)
    with ctrl_c(ring.driver), pytest.raises(KeyboardInterrupt):
        first.publish()
    ring.driver.refuse(0)
    raises_at(ring, second.index)
    with pytest.raises(gpuring.DeviceError, match=at(second.index)):
        producer.close()
    assert producer.closed
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


def test_what_cannot_be_ended_keeps_its_endpoint_open(ring):
    producer, _held = held_open(ring, "producer")
    ring.driver.has_current_stream = False
    for _ in range(2):
        with pytest.raises(OSError, match="no current stream") as caught:
            producer.close()
        assert len(caught.value.__notes__) == 2
        assert not producer.closed
        assert len(producer._peer.holding()) == 3
    ring.driver.has_current_stream = True
    producer.close()
    assert ring._header.frontier == 7


def test_what_cannot_be_ended_keeps_its_ring_open(ring):
    producer, _held = held_open(ring, "producer")
    ring.driver.has_current_stream = False
    with pytest.raises(OSError, match="no current stream"):
        ring.close()
    assert not ring.closed
    assert not ring._header.closed
    assert not producer.closed
    ring.driver.has_current_stream = True
    ring.close()
    assert ring.closed
    assert producer.closed


def test_a_gpu_error_at_close_hides_no_torn_frame(ring, open_fence):
    """The frame was released while its producer's GPU was still writing it, and turns out torn."""
    producer, index = open_fence
    reader = ring.consumer(start="oldest")
    reader.acquire(stream=STREAM).release()
    for _ in range(2):
        producer.claim(stream=STREAM).publish()
    _held = reader.acquire_many(2, stream=STREAM)
    tear(ring, 4)
    pay(ring, producer, index)
    raises_at(ring, *range(ring.slots))
    with pytest.raises(gpuring.DeviceError) as caught:
        reader.close()
    assert reader.closed
    assert any("FrameTorn" in note and "sequence 4," in note for note in caught.value.__notes__)
    raises_at(ring)

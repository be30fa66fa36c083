"""close() waits for the GPU with either gate.  What check() says afterwards is final."""

from __future__ import annotations

import contextlib

import pytest

import gpuring
from tests.helpers.fake_driver import NOT_READY
from tests.helpers.promise import promise

KINDS = pytest.mark.parametrize("kind", ["timeline", "event"])


@promise(
    "streams.md",
    "`close()` of a producer or a consumer waits until the GPU has done all work that this peer "
    "promised.",
)
@KINDS
@pytest.mark.parametrize("gate", ["stream", "host"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_close_waits_until_the_gpu_has_done_what_was_promised(rig, kind, gate, role):
    ring = rig(kind)
    producer, consumer = ring.producer(gate=gate), ring.consumer(gate=gate)
    producer.claim(0).publish()
    if role == "consumer":
        ring.finish()
        consumer.acquire(0).release()
    endpoint = producer if role == "producer" else consumer
    seen = []

    def busy(_stream):
        seen.append(endpoint.peer in ring.segment.creator.live_peers())
        if len(seen) == 3:
            ring.finish()
        return NOT_READY

    ring.driver.finishes = False
    ring.driver.on_stream_query = busy
    endpoint.close()
    assert seen == [True] * 3
    assert endpoint.closed
    assert ring.paid(endpoint)
    ring.peers.remove(endpoint)


@promise(
    "streams.md",
    "`close()` of a ring with a timeline waits for all work of its process on that GPU.",
)
def test_close_of_a_ring_with_a_timeline_waits_for_all_work_of_its_process(rig):
    """A wait that is still in a stream reads the table of fences, which is unmapped with the
    ring."""
    ring = rig("timeline")
    producer = ring.producer()
    producer.close()
    ring.peers.remove(producer)
    calls = []
    ring.driver.on_call = calls.append
    producer._device.close()
    assert [name for name in calls if name in ("synchronize", "unregister")] == [
        "synchronize", "unregister"
    ]  # fmt: skip


@promise(
    "failure.md",
    "When the consumer's own GPU work on the frame is done, the answer of `slot.check()` is final.",
)
@KINDS
def test_what_check_says_of_a_frame_that_was_written_is_final(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim(0).publish()
    slot = consumer.acquire(0)
    ring.finish(producer)  # the consumer's stream waits for that
    slot.check()
    ring.kill(producer)
    slot.check()
    slot.release()
    ring.finish()
    with pytest.raises(gpuring.PeerLost):
        consumer.acquire(0)


@promise(
    "failure.md",
    "When the consumer's own GPU work on the frame is done, the answer of `slot.check()` is final.",
)
@KINDS
def test_what_check_says_of_a_torn_frame_is_final(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim(0).publish()
    slot = consumer.acquire(0)
    slot.check()  # too early to tell
    ring.kill(producer)
    for _ in range(2):
        with pytest.raises(gpuring.FrameTorn):
            slot.check()
    with pytest.raises(gpuring.FrameTorn):
        slot.release()


LOST = 700  # cudaErrorIllegalAddress, which under MPS every client gets from one that was killed


@promise(
    "failure.md",
    "Calls of a ring do not hang then. They end, and those that need the GPU raise `DeviceError`.",
)
@KINDS
@pytest.mark.parametrize("gate", ["stream", "host"])
def test_after_an_error_of_the_whole_gpu_no_call_hangs(rig, kind, gate):
    ring = rig(kind)
    producer, consumer = ring.producer(gate=gate), ring.consumer(gate=gate)
    producer.claim_many(2, 0).publish()
    ring.finish()
    claimed, held = producer.claim(0), consumer.acquire(0)
    ring.driver.finishes = False
    ring.driver.errors = dict.fromkeys(
        ("write_value", "wait_value", "batch", "event_record", "wait_event", "event_query",
         "stream_query", "synchronize"), LOST,
    )  # fmt: skip
    for call in (claimed.publish, held.release):  # nothing can be recorded any more
        with pytest.raises(gpuring.DeviceError, match=str(LOST)):
            call()
    for call in (producer.claim, consumer.acquire, producer.close, consumer.close):
        with contextlib.suppress(gpuring.DeviceError):
            call()

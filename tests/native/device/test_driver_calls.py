"""Which driver calls are made, and when.  That they order anything, only the GPU suite shows.

The driver is a fake: see fake_driver.py.
"""

from __future__ import annotations

import ctypes

import pytest

import gpuring
from gpuring import native
from tests.helpers.fake_driver import CONTEXT, INVALID, NO_CONTEXT, PER_THREAD, C, D, P, follows
from tests.helpers.promise import promise
from tests.helpers.rig import held_by

# ---- how many calls ----------------------------------------------------------------------------


def test_one_wait_and_one_write_for_one_frame(rig):
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim(0).publish()
    assert ring.told() == [("write", P, ring.work(producer, 0))]
    slot = consumer.acquire(0)
    assert ring.told() == [("wait", C, ring.work(producer, 0))]
    slot.release()
    assert ring.told() == [("write", C, ring.work(consumer, 0))]


@promise(
    "streams.md",
    "With gate `stream` no claim and no acquire waits for a GPU, because the wait goes into the "
    "stream.",
)
def test_all_pending_peers_are_waited_for_in_one_call(rig):
    ring = rig(slots=1)
    producer = ring.producer()
    readers = [ring.consumer(f"{k}", 0x1000 + k) for k in range(3)]
    ring.lap(producer, *readers)
    producer.claim(0)
    expected = {k: v for each in readers for k, v in ring.work(each, 0).items()}
    assert ring.told() == [("waits", P, expected)]


def test_what_is_complete_costs_no_call(rig):
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    for _ in range(3):
        ring.lap(producer, consumer)
        ring.finish()
        batch = producer.claim_many(4, 0)
        assert ring.told() == []
        batch.publish()
        ring.finish()
        ring.told()
        read = consumer.acquire_many(4, 0)
        assert ring.told() == []
        read.release()
        ring.finish()


def test_a_batch_is_one_call_each_time(rig):
    ring = rig()
    producer, one, two = ring.producer(), ring.consumer("1", C), ring.consumer("2", D)
    ring.lap(producer, one, two)
    batch = producer.claim_many(4, 0)
    expected = ring.work(one, 0, 1, 2, 3) | ring.work(two, 0, 1, 2, 3)
    assert ring.told() == [("waits", P, expected)]
    batch.publish()
    assert ring.told() == [("writes", P, ring.work(producer, 0, 1, 2, 3))]
    read = one.acquire_many(3, 0)
    assert ring.told() == [("waits", C, ring.work(producer, 0, 1, 2))]
    read.release()
    assert ring.told() == [("writes", C, ring.work(one, 0, 1, 2))]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("subs", "slots"), [(63, 4), (120, 3), (249, 1)])
def test_more_waits_than_one_call_takes_are_split(rig, subs, slots):
    ring = rig(slots=slots, max_peers=native.MAX_PEERS, max_subscriptions=subs)
    producer = ring.producer()
    readers = [ring.consumer(f"{k}", 0x1000 + k) for k in range(subs)]
    ring.lap(producer, *readers)
    producer.claim_many(ring.segment.slots, 0)
    calls, waited = ring.told(), {}
    assert {(name, stream) for name, stream, _ in calls} == {("waits", P)}
    assert len(calls) == -(-subs * slots // 128)
    for _, _, words in calls:
        assert len(words) <= 128
        assert not waited.keys() & words.keys()
        waited |= words
    each_slot = range(slots)
    assert waited == {k: v for each in readers for k, v in ring.work(each, *each_slot).items()}


def test_a_larger_batch_than_one_call_takes_is_recorded_slot_by_slot(rig):
    ring = rig(slots=130)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(129, 0).publish()
    assert [call[:2] for call in ring.told()] == [("write", P)] * 129
    consumer.acquire_many(129, 0).release()
    calls = ring.told()
    waits = [("waits", C), ("wait", C)]
    assert [call[:2] for call in calls] == waits + [("write", C)] * 129
    assert [len(words) for _, _, words in calls[:2]] == [128, 1]


@promise(
    "failure.md",
    "A stopped process does not hold up streams, because its GPU work was enqueued before "
    "anything in the ring said to wait for it.",
)
def test_fences_are_promised_and_enqueued_before_anybody_can_see_the_frame(rig):
    """Invariant 9: at the time of the call the words still say that the slot is ours."""
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    seen = []

    def look(name):
        slots = [ring.segment.slot(k)[2] for k in range(4)]
        takes = [ring.segment.take(consumer._peer.subscription, k)[2] for k in range(4)]
        seen.append((name, slots, takes))

    batch = producer.claim_many(4, 0)
    ring.driver.on_call = look
    batch.publish()
    read = consumer.acquire_many(4, 0)
    read.release()
    writes = [each[1:] for each in seen if each[0] == "batch"]
    assert writes == [
        (["writing"] * 4, ["done"] * 4),
        (["ready"] * 4, ["held"] * 4),  # the waits
        (["ready"] * 4, ["held"] * 4),
    ]


# ---- who may use which stream ------------------------------------------------------------------


def without_context(ring):
    ring.driver.errors["get_device"] = NO_CONTEXT


def another_device(ring):
    ring.driver.device = 1


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("stream", [0, PER_THREAD])
def test_a_default_stream_of_another_device_is_refused(rig, kind, many, stream):
    """1 is another name of the legacy default stream."""
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer(stream=stream)
    producer.claim_many(2, 0).publish()
    another_device(ring)
    ring.told()
    with pytest.raises(gpuring.DeviceError, match=r"default stream of GPU 1 .*under GPU 0"):
        consumer.acquire_many(2, 0) if many else consumer.acquire(0)
    assert ring.told() == []
    assert held_by(consumer) == []
    frame = consumer.acquire(0, stream=C)  # stream C belongs to one device
    assert [call[:2] for call in ring.told()] == [("wait", C)]
    with pytest.raises(gpuring.DeviceError, match="default stream of GPU 1"):
        frame.release()
    assert held_by(consumer) == []
    assert ring.paid(consumer)


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("stream", [0, PER_THREAD, C])
def test_a_thread_that_has_not_used_cuda_is_given_the_rings_device(rig, kind, stream):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer(stream=stream)
    producer.claim_many(2, 0).publish()
    without_context(ring)
    another_device(ring)
    ring.told()
    held = consumer.acquire(0)
    assert ring.driver.contexts == [CONTEXT]
    assert [call[:2] for call in ring.told()] == [("wait", stream)]
    ring.driver.errors["set_current"] = INVALID
    with pytest.raises(gpuring.DeviceError, match=rf"GPU 0 cannot be used \({INVALID}\)"):
        consumer.acquire(0)
    assert held_by(consumer) == [held.seq]
    ring.driver.device = 0


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_several_streams_are_recorded_behind_all_of_them(rig, kind):
    ring = rig(kind)
    producer = ring.producer()
    batch = producer.claim_many(2, 0, stream=D)  # there may be work on the current stream, too
    batch.publish()
    name = "write" if kind == "timeline" else "record"
    calls = ring.told()
    assert len(calls) == 6
    for call in (calls[:3], calls[3:]):
        assert call[:2] == follows(D, P)
        assert call[2][:2] == (name, D)
    one, two = producer.claim(0), producer.claim(0, stream=P)
    two.use_on(D)
    ring.told()
    two.publish()
    calls = ring.told()
    assert calls[:2] == follows(P, D)
    assert [call[:2] for call in calls[2:]] == [(name, P)]
    one.abandon()
    assert [call[:2] for call in ring.told()] == [(name, P)]


def test_a_batch_on_two_streams_is_recorded_slot_by_slot(rig):
    ring = rig()
    producer = ring.producer()
    batch = producer.claim_many(3, 0)
    batch[1].use_on(D)
    ring.told()
    batch.publish()
    calls = ring.told()
    assert [call[:2] for call in calls] == [
        ("write", P), ("record", D), ("wait", P), ("write", P), ("write", P),
    ]  # fmt: skip
    assert calls[1:3] == follows(P, D)


def test_many_streams_of_one_slot(rig):
    ring = rig()
    producer = ring.producer()
    slot = producer.claim(0)
    others = range(0x1000, 0x1000 + 20)
    for stream in others:
        slot.use_on(stream)
        slot.use_on(stream)
    assert slot._streams == (P, *others)
    ring.told()
    slot.publish()
    calls = ring.told()
    assert calls[:-1] == follows(P, *others)
    assert calls[-1][:2] == ("write", P)


# ---- the current stream ------------------------------------------------------------------------


def test_the_current_stream_by_a_capsule_and_without(rig):
    new, pointer = ctypes.pythonapi.PyCapsule_New, ctypes.c_void_p
    new.restype, new.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
    asked = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: D)
    name = b"intptr_t (void)"
    ring = rig()
    fast = ring.producer(capsule=new(ctypes.cast(asked, pointer), name, None))
    slow = ring.producer()
    fast.claim(0).publish()
    slow.claim(0).publish()
    assert [call[:2] for call in ring.told()] == [("write", D), ("write", P)]


class NoStream(Exception):
    pass


def test_no_current_stream_is_an_error_that_leaves_nothing(rig):
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim(0).publish()

    def fails():
        raise NoStream

    for each in (producer, consumer):
        each._device.get_current_stream = fails
    for verb in (producer.claim, consumer.acquire):
        with pytest.raises(NoStream):
            verb(0)
    for many in (producer.claim_many, consumer.acquire_many):
        with pytest.raises(NoStream):
            many(2, 0)
    assert held_by(producer, consumer) == []

"""Which driver calls are made, and when.  That they order anything, only the GPU suite shows.

The driver is a fake: see fake_driver.py.
"""

from __future__ import annotations

import ctypes

import pytest
from fake_driver import BASE, NO_CONTEXT, C, D, P, held_by

from gpuring import _core

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


def test_more_waits_than_one_call_takes_are_split_between_slots(rig):
    subs = min(_core.MAX_SUBSCRIPTIONS, _core.MAX_PEERS - 1)
    ring = rig(slots=2 * 128 // subs, max_peers=_core.MAX_PEERS, max_subscriptions=subs)
    producer = ring.producer()
    readers = [ring.consumer(f"{k}", 0x1000 + k) for k in range(subs)]
    ring.lap(producer, *readers)
    producer.claim_many(ring.segment.slots, 0)
    calls, waited = ring.told(), {}
    assert {(name, stream) for name, stream, _ in calls} == {("waits", P)}
    assert len(calls) == 2
    for _, _, words in calls:
        assert len(words) <= 128
        assert not waited.keys() & words.keys()
        waited |= words
    slots = range(ring.segment.slots)
    assert waited == {k: v for each in readers for k, v in ring.work(each, *slots).items()}


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


def test_fences_are_promised_and_enqueued_before_anybody_can_see_the_frame(rig):
    """Invariant 9: at the time of the call the words still say that it is ours."""
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


def disarmed(ring):
    for each in ring.peers:
        each._sync.disarm()


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize(
    ("how", "stream", "native"),
    [(another_device, 0, False), (another_device, 1, False), (another_device, 2, False),
     (another_device, C, True), (without_context, 0, False), (without_context, C, False),
     (disarmed, C, False)],
)  # fmt: skip
def test_what_a_thread_may_not_do_is_left_to_python(rig, kind, how, stream, native):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer(stream=stream)
    producer.claim_many(2, 0).publish()
    ring.told()
    how(ring)
    batch = consumer.acquire_many(2, 0)
    calls = ring.told()
    batch.release()
    ends = ring.told()
    if native:
        assert all(name.startswith("wait") for name, *_ in calls)
        assert all(name in ("writes", "record") for name, *_ in ends)
        return
    promised = ring.work(producer, 0, 1)
    assert calls == [("order", stream, {word: promised[word]}) for word in promised]
    promised = ring.work(consumer, 0, 1)
    assert ends == [("python", (stream,), {word: promised[word]}) for word in promised]


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_several_streams_are_left_to_python(rig, kind):
    ring = rig(kind)
    producer = ring.producer()
    batch = producer.claim_many(2, 0, stream=D)  # and work may be on the current one
    batch.publish()
    promised = ring.work(producer, 0, 1)
    assert ring.told() == [("python", (D, P), {word: promised[word]}) for word in promised]
    one, two = producer.claim(0), producer.claim(0, stream=P)
    two._streams += (D,)
    ring.told()
    two.publish()
    one.abandon()
    assert [call[:2] for call in ring.told()] == [
        ("python", (P, D)), ("write" if kind == "timeline" else "record", P),
    ]  # fmt: skip


def test_a_batch_on_two_streams_is_recorded_slot_by_slot(rig):
    ring = rig()
    producer = ring.producer()
    batch = producer.claim_many(3, 0)
    batch[1]._streams += (D,)
    batch.publish()
    assert [call[:2] for call in ring.told()] == [("write", P), ("python", (P, D)), ("write", P)]


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
        each._sync.arm(each._sync.header, 0, fails, ring.driver.function, BASE)
    for verb in (producer.claim, consumer.acquire):
        with pytest.raises(NoStream):
            verb(0)
    for many in (producer.claim_many, consumer.acquire_many):
        with pytest.raises(NoStream):
            many(2, 0)
    assert held_by(producer, consumer) == []

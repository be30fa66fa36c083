"""Which driver calls are made, and when.  That they order anything, only the GPU suite shows.

The driver is a fake: see fake_driver.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading

import pytest
from fake_driver import (
    BASE,
    INVALID,
    NO_CONTEXT,
    PER_THREAD,
    C,
    D,
    P,
    RealEvents,
    RealSync,
    event_of,
    event_waits,
    held_by,
    real_device,
)
from support import poll

import gpuring
from gpuring import _core
from gpuring._core import EventRow
from gpuring.sync import event

PATIENCE_S = 10


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


# ---- one's own fence ---------------------------------------------------------------------------


def read_twice(ring, producer, consumer, first, second):
    """One consumer reads slot 0 twice, its first read unpaid; the calls of the second acquire."""
    producer.claim(0).publish()
    consumer._sync.stream = first
    consumer.acquire(0).release()
    producer.claim(0).publish()
    ring.finish(producer)
    ring.told()
    consumer._sync.stream = second
    slot = consumer.acquire(0)
    calls = ring.told()
    slot.release()
    return calls


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [(C, C, False), (C, D, True), (0, 0, False), (0, C, True), (C, 0, True),
     (PER_THREAD, PER_THREAD, True), (1, 1, False)],
)  # fmt: skip
def test_a_reader_waits_for_its_own_fence_only_on_another_stream(rig, first, second, waits):
    """The per-thread default stream is another one in each thread."""
    ring = rig(slots=1)
    producer, consumer = ring.producer(), ring.consumer()
    promised = ring.segment.creator.work
    calls = read_twice(ring, producer, consumer, first, second)
    value = promised(consumer.peer, 0)
    before = 1 << 16  # the promise of frame 1
    assert value > before
    assert calls == ([("wait", second, {(consumer.peer, 0): before})] if waits else [])


@pytest.mark.parametrize(
    ("first", "second", "waits"), [(P, P, False), (P, D, True), (PER_THREAD, PER_THREAD, True)]
)
@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_a_writer_waits_for_its_own_fence_only_on_another_stream(rig, first, second, waits, end):
    ring = rig(slots=2)
    producer = ring.producer()
    producer._sync.stream = first
    getattr(producer.claim_many(2, 0), end)()
    promised = ring.work(producer, 0, 1)
    ring.told()
    producer._sync.stream = second
    producer.claim_many(2, 0)
    assert ring.told() == ([("waits", second, promised)] if waits else [])


def test_one_slot_at_a_time_remembers_its_stream_too(rig):
    ring = rig(slots=1)
    producer = ring.producer()
    for _ in range(3):
        producer.claim(0, stream=P).publish()
        assert [name for name, *_ in ring.told()] == ["write"]
    producer.claim(0, stream=D)
    assert [call[:2] for call in ring.told()] == [("wait", D)]


def test_after_a_record_in_python_ones_own_fence_is_waited_for(rig):
    """Which stream it is on is not known then."""
    ring = rig(slots=1)
    producer = ring.producer()
    producer.claim(0).publish()
    slot = producer.claim(0)
    slot._streams += (D,)
    slot.publish()
    ring.told()
    producer.claim(0)
    assert ring.told() == [("wait", P, ring.work(producer, 0))]


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("noticed", [False, True])
def test_a_new_stream_with_the_handle_of_a_destroyed_one_is_another(rig, kind, role, noticed):
    """CUDA uses handles again at once, while the work of the destroyed stream is pending.

    noticed: it has been asked for its id since, by a claim or an acquire of another slot."""
    ring = rig(kind, slots=2)
    producer, consumer = ring.producer(stream=P), ring.consumer(stream=C)
    peer = {"producer": producer, "consumer": consumer}[role]
    other = {"producer": consumer, "consumer": producer}[role]
    stream = peer._sync.stream

    def lap():
        producer.claim_many(2, 0).publish()
        consumer.acquire_many(2, 0).release()

    lap()
    ring.finish(other)
    ring.driver.ids[stream] = 77  # destroyed, and made anew
    if role == "consumer":
        producer.claim_many(2, 0).publish()
        ring.finish(other)
    take = getattr(peer, "claim" if role == "producer" else "acquire")
    end = "abandon" if role == "producer" else "release"
    before = ring.work(peer, 0, 1)
    ring.told()

    def waits(slot):
        what = (
            event_of(peer, slot)
            if kind == "event"
            else {(peer.peer, slot): before[peer.peer, slot]}
        )
        return [call for call in ring.told() if call[0] == "wait"] == [("wait", stream, what)]

    first = take(0)
    assert waits(0)
    if noticed:
        second = take(0)
        assert waits(1)
        getattr(second, end)()
    getattr(first, end)()  # with the id that it had before, if nobody has noticed


def test_what_a_new_stream_recorded_under_an_old_id_is_waited_for_once(rig):
    """Nobody asks for ids at records: the first claim that looks finds another one."""
    ring = rig(slots=1)
    producer = ring.producer()
    producer.claim(0).publish()
    ring.finish()
    ring.driver.ids[P] = 77
    producer.claim(0).publish()  # nothing was pending: nobody asked
    ring.told()
    for pending in (1, 0, 0):
        producer.claim(0).publish()
        assert [name for name, *_ in ring.told()] == ["wait"] * pending + ["write"]
    ring.driver.ids[P] = 78
    producer.claim(0).publish()
    assert [name for name, *_ in ring.told()] == ["wait", "write"]


def test_two_names_of_the_legacy_default_stream_are_one(rig):
    ring = rig(slots=1)
    producer = ring.producer(stream=0)
    producer.claim(0).publish()
    producer._sync.stream = 1
    ring.told()
    producer.claim(0)
    assert ring.told() == []


def test_a_stream_without_an_id_is_waited_for(rig):
    ring = rig(slots=1)
    producer = ring.producer()
    ring.driver.errors["get_id"] = INVALID
    producer.claim(0).publish()
    ring.told()
    for _ in range(2):
        producer.claim(0).publish()
        assert [name for name, *_ in ring.told()] == ["wait", "write"]
    ring.driver.errors.clear()


def test_ids_are_asked_for_once_in_a_call_and_only_while_ones_own_work_is_pending(rig):
    ring = rig()
    producer = ring.producer()
    calls = []
    ring.driver.on_call = calls.append

    def asked(call):
        calls.clear()
        return call(), calls.count("get_id")

    batch, n = asked(lambda: producer.claim_many(4, 0))
    assert n == 0
    assert asked(batch.publish)[1] == 1
    for _ in range(3):
        batch, n = asked(lambda: producer.claim_many(4, 0))
        assert n == 1
        assert asked(batch.publish)[1] == 0
    ring.finish()
    batch, n = asked(lambda: producer.claim_many(4, 0))
    assert n == 0
    assert asked(batch.publish)[1] == 0


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


# ---- the host gate -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_the_host_gate_never_puts_a_wait_into_a_stream(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(gate="host"), ring.consumer(gate="host")
    for _ in range(3):
        producer.claim_many(4, 0).publish()
        consumer.acquire_many(4, 0).release()
    names = [name for name, *_ in ring.told()]
    assert names.count("order") == 4 + 2 * 8  # frames; then also the slots' readers
    assert not {"wait", "waits"} & set(names)


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_what_the_host_gate_does_not_get_ends_a_batch_before_it(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer(gate="host")
    producer.claim_many(2, 0).publish()
    ring.finish()
    producer.claim_many(2, 0).publish()
    consumer._sync.ordered = False
    with consumer.acquire_many(4, 0) as batch:
        assert [slot.seq for slot in batch] == [4, 5]
    with pytest.raises(gpuring.RingTimeout, match="GPU work"):
        consumer.acquire_many(4, 0)
    with pytest.raises(gpuring.RingTimeout, match="GPU work"):
        consumer.acquire(0)
    assert held_by(consumer) == []
    consumer._sync.ordered = True
    with consumer.acquire_many(4, 0) as batch:
        assert [(slot.seq, slot.redelivered) for slot in batch] == [(6, False), (7, False)]


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_a_claim_that_the_host_gate_does_not_get_voids_nothing(rig, kind):
    """It waits for the slot's fences before it claims."""
    ring = rig(kind)
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    ring.lap(producer, consumer)
    producer._sync.ordered = False
    for verb in (
        lambda: producer.claim(0),
        lambda: producer.claim_many(2, 0),
        lambda: asyncio.run(producer.claim_async(0.01)),
    ):
        with pytest.raises(gpuring.RingFull, match=r"GPU work .*frame 8 "):
            verb()
        assert held_by(producer) == []
    assert [ring.segment.slot(k)[2] for k in range(4)] == ["ready"] * 4
    producer._sync.ordered = True
    producer.claim_many(2, 0).publish()
    with consumer.acquire_many(2, 0) as batch:
        assert [slot.seq for slot in batch] == [8, 9]


def test_a_batch_of_the_host_gate_ends_before_a_slot_whose_fences_are_open(rig):
    ring = rig()
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    ring.lap(producer, consumer)
    ring.finish()
    producer.claim_many(2, 0).publish()
    consumer.acquire_many(2, 0).release()
    producer._sync.ordered = False
    batch = producer.claim_many(4, 0)
    assert [slot.seq for slot in batch] == [10, 11]
    assert ring.segment.slot(0)[2] == "ready"
    batch.abandon()


def ordered_by(producer, *answers):
    """What order() says, call by call; what it pays, the test does itself."""
    asked, answers = [], list(answers)

    def order(peer, stream, owner, index, value):
        asked.append(index)
        answer = answers.pop(0)
        return answer() if callable(answer) else answer

    producer._sync.order = order
    return asked


def test_the_host_gate_looks_at_the_next_slot_when_its_own_is_claimed_meanwhile(rig):
    ring = rig()
    producer, fast, consumer = ring.producer(gate="host"), ring.producer(D), ring.consumer()
    producer._sync.disarm()
    ring.lap(fast, consumer)
    ring.finish(fast)

    def overtaken():
        fast.claim(0)
        return True

    asked = ordered_by(producer, overtaken, False)
    with pytest.raises(gpuring.RingFull, match=r"GPU work .*frame 9 "):
        producer.claim(0)
    assert asked == [0, 1]
    assert [ring.segment.slot(k)[2] for k in range(4)] == ["writing", "ready", "ready", "ready"]


def test_the_look_of_the_host_gate_is_a_hint_and_the_claim_is_checked(rig):
    """Here the look was told what is not so: the claimed slot is waited for, and voided."""
    ring = rig()
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    producer._sync.disarm()
    ring.lap(producer, consumer)
    ring.finish(producer)
    asked = ordered_by(producer, True, False)
    with pytest.raises(gpuring.RingFull, match=r"GPU work .*frame 8 "):
        producer.claim(0)
    assert asked == [0, 0]
    assert held_by(producer) == []
    assert ring.segment.slot(0) == (8, producer.peer, "void")


def test_the_look_of_the_host_gate_waits_for_readers_first(rig):
    """Who is in the way is named as ever."""
    ring = rig()
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    producer.claim_many(4, 0).publish()
    for timeout in (0, 0.01):
        with pytest.raises(gpuring.RingFull, match=r"'x'.*frame 4"):
            producer.claim(timeout)
    reader = threading.Thread(target=lambda: consumer.acquire(0).release())
    reader.start()
    assert producer.claim(PATIENCE_S).seq == 8
    reader.join(PATIENCE_S)


# ---- the driver refuses ------------------------------------------------------------------------


def test_a_refused_wait_gives_the_frames_back(rig):
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(3, 0).publish()
    ring.driver.errors = {"wait_value": INVALID, "batch": INVALID}
    for verb in (
        lambda: consumer.acquire(0),
        lambda: consumer.acquire_many(1, 0),
        lambda: consumer.acquire_many(3, 0),
    ):
        with pytest.raises(gpuring.DeviceError, match=f"stream {C:#x}.*{INVALID}"):
            verb()
        assert held_by(consumer) == []
        assert not any(slot._open for slot in consumer._slots)
    ring.driver.errors.clear()
    with consumer.acquire_many(4, 0) as batch:
        assert [(slot.seq, slot.lost, slot.redelivered) for slot in batch] == [
            (seq, 0, False) for seq in (4, 5, 6)
        ]


def test_a_refused_wait_voids_the_claims(rig):
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    ring.lap(producer, consumer)
    ring.driver.errors = {"wait_value": INVALID, "batch": INVALID}
    for verb, seqs in (
        (lambda: producer.claim(0), [8]),
        (lambda: producer.claim_many(3, 0), [9, 10, 11]),
    ):
        with pytest.raises(gpuring.DeviceError, match=f"stream {P:#x}.*{INVALID}"):
            verb()
        assert held_by(producer) == []
        assert not any(slot._open for slot in producer._slots)
        for seq in seqs:
            assert ring.segment.slot(seq % 4) == (seq, producer.peer, "void")
    ring.driver.errors.clear()
    producer.claim(0).publish()
    with consumer.acquire(0) as slot:
        assert slot.seq == 12


def test_a_wait_for_an_event_that_is_refused_undoes_the_whole_batch(rig):
    """One call for each event: some are in the stream already, which harms nobody."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(3, 0).publish()
    waits = []

    def third(name):
        waits.append(name)
        if waits.count("wait_event") == 3:
            ring.driver.errors["wait_event"] = INVALID

    ring.driver.on_call = third
    ring.told()
    with pytest.raises(gpuring.DeviceError, match=f"stream {C:#x}"):
        consumer.acquire_many(4, 0)
    assert ring.told() == event_waits(C, event_of(producer, 0), event_of(producer, 1))
    assert held_by(consumer) == []
    ring.driver.on_call = lambda _: None
    ring.driver.errors.clear()
    with consumer.acquire_many(4, 0) as batch:
        assert [slot.seq for slot in batch] == [4, 5, 6]


def settled(ring, kind, stream):
    """What was settled, at once or slot by slot; nothing else was done."""
    words = {}
    calls = ring.told()
    assert kind == "event" or len(calls) == 1
    for name, used, more in calls:
        assert (name, used) == ("settle", (stream,))
        assert not words.keys() & more.keys()
        words |= more
    return words


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_a_refused_record_settles_and_abandons(rig, kind, many):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    seqs = [4, 5, 6] if many else [4]
    slots = producer.claim_many(3, 0) if many else producer.claim(0)
    ring.driver.errors = dict.fromkeys(("write_value", "batch", "event_record"), INVALID)
    ring.told()
    with pytest.raises(gpuring.DeviceError, match=f"stream {P:#x}.*{INVALID}"):
        slots.publish()
    promised = ring.work(producer, *(seq % 4 for seq in seqs))
    assert settled(ring, kind, P) == promised
    assert held_by(producer) == []
    assert not any(slot._open for slot in producer._slots)
    assert [ring.segment.slot(seq % 4)[2] for seq in seqs] == ["void"] * len(seqs)
    assert ring.paid(producer)
    ring.driver.errors.clear()
    producer.claim(0).publish()
    with consumer.acquire(0) as slot:
        assert slot.seq == seqs[-1] + 1


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_a_refused_record_settles_and_releases(rig, kind, many):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    ring.finish()
    frames = consumer.acquire_many(4, 0) if many else consumer.acquire(0)
    ring.driver.errors = dict.fromkeys(("write_value", "batch", "event_record"), INVALID)
    ring.told()
    with pytest.raises(gpuring.DeviceError, match=f"stream {C:#x}.*{INVALID}"):
        frames.release()
    promised = ring.work(consumer, *range(4 if many else 1))
    assert settled(ring, kind, C) == promised
    assert held_by(consumer) == []
    assert ring.paid(consumer)
    ring.driver.errors.clear()
    with producer.claim_many(4, 0) as batch:
        assert len(batch) == (4 if many else 1)


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_a_refused_abandon_ends_the_whole_batch(rig, kind):
    ring = rig(kind)
    producer = ring.producer()
    batch = producer.claim_many(3, 0)
    ring.driver.errors = dict.fromkeys(("write_value", "batch", "event_record"), INVALID)
    with pytest.raises(gpuring.DeviceError), batch:
        raise NoStream
    assert held_by(producer) == []
    assert ring.paid(producer)


def test_where_records_are_single_calls_the_frames_before_a_refused_one_are_published(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    batch = producer.claim_many(4, 0)
    calls = []

    def second_only(name):
        calls.append(name)
        ring.driver.errors = {"event_record": INVALID} if calls.count("event_record") == 2 else {}

    ring.driver.on_call = second_only
    with pytest.raises(gpuring.DeviceError):
        batch.publish()
    ring.driver.on_call = lambda _: None
    assert held_by(producer) == []
    with consumer.acquire_many(4, 0) as read:
        assert [slot.seq for slot in read] == [4]


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("role", ["publish", "release"])
def test_a_refused_batch_whose_settling_is_interrupted_is_settled_by_close(rig, monkeypatch, role):
    """settle() waits for streams, and Ctrl-C interrupts it: the slots are not given up before their
    promises are paid, by another try or by close()."""
    real_device(monkeypatch)
    ring = rig(sync_type=RealSync)
    producer, consumer = ring.producer(), ring.consumer()
    batch = producer.claim_many(3, 0)
    if role == "release":
        batch.publish()
        ring.finish()
        batch = consumer.acquire_many(3, 0)
    endpoint = producer if role == "publish" else consumer
    ring.driver.errors = {"batch": INVALID}

    def interrupts(_stream):
        raise Interrupted

    endpoint._sync._runtime.streamQuery = interrupts
    with pytest.raises(Interrupted):
        getattr(batch, role)()
    assert held_by(endpoint) == [4, 5, 6]
    assert not ring.paid(endpoint)
    endpoint._sync._finish_unsettled(endpoint._peer)
    assert ring.paid(endpoint)


# ---- events ------------------------------------------------------------------------------------


def test_pending_events_are_waited_for_and_complete_ones_raise_their_fence(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(2, 0).publish()
    assert ring.told() == [("record", P, event_of(producer, k)) for k in range(2)]
    consumer.acquire_many(1, 0).release()
    assert ring.told() == [
        ("wait", C, event_of(producer, 0)), ("record", C, event_of(consumer, 0)),
    ]  # fmt: skip
    assert ring.segment.creator.fence(producer.peer, 1) == 0
    ring.finish(producer)
    consumer.acquire_many(1, 0).release()
    assert ring.told() == [("record", C, event_of(consumer, 1))]
    assert ring.segment.creator.fence(producer.peer, 1) == ring.work(producer, 1)[producer.peer, 1]


def test_ones_own_event_is_waited_for_on_another_stream_only(rig):
    for second, waits in ((C, False), (D, True)):
        ring = rig("event", slots=1)
        producer, consumer = ring.producer(), ring.consumer()
        calls = read_twice(ring, producer, consumer, C, second)
        assert calls == (event_waits(second, event_of(consumer, 0)) if waits else [])


def test_an_event_that_is_not_known_or_reports_an_error_is_left_to_python(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    rows, work = consumer._sync.rows, ring.work(producer, 0, 1, 2, 3)
    row = rows[producer.peer]

    def asked_python(slot):
        ring.told()
        consumer.acquire(0)
        assert ring.told() == [("order", C, {(producer.peer, slot): work[producer.peer, slot]})]

    rows[producer.peer] = None
    asked_python(0)
    rows[producer.peer] = EventRow(producer._peer.id, 4)
    asked_python(1)
    rows[producer.peer] = EventRow(producer._peer.id + 1, 4)  # of who had the number before
    asked_python(2)
    rows[producer.peer] = row
    ring.driver.errors["event_query"] = INVALID
    asked_python(3)


def test_rows_are_bounded():
    row = EventRow(7, 2)
    assert (row.peer_id, row[0], row[1]) == (7, 0, 0)
    for index in (2, 2**31):
        with pytest.raises(IndexError):
            _ = row[index]
        with pytest.raises(IndexError):
            row[index] = 1


# ---- the synchronisers themselves, over a fake CUDA ----------------------------------------------


def test_the_events_of_a_number_are_opened_anew_for_its_next_owner(rig, monkeypatch):
    real_device(monkeypatch)
    monkeypatch.setattr(event, "_idle", {})
    monkeypatch.setattr(event, "_made", {})
    ring = rig("event", sync_type=RealEvents, slots=2)
    producer, first = ring.producer(), ring.consumer("1")

    def lap(consumer):
        producer.claim_many(2, 0).publish()
        ring.finish()
        consumer.acquire_many(2, 0).release()
        ring.told()

    lap(first)
    producer.claim_many(2, 0).abandon()
    calls = [call for call in ring.told() if call[0] == "wait"]
    assert calls == event_waits(P, event_of(first, 0), event_of(first, 1))
    row = producer._sync.rows[first.peer]
    assert row.peer_id == first._peer.id
    producer.claim_many(2, 0).abandon()
    assert producer._sync.rows[first.peer] is row  # met once

    ring.finish()
    first.close()
    ring.peers.remove(first)
    opened = [event_of(first, slot) for slot in range(2)]
    second = ring.consumer("2", D)
    assert second.peer == first.peer
    lap(second)
    del row
    producer.claim_many(2, 0).abandon()
    assert producer._sync.rows[second.peer].peer_id == second._peer.id
    assert producer._sync._runtime.destroyed == opened
    calls = [call for call in ring.told() if call[0] == "wait"]
    assert calls == event_waits(P, event_of(second, 0), event_of(second, 1))


# ---- fences that are about to be paid ----------------------------------------------------------
#
# gr_soon with events, where each look is a query: its decisions are seen one by one.


def consulted(ring, consumer, own):
    """Acquires one frame whose fence is open, with patience; whether its own work was asked for."""
    ring.driver.queries.clear()
    consumer.acquire(PATIENCE_S).release()
    return own in ring.driver.queries


def test_while_nothing_of_ours_is_pending_a_wait_is_enqueued_at_once(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(3, 0).publish()
    ring.told()
    consumer.acquire(PATIENCE_S).release()  # nothing was ever promised
    assert ring.told()[0] == ("wait", C, event_of(producer, 0))
    ring.finish(consumer)
    ring.driver.queries.clear()
    consumer.acquire(PATIENCE_S).release()
    assert ring.told()[0] == ("wait", C, event_of(producer, 1))
    theirs, own = event_of(producer, 1), event_of(consumer, 0)
    assert ring.driver.queries == [theirs, theirs, own]  # one look
    consumer.acquire(PATIENCE_S).release()  # and it did not make blind
    assert event_of(consumer, 1) in ring.driver.queries


def test_a_call_that_may_not_block_has_no_patience(rig):
    ring = rig("event", slots=8)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(8, 0).publish()
    consumer.acquire(0).release()
    ring.driver.queries.clear()
    consumer.acquire(0).release()
    assert ring.driver.queries == [event_of(producer, 1)]
    ring.driver.queries.clear()
    consumer.acquire_many(4, PATIENCE_S)  # for the first only
    queries = ring.driver.queries
    assert event_of(consumer, 1) in queries
    last_own = max(k for k, each in enumerate(queries) if each == event_of(consumer, 1))
    assert queries[last_own + 1 :].count(event_of(producer, 3)) == 1
    assert queries[-2:] == [event_of(producer, 4), event_of(producer, 5)]


def test_a_fence_that_is_paid_while_we_look_needs_no_wait(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    consumer.acquire(0).release()
    theirs = event_of(producer, 1)

    def pay(event):
        if event == theirs and ring.driver.queries.count(theirs) == 2:  # the first look of gr_soon
            ring.driver.pending.discard(theirs)

    ring.driver.on_query = pay
    ring.driver.queries.clear()
    ring.told()
    consumer.acquire(PATIENCE_S)
    assert ring.told() == []
    assert ring.driver.queries == [theirs, theirs]
    assert ring.segment.creator.fence(producer.peer, 1) == ring.work(producer, 1)[producer.peer, 1]


def test_it_looks_again_while_our_own_work_is_pending(rig):
    """The look that finds our own event pending is followed by another one, at theirs.

    Unless this process was stopped meanwhile for longer than its patience: hence several tries."""

    def sees_it():
        ring = rig("event")
        producer, consumer = ring.producer(), ring.consumer()
        producer.claim_many(4, 0).publish()
        consumer.acquire(0).release()

        def pay(event):
            if event == event_of(consumer, 0):
                ring.driver.pending.discard(event_of(producer, 1))

        ring.driver.on_query = pay
        ring.told()
        consumer.acquire(PATIENCE_S)
        return ring.told() == []

    assert any(sees_it() for _ in range(100))


def test_looks_in_vain_make_it_blind_for_longer_and_longer(rig):
    ring = rig("event", slots=64)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(64, 0).publish()
    consumer.acquire(0).release()
    pattern = ""
    for slot in range(1, 32):
        pattern += "C" if consulted(ring, consumer, event_of(consumer, slot - 1)) else "-"
    assert pattern == "C-" + "C---" + "C-------" + "C---------------" + "C"
    assert len([call for call in ring.told() if call[0] == "wait"]) == 32  # none was left out


def test_a_look_that_was_worth_it_ends_the_blindness(rig):
    ring = rig("event", slots=64)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(64, 0).publish()
    consumer.acquire(0).release()
    for slot, expected in enumerate("C-C---", 1):
        assert consulted(ring, consumer, event_of(consumer, slot - 1)) == (expected == "C")
    theirs = event_of(producer, 7)

    def pay(event):
        if event == theirs and ring.driver.queries.count(theirs) == 2:
            ring.driver.pending.discard(theirs)

    ring.driver.on_query = pay
    ring.told()
    consulted(ring, consumer, None)
    assert [name for name, *_ in ring.told()] == ["record"]
    for slot, expected in enumerate("C-C---", 8):
        assert consulted(ring, consumer, event_of(consumer, slot - 1)) == (expected == "C")


def test_with_a_timeline_another_threads_store_is_seen(rig):
    """The other thread waits for the GIL, which is free while gr_soon looks and not before.

    Whether it is fast enough is up to the machine: hence as many tries as the deadline allows."""
    ring = rig()
    producer = ring.producer()
    go, stop, job = threading.Event(), [], []

    def store():
        while go.wait() and not stop:
            go.clear()
            ring.segment.creator.raise_fence(*job[0])
            job.clear()

    def sees_it():
        consumer = ring.consumer()  # one that has not looked in vain yet
        producer.claim_many(2, 0).publish()
        consumer.acquire(0).release()
        ring.told()
        slot = (consumer._peer.seq + 1) % 4
        job.append((producer.peer, slot, ring.work(producer, slot)[producer.peer, slot]))
        go.set()
        sum(range(20_000))  # it comes as far as the GIL
        too_early = not job  # it got it, while the lock of `go` was taken
        consumer.acquire(PATIENCE_S).release()
        seen = [name for name, *_ in ring.told()] == ["write"]
        poll(lambda: not job)
        ring.finish()
        consumer.close()
        ring.peers.remove(consumer)
        return seen and not too_early

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    thread = threading.Thread(target=store, daemon=True)
    thread.start()
    try:
        while not sees_it():
            pass
    finally:
        stop.append(True)
        go.set()
        sys.setswitchinterval(before)
        thread.join(PATIENCE_S)

"""If the driver refuses a wait or a record, the slot is given up, and its promise is reached."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.ctrl_c import ctrl_c
from tests.helpers.fake_driver import INVALID, C, P, event_of, event_waits
from tests.helpers.promise import promise
from tests.helpers.rig import held_by


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


def test_what_was_lost_before_frames_that_went_back_is_told_once(rig):
    ring = rig()
    producer, reader = ring.producer(), ring.consumer(lossless=False)
    for _ in range(10):
        producer.claim(0).publish()
    ring.driver.errors = {"wait_value": INVALID, "batch": INVALID}
    for n in (1, 3):
        with pytest.raises(gpuring.DeviceError):
            reader.acquire_many(n, 0)
    ring.driver.errors.clear()
    with reader.acquire_many(2, 0) as batch:
        assert [(slot.seq, slot.lost) for slot in batch] == [(10, 6), (11, 0)]


@pytest.mark.parametrize("lossless", [True, False], ids=["lossless", "lossy"])
def test_what_was_lost_upstream_before_frames_that_went_back_is_told_once(rig, lossless):
    ring = rig()
    producer, reader = ring.producer(), ring.consumer(lossless=lossless)
    for lost in (0, 2, 3, 7):
        with producer.claim(0) as slot:
            slot._set_origin(1, 0, lost)
    reader.acquire(0).release()
    ring.driver.errors = {"wait_value": INVALID, "batch": INVALID}
    for n in (1, 3):
        with pytest.raises(gpuring.DeviceError):
            reader.acquire_many(n, 0)
    ring.driver.errors.clear()
    with reader.acquire_many(3, 0) as batch:
        assert sum(slot.lost for slot in batch) == 7


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
    """There is one call for each event.  Waits that are in the stream already harm nobody."""
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


def is_settled(ring, promised, stream):
    """Whether nothing happened but a wait for the stream and then a store of the fence by the
    CPU."""
    header = ring.segment.creator
    assert ring.told() == []
    assert ring.driver.stream_queries == [stream] * len(promised)
    return {word: raw_verbs.fence(header, *word) for word in promised} == promised


@promise(
    "streams.md",
    "If the driver refuses to record the end of the work on a slot, the call waits until the "
    "streams that used the slot are idle.",
)
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
    assert is_settled(ring, promised, P)
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
    assert is_settled(ring, promised, C)
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
        raise ZeroDivisionError
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


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("role", ["publish", "release"])
def test_a_refused_batch_whose_settling_is_interrupted_is_settled_by_close(rig, kind, role):
    """Settling waits for streams, and Ctrl-C interrupts that.  The slots are given up only after
    another try or close() has paid their promises."""
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    batch = producer.claim_many(3, 0)
    if role == "release":
        batch.publish()
        ring.finish()
        batch = consumer.acquire_many(3, 0)
    endpoint = producer if role == "publish" else consumer
    ring.driver.errors = {"batch": INVALID, "event_record": INVALID}
    with ctrl_c(ring.driver, Interrupted), pytest.raises(Interrupted):
        getattr(batch, role)()
    assert held_by(endpoint) == [4, 5, 6]
    assert not ring.paid(endpoint)
    paid = []  # while the GPU is waited for

    def look(name):
        if name == "synchronize":
            paid.append(ring.paid(endpoint))

    ring.driver.on_call = look
    assert endpoint._peer.leave() == 0
    assert set(paid) == {False}
    assert ring.paid(endpoint)
    ring.peers.remove(endpoint)

"""Streams that are being captured into a CUDA graph take nothing of the ring's.

A write, a wait or a record there would be recorded and not done, and done again at each launch.  So
the verbs refuse, enqueue nothing, and leave the slots as they were.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from types import SimpleNamespace

import pytest

import gpuring
from gpuring.arrays import copying
from gpuring.ring import debug
from tests.helpers.ctrl_c import ctrl_c
from tests.helpers.fake_driver import CAPTURE, CAPTURE_ELSEWHERE, INVALID, C, D, P
from tests.helpers.rig import held_by

KINDS = pytest.mark.parametrize("kind", ["timeline", "event"])
MANY = pytest.mark.parametrize("many", [False, True])


@KINDS
@MANY
@pytest.mark.parametrize("verb", ["publish", "abandon", "release"])
def test_a_slot_on_a_captured_stream_stays_ours(rig, kind, many, verb):
    """The slot cannot even be abandoned, because its work cannot be waited for during the
    capture."""
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    slots = producer.claim_many(3, 0) if many else producer.claim(0)
    peer, stream = producer, P
    if verb == "release":
        slots.publish()
        ring.finish()
        peer, stream = consumer, C
        slots = consumer.acquire_many(3, 0) if many else consumer.acquire(0)
    held = held_by(peer)
    ring.driver.capturing = {stream}
    ring.told()
    promised = ring.segment.claims()
    for _ in range(2):
        with pytest.raises(gpuring.DeviceError, match=f"{stream:#x}.*{CAPTURE}"):
            getattr(slots, verb)()
        assert ring.told() == []  # neither recorded nor settled
        assert ring.driver.stream_queries == []
        assert ring.segment.claims() == promised  # nor promised
        assert held_by(peer) == held
        assert all(slot._open for slot in (slots if many else [slots]))
    ring.driver.capturing.clear()
    getattr(slots, verb)()
    assert held_by(peer) == []
    ring.finish()
    assert kind == "event" or ring.paid(peer)


@KINDS
@MANY
def test_a_captured_stream_is_made_to_wait_for_nobody(rig, kind, many):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    ring.lap(producer, consumer)
    ring.driver.capturing = {P, C}
    with pytest.raises(gpuring.DeviceError, match=f"{P:#x}.*{CAPTURE}"):
        producer.claim_many(2, 0) if many else producer.claim(0)
    assert held_by(producer) == []
    ring.driver.capturing = {C}
    with producer.claim(0) as slot:
        published = slot.seq
    ring.told()
    with pytest.raises(gpuring.DeviceError, match=f"{C:#x}.*{CAPTURE}"):
        consumer.acquire_many(2, 0) if many else consumer.acquire(0)
    assert held_by(consumer) == []
    assert ring.told() == []
    ring.driver.capturing.clear()
    with consumer.acquire(0) as slot:
        assert (slot.seq, slot.redelivered) == (published, False)


@KINDS
def test_one_of_several_streams_is_enough(rig, kind):
    ring = rig(kind)
    producer = ring.producer()
    slot = producer.claim(0)
    slot.use_on(D)
    ring.driver.capturing = {D}
    ring.told()
    with pytest.raises(gpuring.DeviceError, match=f"{D:#x}.*{CAPTURE}"):
        slot.publish()
    assert ring.told() == []
    assert held_by(producer) == [slot.seq]


@pytest.mark.parametrize("many", [False, True])
def test_the_default_stream_is_not_used_while_another_one_is_captured(rig, many):
    """CUDA would refuse its use, and end that capture."""
    ring = rig()
    producer = ring.producer(stream=0)
    slots = producer.claim_many(2, 0) if many else producer.claim(0)
    ring.driver.capturing = {D}
    with pytest.raises(gpuring.DeviceError, match=r"0x0.*906"):
        slots.publish()
    ring.driver.capturing.clear()
    slots.publish()


def test_a_block_that_raises_inside_a_capture_keeps_its_slot(rig):
    ring = rig()
    producer = ring.producer()
    slot = producer.claim(0)
    ring.driver.capturing = {P}
    with pytest.raises(gpuring.DeviceError) as caught, slot:
        raise ZeroDivisionError
    assert isinstance(caught.value.__context__, ZeroDivisionError)
    with pytest.raises(gpuring.DeviceError):
        producer.close()
    assert not producer.closed
    assert held_by(producer) == [slot.seq]
    ring.driver.capturing.clear()
    producer.close()
    assert producer.closed


@KINDS
def test_a_stream_is_asked_for_its_capture_before_each_operation_and_not_where_there_is_none(
    rig, kind
):
    """Where nothing is enqueued, nothing needs to be refused.  The next record refuses."""
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    ring.lap(producer, consumer)
    ring.finish(producer)
    asked = ring.driver.asked

    def cost(call):
        asked.clear()
        return call(), list(asked)

    batch, streams = cost(lambda: producer.claim_many(4, 0))
    assert streams == [P] * (5 if kind == "event" else 2)  # first, and before each submission
    assert cost(batch.publish)[1] == [P] * (4 if kind == "event" else 1)
    # As above, because our last read of the slot is pending, and once more before the record.
    assert cost(lambda: consumer.acquire(0).release())[1] == [C] * 3
    ring.finish()
    slot, streams = cost(lambda: consumer.acquire(0))
    assert streams == []  # no wait, and no word of our own
    assert cost(slot.release)[1] == [C]


def test_any_other_error_is_told_by_the_operation_and_gives_the_slot_up(rig):
    ring = rig()
    producer = ring.producer()
    ring.driver.errors["is_capturing"] = INVALID
    with producer.claim(0):
        pass
    assert [name for name, *_ in ring.told()] == ["write"]
    for error in (INVALID, CAPTURE - 1, CAPTURE + 9):
        slot = producer.claim(0)
        ring.driver.errors["write_value"] = error
        with pytest.raises(gpuring.DeviceError, match=f"{P:#x}.*{error}"):
            slot.publish()
        assert held_by(producer) == []
        ring.driver.errors.clear()


def test_the_error_says_what_to_do(rig):
    ring = rig()
    producer = ring.producer()
    slot = producer.claim(0)
    ring.driver.capturing = {P}
    with pytest.raises(
        gpuring.DeviceError, match=r"0x100 is being captured.*outside.*another stream"
    ):
        slot.publish()
    assert slot._open


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("where", ["record", "query"])
def test_what_a_capture_holds_is_not_taken_for_done(rig, kind, where):
    """A capture may begin in another thread after we have asked.  Then the record is refused, or
    the stream cannot be asked whether its work is done."""
    ring = rig(kind)
    producer = ring.producer()
    slot = producer.claim(0)
    status = CAPTURE_ELSEWHERE if where == "record" else INVALID
    ring.driver.errors = {"write_value": status, "event_record": status}
    ring.driver.on_stream_query = lambda _: CAPTURE
    with pytest.raises(gpuring.DeviceError, match=f"{P:#x} is being captured"):
        slot.publish()
    assert slot._open
    assert held_by(producer) == [slot.seq]
    assert not ring.paid(producer)
    ring.driver.errors.clear()
    ring.driver.on_stream_query = lambda _: 0
    slot.publish()
    ring.finish()
    assert kind == "event" or ring.paid(producer)


def test_a_captured_stream_joins_no_slot(rig):
    """`use_on`, DLPack and copy_from order one stream behind another."""
    ring = rig()
    slot = ring.producer().claim(0)
    for captured in (D, P):
        ring.driver.capturing = {captured}
        with pytest.raises(gpuring.DeviceError, match=f"{captured:#x} is being captured"):
            slot.use_on(D)
        assert slot._streams == (P,)
    ring.driver.capturing.clear()


@MANY
def test_debug_mode_poisons_no_graph(rig, many, monkeypatch):
    """Debug mode enqueues a write at once, even if nothing is to be waited for.  So claim and
    acquire ask, too."""
    monkeypatch.setattr(debug, "ON", True)
    ring = rig()
    producer, consumer = ring.producer(), ring.consumer()
    ring.driver.capturing = {P, C}
    before = [slot._frame.copy() for slot in producer._slots]
    with pytest.raises(gpuring.DeviceError, match=f"{P:#x}"):
        producer.claim_many(2, 0) if many else producer.claim(0)
    assert held_by(producer) == []
    assert all(
        (slot._frame == old).all() for slot, old in zip(producer._slots, before, strict=True)
    )
    ring.driver.capturing = {C}
    producer.claim_many(2, 0).publish()
    ring.finish()
    with pytest.raises(gpuring.DeviceError, match=f"{C:#x}"):
        consumer.acquire_many(2, 0) if many else consumer.acquire(0)
    assert held_by(consumer) == []
    ring.driver.capturing.clear()
    consumer.acquire_many(2, 0).release()


def test_a_slot_that_stays_ours_may_be_used_on_in_debug_mode(rig, monkeypatch):
    monkeypatch.setattr(debug, "ON", True)
    ring = rig()
    slot = ring.producer().claim(0)
    ring.driver.capturing = {P}
    with pytest.raises(gpuring.DeviceError):
        slot.publish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert slot.array.sum() == 0
    ring.driver.capturing.clear()
    slot.publish()


def test_a_source_lives_while_nobody_can_tell_that_it_was_copied(monkeypatch):
    """Events cannot be asked while another thread captures in global mode."""
    status, sources = CAPTURE_ELSEWHERE, [object(), object()]

    class Event:
        device = 0

        def __init__(self, _):
            pass

        def record(self, _):
            pass

        def query(self):
            return status

    monkeypatch.setattr(copying, "Event", Event)
    monkeypatch.setattr(copying, "_kept", [])
    gpu = SimpleNamespace(ordinal=0)
    events = [copying._keep(gpu, P, source) for source in sources]
    assert [source for _, source in copying._kept] == sources
    assert len(set(events)) == 2
    status = 0
    assert copying._keep(gpu, P, None) in events  # used again: making one takes long
    assert [source for _, source in copying._kept] == [None]


@KINDS
def test_closing_while_another_thread_captures_waits_for_the_gpu(rig, kind):
    """A stream that may not be asked now is no error of the GPU."""
    ring = rig(kind)
    producer = ring.producer()
    producer.claim(0).publish()
    asked = []

    def answer(_stream):
        asked.append(ring.segment.creator.live_peers())
        return CAPTURE_ELSEWHERE

    ring.driver.finishes = False
    ring.driver.on_stream_query = lambda stream: (
        ring.finish() if len(asked) == 2 else None, answer(stream)
    )[1]  # fmt: skip
    producer.close()
    ring.peers.remove(producer)
    assert asked == [[producer.peer]] * 3
    assert ring.segment.creator.live_peers() == []


@KINDS
def test_an_interrupted_settling_is_not_finished_while_another_thread_captures(rig, kind):
    ring = rig(kind)
    producer = ring.producer()
    slot = producer.claim(0)
    ring.driver.errors = {"write_value": 1, "event_record": 1}
    with ctrl_c(ring.driver), pytest.raises(KeyboardInterrupt):
        slot.publish()
    ring.driver.errors = {"synchronize": CAPTURE_ELSEWHERE}
    with pytest.raises(gpuring.DeviceError, match="capture has ended"):
        producer._peer.leave()
    assert not ring.paid(producer)
    ring.driver.errors.clear()
    assert producer._peer.leave() == 0
    assert ring.paid(producer)
    ring.peers.remove(producer)


@pytest.mark.parametrize("call", ["synchronize", "unregister"])
def test_a_table_that_cannot_be_unregistered_during_a_capture_stays_mapped(rig, call):
    """CUDA would refuse the next one that the system maps at its address."""
    for status, kept in ((999, False), (CAPTURE_ELSEWHERE, True), (0, False)):
        ring = rig()
        producer = ring.producer()
        producer.close()
        ring.peers.remove(producer)
        calls = []
        ring.driver.on_call = calls.append
        ring.driver.errors = {call: status}
        device, header = producer._device, weakref.ref(producer._device.header)
        device.close()
        names = [name for name in calls if name in ("synchronize", "unregister")]
        kept_registered = kept and call == "synchronize"
        assert names == ["synchronize", "unregister"][: 1 if kept_registered else 2]
        del device, producer
        ring.devices.clear()
        gc.collect()
        assert (header() is not None) == kept

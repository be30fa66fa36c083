"""Interrupts after a verb has taken slots, and before its caller has them."""

from __future__ import annotations

import _thread
import linecache
import threading
import time
from functools import partial
from types import FrameType
from typing import Any

import pytest

import gpuring
from gpuring.ring import shutdown
from tests.helpers.interrupted import Interrupt, at_each_place
from tests.helpers.processes import poll
from tests.helpers.rings import drain, put, small_ring

pytestmark = pytest.mark.filterwarnings("ignore:.*nobody has its slot:ResourceWarning")


@pytest.fixture
def ring(name):
    with small_ring(name, 2) as made:
        yield made


class InOneFunction(Interrupt):
    """KeyboardInterrupt before the k-th opcode of this function's own frame."""

    def __init__(self, k: int, function: Any) -> None:
        super().__init__(k)
        self._code, self.line = function.__code__, ""

    def _call(self, frame: FrameType, *_: Any) -> Any:
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes = True
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self.where:
            self.line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return super()._opcode(frame, event, arg)


def claims(producer):
    slot = producer.claim(0)
    slot.publish()


def claims_with(producer):
    with producer.claim(0) as slot:
        slot.array[...] = 1


def claims_many(producer):
    slots = producer.claim_many(2, 0)
    slots.publish()


def claims_many_with(producer):
    with producer.claim_many(2, 0) as slots:
        slots[0].array[...] = 1


@pytest.mark.parametrize("verb", [claims, claims_with, claims_many, claims_many_with])
def test_an_interrupted_claim_is_given_back_by_the_next_verb(ring, verb):
    with ring.producer() as producer, ring.consumer(lossless=False) as reader:
        for interrupted in at_each_place(partial(InOneFunction, function=verb)):
            with interrupted:
                verb(producer)
            with producer.claim(0):
                assert len(producer._peer.holding()) == 1, interrupted.where
            assert producer._peer.holding() == [], interrupted.where
            drain(reader)


def acquires(consumer, seen):
    slot = consumer.acquire(0)
    seen.append(slot.seq)
    slot.release()


def acquires_with(consumer, seen):
    with consumer.acquire(0) as slot:
        seen.append(slot.seq)


def acquires_the_latest(consumer, seen):
    slot = consumer.latest(0)
    seen.append(slot.seq)
    slot.release()


def acquires_many(consumer, seen):
    slots = consumer.acquire_many(1, 0)
    seen.append(slots[0].seq)
    slots.release()


def acquires_many_with(consumer, seen):
    with consumer.acquire_many(1, 0) as slots:
        seen.append(slots[0].seq)


def iterates(consumer, seen):
    for slot in consumer:
        seen.append(slot.seq)
        break


def selects(consumer, seen):
    for ready in gpuring.select([consumer], 0):
        slot = ready.acquire(0)
        seen.append(slot.seq)
        slot.release()


VERBS = [
    acquires,
    acquires_with,
    acquires_the_latest,
    acquires_many,
    acquires_many_with,
    iterates,
    selects,
]


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupted_acquire_loses_no_frame_and_holds_none(ring, verb):
    """A frame that the caller has not seen comes again.  One that it has seen does not."""
    lossless = verb is not acquires_the_latest
    with ring.producer() as producer, ring.consumer(lossless=lossless) as reader:
        for interrupted in at_each_place(partial(InOneFunction, function=verb)):
            seen: list[int] = []
            (seq,) = put(producer)
            with interrupted:
                verb(reader, seen)
            (after,) = put(producer)
            got = seen + drain(reader)
            line = interrupted.line if interrupted.where else ""
            # The frame was seen but not yet noted.  Or it was on the way from the loop, which
            # cannot tell this from a break.
            gone = "seen.append" in line or "for slot in consumer" in line
            assert got[-2:] == [seq, after] or (gone and got == [after]), interrupted.where
            assert reader._peer.holding() == [], interrupted.where
            assert not any(peer.lost for peer in ring.stats().peers), interrupted.where


def test_a_ctrl_c_that_comes_with_the_slot_leaves_nothing(ring):
    """The slot is given back at once and not by the next verb, because others wait for it."""
    in_time = 0
    with ring.producer() as producer, ring.consumer() as reader:
        for _ in range(200):
            put(producer)
            put(producer)
            held = reader.acquire(0)

            def meanwhile(held=held):
                poll(lambda: ring.stats().producers[0].waiting)
                held.release()  # and the other thread cannot run before we let it
                _thread.interrupt_main()

            thread = threading.Thread(target=meanwhile)
            thread.start()
            claimed = False
            try:
                with producer.claim(10):
                    claimed = True  # the other thread was too slow
                thread.join()
                time.sleep(0)  # where the interrupt comes at the latest
            except KeyboardInterrupt:
                in_time += not claimed
            assert producer._peer.holding() == []
            thread.join()
            del held
            drain(reader)
    assert in_time


class Takes:
    """A verb for whose next slots new objects are made, because the test keeps the old ones."""

    def __init__(self, ring: gpuring.Ring, verb: str) -> None:
        self.producer, self.reader = ring.producer(), ring.consumer()
        self.kept: list[Any] = []
        self.endpoint: Any = self.producer if "claim" in verb else self.reader
        for _ in range(ring.slots):
            claim = self.producer.claim(0)
            claim.publish()
            frame = self.reader.acquire(0)
            assert frame.array is not None
            frame.release()
            self.kept.append(claim if self.endpoint is self.producer else frame)
        if self.endpoint is self.reader:
            self.producer.claim_many(ring.slots, 0).publish()
        arguments = (2, 0) if "many" in verb else (0,)
        self.verb = lambda: getattr(self.endpoint, verb)(*arguments)

    def holding(self) -> list[int]:
        return [seq for _, seq in self.endpoint._peer.holding()]


def each_of(slots: Any) -> list[Any]:
    return list(slots) if isinstance(slots, tuple) else [slots]


@pytest.fixture(params=["claim", "claim_many", "acquire", "acquire_many"])
def takes(ring, request) -> Takes:
    return Takes(ring, request.param)


@pytest.mark.parametrize("where", ["_make_slot", "_succeed"])
def test_an_interrupt_while_another_object_is_made_leaves_nothing(takes, monkeypatch, where):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "_make_slot":
            patch.setattr(takes.endpoint, where, interrupted)
        else:
            kind = takes.endpoint._kind
            patch.setattr(takes.endpoint, "_kind", type("Slot", (kind,), {where: interrupted}))
        with pytest.raises(KeyboardInterrupt):
            takes.verb()
    assert takes.holding() == []
    slots = takes.verb()
    assert [slot.seq for slot in each_of(slots)] == takes.holding()
    assert not any(slot._open for slot in takes.kept)


def test_what_a_verb_is_about_to_hand_out_is_not_lost(takes, monkeypatch):
    """Another thread that waits looks for lost slots of all endpoints."""
    make = takes.endpoint._make_slot

    def meanwhile(index: int) -> Any:
        shutdown._Blocked().give_back_lost()
        return make(index)

    del takes.kept[1:]  # nobody keeps the objects of the other slots
    monkeypatch.setattr(takes.endpoint, "_make_slot", meanwhile)
    slots = takes.verb()
    assert [slot.seq for slot in each_of(slots)] == takes.holding()


def test_the_object_that_had_the_slot_before_cannot_end_what_a_verb_is_about_to_hand_out(
    takes, monkeypatch
):
    """Another thread may have the old object, and run while the verb makes a new one."""
    make = takes.endpoint._make_slot

    def meanwhile(index: int) -> Any:
        for slot in takes.kept:
            with pytest.raises(gpuring.RingError, match="is no longer yours"):
                slot.abandon() if takes.endpoint is takes.producer else slot.release()
        return make(index)

    monkeypatch.setattr(takes.endpoint, "_make_slot", meanwhile)
    slots = takes.verb()
    assert [slot.seq for slot in each_of(slots)] == takes.holding()


def test_a_signal_handler_that_closes_while_another_object_is_made_is_obeyed(takes, monkeypatch):
    make = takes.endpoint._make_slot

    def meanwhile(index: int) -> Any:
        takes.endpoint.close()
        return make(index)

    monkeypatch.setattr(takes.endpoint, "_make_slot", meanwhile)
    with pytest.raises(gpuring.RingClosed):
        takes.verb()
    assert takes.holding() == []


def test_close_waits_for_a_thread_that_makes_another_object(takes, monkeypatch):
    """Otherwise close would end frames that this thread is about to get."""
    make, held = takes.endpoint._make_slot, []
    closing = threading.Thread(target=takes.endpoint.close)

    def meanwhile(index: int) -> Any:
        if not held:
            closing.start()
            poll(lambda: takes.endpoint._peer.stopped)
        held.append(takes.holding())
        return make(index)

    monkeypatch.setattr(takes.endpoint, "_make_slot", meanwhile)
    slots = each_of(takes.verb())
    closing.join()
    assert {len(each) for each in held} == {len(slots)}
    assert takes.endpoint.closed
    assert not any(slot._open for slot in slots)

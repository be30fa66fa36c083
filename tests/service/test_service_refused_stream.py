"""Requests and answers whose stream takes nothing now: they stay the user's, and the call lives."""

from __future__ import annotations

import weakref

import pytest

import gpuring
from gpuring.ring.consumer import Consumer
from gpuring.ring.producer import Producer
from gpuring.service.pending import Answer, PendingCall, RequestSlot
from tests.helpers.fake_driver import C, P
from tests.service.services import serve


class Requests(Producer):
    _slot_type = RequestSlot


class Answers(Consumer):
    _slot_type = Answer


@pytest.fixture
def call(name):
    """A call in flight."""
    with serve(name), gpuring.connect(name) as client:
        made = PendingCall(client._mailbox, 1, 1, None)
        client._calls.live[1] = made
        yield made


def is_live(call):
    return call._mailbox.calls.live.get(1) is call


@pytest.mark.parametrize("verb", ["publish", "abandon"])
def test_a_request_on_a_captured_stream(rig, call, verb):
    ring = rig(slots=2)
    slot = ring.producer(kind=Requests).claim()
    slot._call, call._seq = weakref.ref(call), slot.seq
    ring.driver.capturing = {P}
    with pytest.raises(gpuring.DeviceError):
        getattr(slot, verb)()
    assert slot._open
    assert is_live(call), "its answer would be discarded, and result() would wait for ever"
    ring.driver.capturing = set()
    getattr(slot, verb)()
    assert is_live(call) == (verb == "publish")


def test_an_answer_on_a_captured_stream(rig, call):
    ring = rig(slots=2)
    producer, answers = ring.producer(), ring.consumer(kind=Answers)
    producer.claim().publish()
    slot = answers.acquire()
    slot._call = weakref.ref(call)
    ring.driver.capturing = {C}
    with pytest.raises(gpuring.DeviceError):
        slot.release()
    assert is_live(call), "its slot is not there for another answer yet"
    ring.driver.capturing = set()
    slot.release()
    assert not is_live(call)

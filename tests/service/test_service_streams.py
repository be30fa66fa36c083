"""What a client's stream waits for, and calls whose client has a captured stream.  The GPU is
fake."""

from __future__ import annotations

import asyncio
import struct
import time
import weakref

import pytest

import gpuring
from gpuring.ring.consumer import Consumer
from gpuring.ring.producer import Producer
from gpuring.service import _envelopes, _inbox
from gpuring.service._sender import Sender
from gpuring.service._sleepers import Turn
from gpuring.service.pending import Answer, PendingCall, RequestSlot
from gpuring.service.tasks import Tasks
from tests.helpers.fake_driver import C, P
from tests.service.services import serve


class Answers(Consumer):
    _slot_type = Answer


class Requests(Producer):
    _slot_type = RequestSlot


class Inbox(_inbox.Inbox):
    def _look(self, now):
        pass

    def _tasks_of(self, loop):
        tasks = self._loops[loop] = Tasks(self, loop, {})
        return tasks


@pytest.fixture
def client(rig):
    """A client's inbox on a GPU, and a function that answers a call as an engine would."""
    ring = rig(slots=8, meta_nbytes=_envelopes.ENVELOPES[1])
    engine, inbox = ring.producer(), Inbox("test", 4)
    inbox._open(ring.consumer(kind=Answers, lossless=False))
    header = engine._ring._header

    def answer(call):
        slot = engine.claim(0)
        struct.pack_into("<QB", memoryview(header), slot.index * header.meta_stride, call.number, 0)
        slot.publish()
        return {(engine.peer, slot.index): slot.seq}

    return ring, inbox, answer


def calls_of(inbox, n):
    calls = [PendingCall(inbox, number, number, None) for number in range(1, n + 1)]
    for call in calls:
        call._sent_at = time.monotonic()
    inbox.calls.live.update({call.number: call for call in calls})
    return calls


def waited(ring):
    """The (peer, slot) for which a stream was told to wait."""
    told = [(stream, *words) for kind, stream, words in ring.told() if kind.startswith("wait")]
    assert all(stream == C for stream, *_ in told)
    return [word for _, *words in told for word in words]


def test_a_client_waits_for_no_answer_but_the_one_that_it_asks_for(client):
    ring, inbox, answer = client
    first, second, third = calls_of(inbox, 3)
    slots = [next(iter(answer(call))) for call in (second, first, third)]
    ring.told()
    assert first.done
    assert waited(ring) == slots[:2]  # they come in the order in which they were claimed
    assert [call._is_done() for call in (first, second, third)] == [True, True, False]
    with second.result(0), first.result(0):
        pass
    assert waited(ring) == []
    with third.result(0):
        assert waited(ring) == slots[2:]


def test_a_request_waits_for_no_answer_that_nobody_has_asked_for(rig, client):
    ring, inbox, answer = client
    requests = rig(slots=8, meta_nbytes=_envelopes.ENVELOPES[0])
    requests.consumer("engines")
    producer = requests.producer(kind=Requests)
    sender = Sender(producer._ring, producer, inbox, Turn(), 1, False, PendingCall)
    first, second, _ = calls_of(inbox, 3)
    answers = [next(iter(answer(call))) for call in (first, second)]
    ring.told()
    sender._send(0, None, None, None).publish()
    assert waited(ring) == []
    inbox.calls.live.clear()  # as if these were second answers, which take the room of others
    sender._send(0, None, None, None).publish()
    assert waited(ring) == answers


def test_tasks_get_their_answers_one_after_the_other(client):
    """The stream waits for the next answer when the task before has enqueued its work."""
    ring, inbox, answer = client
    calls = calls_of(inbox, 4)
    order = []

    async def take(call):
        with await call:
            order.append((call.number, waited(ring)))

    async def main():
        tasks = [asyncio.ensure_future(take(call)) for call in calls[:3]]
        await asyncio.sleep(0)  # until they are asleep
        slots = [next(iter(answer(call))) for call in calls]
        ring.told()
        await asyncio.gather(*tasks, take(calls[3]))
        return slots

    slots = asyncio.run(main())
    assert order == [(number, [slot]) for number, slot in enumerate(slots, 1)]


# ---- on a captured stream: a slot stays the user's, and its call lives ------------------------


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

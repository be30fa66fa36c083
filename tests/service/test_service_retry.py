"""Answers that are begun and not sent: the call can be answered, and others keep their answers."""

from __future__ import annotations

import contextlib

import pytest

import gpuring
from gpuring.ring.endpoint import Endpoint
from gpuring.service.call import AnswerWriter
from tests.helpers.fake_driver import D, P, follows
from tests.service import services
from tests.service.services import answer, finish, send, serve


class Trouble(Exception):
    pass


def begin(call):
    """An answer that its block does not send."""
    with contextlib.suppress(Trouble), call.answer() as slot:
        slot.array[...] = 7
        raise Trouble


def test_an_engine_may_try_an_answer_again_and_again(name):
    """It does so more often than its client has slots.  The client does not look meanwhile."""
    with serve(name) as server, gpuring.connect(name, calls=4) as client:
        calls = [send(client, k) for k in range(4)]
        for call in server.take(4, timeout=10):
            for _ in range(5):
                begin(call)
            answer(call)
        for k, call in enumerate(calls):
            finish(client, k, call)
        assert server.counts.answered == 4


def test_answers_begun_at_once_and_not_sent(name):
    with serve(name) as server, gpuring.connect(name, calls=4) as client:
        calls = [send(client, k) for k in range(4)]
        taken = server.take(4, timeout=10)
        for _ in range(3):
            for slot in [call.answer() for call in taken]:
                slot.abandon()
                with pytest.raises(gpuring.RingError, match="no longer yours"):
                    slot.publish()
        for call in reversed(taken):
            answer(call)
        for k, call in enumerate(calls):
            finish(client, k, call)


def test_who_has_the_slot_of_an_answer_that_was_not_sent_cannot_send_the_next_one(name):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        first, second = server.take(2, timeout=10)
        stale = first.answer()
        stale.abandon()
        fresh = second.answer()
        fresh.array[...] = 5  # half written
        for use in (stale.publish, stale.abandon, lambda: stale.array, lambda: stale.meta):
            with pytest.raises(gpuring.RingError, match="no longer yours"):
                use()
        fresh.abandon()
        answer(second)
        answer(first)
        for k, call in enumerate(calls):
            finish(client, k, call)


def test_a_call_that_is_never_answered_delays_nobody_after_the_next_batch(name):
    with serve(name) as server, serve(name) as other, gpuring.connect(name) as client:
        send(client, 0)
        (failed,) = server.take(timeout=10)
        begin(failed)
        later = send(client, 1)
        answer(other.take(timeout=10)[0])
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)
        finish(client, 1, later)


def test_an_engine_that_leaves_leaves_no_answer_begun(name):
    with serve(name, engine=False), gpuring.connect(name) as client:
        with serve(name) as server:
            call = send(client, 0)
            begin(server.take(timeout=10)[0])
        with serve(name) as other:
            answer(other.take(timeout=10)[0])
            finish(client, 0, call)


def test_the_next_answer_may_have_another_shape_but_not_a_wrong_one(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        begin(taken)
        with pytest.raises(ValueError, match="shape"):
            taken.answer(shape=(services.WORDS + 1,))
        with pytest.raises(TypeError, match="host memory"):
            taken.answer(stream=1)
        with taken.answer(shape=(2,)) as slot:
            slot.array[...] = 5
        with call.result(10) as got:
            assert got.array.tolist() == [5, 5]


class Answers(AnswerWriter):
    _metas = Endpoint._metas  # the ring has no envelopes


def test_the_next_answers_stream_is_behind_what_was_begun(rig):
    ring = rig(slots=2)
    writer = ring.producer(kind=Answers)
    slot = writer.begin(0)
    slot._ending = "answered"
    slot.abandon()
    ring.told()
    again = writer.begin(0, D)
    assert again is not slot  # the test still has that object
    assert ring.told() == follows(D, P)
    assert (again._stream, again._streams) == (D, (D, P))
    again.abandon()
    writer.void(False)
    assert writer._peer.holding() == []

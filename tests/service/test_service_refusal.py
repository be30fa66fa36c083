"""Calls that are late, refused, failed or not sent.  Nothing is left of them."""

from __future__ import annotations

import os

import pytest

import gpuring
from tests.helpers.promise import promise
from tests.service import services
from tests.service.services import (
    answer,
    ask_here,
    check,
    in_thread,
    is_taken_for_dead,
    send,
    serve,
)


def test_a_request_that_cannot_be_sent_ends_its_call(name):
    """The client was taken for dead, so nobody would ever answer the call."""
    with serve(name), gpuring.connect(name) as client:
        slot = client.request(10)
        call = slot.call
        is_taken_for_dead(client)
        with pytest.raises(gpuring.PeerLost):
            slot.publish()
        with pytest.raises(gpuring.RingError, match="its request was not sent"):
            call.result(0)
        assert client.in_flight == 0


@promise(
    "services.md",
    "**Overload.** If the request ring is full, `request(timeout=0)` raises `RingFull` at once. "
    "`request(timeout=1.0)` raises it after a second, and `request()` waits.",
    "`slots` counts requests that wait *and* requests that engines work on.",
)
def test_a_full_ring_says_so_at_once_or_waits(name):
    with serve(name, slots=2) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        with pytest.raises(gpuring.RingFull, match="'engines' has not taken"):
            client.request(0)
        with pytest.raises(gpuring.RingFull, match=r"within 0\.01 s"):
            client.request(0.01)
        assert client.in_flight == 2
        third = in_thread(send, client, 2)
        for taken in server.take(2, timeout=10):
            answer(taken)
        calls.append(third())
        answer(server.take(timeout=10)[0])
        for k, call in enumerate(calls):
            with call.result(10) as slot:
                check(client, k, slot)


@promise(
    "parts.md",
    "A call that was cancelled is yours until you end it, as any other: by `call.part()`, "
    "`call.fail()` or an answer. While a variable has it and nobody ends it, it holds the slot of "
    "its request, and a lap later no client can send. `RingFull` then names the call, and the "
    "process that has it.",
)
def test_a_full_ring_names_the_call_that_is_in_the_way(name):
    with serve(name, slots=2) as server, gpuring.connect(name, calls=3) as client:
        call = send(client, 0)
        (kept,) = server.take(timeout=10)
        ask_here(server, client, 1)
        seq = kept.slot.seq
        holder = rf"pid {os.getpid()}.*\) of subscription 'engines' has held sequence {seq} for"
        mine = f"{holder} .*, which is call 1 of this client"
        with pytest.raises(gpuring.RingFull, match=f"{mine}$"):
            client.request(0)
        call.cancel()
        assert kept.cancelled
        told = f"{mine}. It was given up: its engine has to end it$"
        with pytest.raises(gpuring.RingFull, match=told):
            client.request(0)
        with gpuring.connect(name) as other:
            theirs = f"{holder} .*, which is call 1 of client {client.id:016x}. It was given up"
            with pytest.raises(gpuring.RingFull, match=theirs):
                other.request(0.01)
        kept.fail("it was cancelled")
        ask_here(server, client, 2)


@promise(
    "services.md",
    "`connect(name, calls=8)` limits how many calls of this client can be open. A call is open "
    "while it is in flight, and while its answer has come and is not released.",
    "If the caller itself has all `calls` of the client, `request` raises `RingFull` at once, "
    "because nobody else could end one of them.",
)
def test_the_callers_own_limit_is_told_at_once(name):
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        first, second = send(client, 0), send(client, 1)
        with pytest.raises(gpuring.RingFull, match=r"for 2 calls, and 2 are in flight, 0 of them"):
            client.request()  # timeout=None, but only this thread could end a call
        for taken in server.take(2, timeout=10):
            answer(taken)
        with pytest.raises(gpuring.RingFull, match=r"for 2 calls, and 2 are in flight, 2 of them"):
            client.request()
        with second.result(10) as slot:
            check(client, 1, slot)
        client.request(10).abandon()
        assert client.in_flight == 1
        first.cancel()


def test_one_call_is_told_as_one(name):
    with serve(name), gpuring.connect(name, calls=1) as client:
        call = send(client, 0)
        with pytest.raises(gpuring.RingFull, match="has room for 1 call, and 1 is in flight, 0 of"):
            client.request()
        assert repr(client) == f"<Client of '{name}': 1 of 1 call in flight>"
        call.cancel()


def test_a_call_says_how_it_ended(name):
    def told(call):
        return repr(call).partition(", ")[2]

    with serve(name) as server, gpuring.connect(name) as client:
        with client.request() as slot:
            call = slot.call
            assert told(call) == "not sent yet>"
        assert repr(call) == f"<call 1 to service '{name}', in flight>"
        answer(server.take(timeout=10)[0])
        answered = call.result(10)
        assert told(call) == "answered>"
        answered.release()
        assert told(call) == "answered and released>"
        late, failed, cancelled = (send(client, k) for k in range(3))
        with pytest.raises(gpuring.RingTimeout):
            late.result(0)
        cancelled.cancel()
        server.take(3, timeout=10).fail("why")
        assert failed.wait(10)
        assert [told(each) for each in (late, failed, cancelled)] == [
            "given up>", "failed>", "given up>"
        ]  # fmt: skip
        lost = send(client, 4)
        server.close()
        assert lost.wait(10)
        assert told(lost) == "lost>"


@promise(
    "services.md",
    "If the block raised an exception, these calls fail with that exception. The client gets "
    "`CallFailed` with the text. The exception leaves the block, so it ends an engine that does "
    "not catch it.",
)
def test_an_exception_fails_the_calls_of_its_batch(name):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(3)]
        with pytest.raises(ZeroDivisionError), server.take(3, timeout=10) as batch:  # noqa: PT012
            answer(batch[0])
            raise ZeroDivisionError("weights × 0")
        with calls[0].result(10) as slot:
            check(client, 0, slot)
        for call in calls[1:]:
            with pytest.raises(gpuring.CallFailed, match="ZeroDivisionError: weights × 0"):
                call.result(10)
        assert (client.in_flight, server.counts.failed) == (0, 2)
        assert server.stats().subscriptions[0].lag == 0


@promise(
    "services.md",
    "A call that the block of `with server.take(…) as calls` leaves unanswered fails.",
)
def test_what_a_batch_leaves_unanswered_fails(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        with server.take(timeout=10):
            pass
        with pytest.raises(gpuring.CallFailed, match="left it unanswered"):
            call.result(10)


@promise(
    "services.md", 'You answer by `with call.answer()`, `call.reply(value)` or `call.fail("why")`.'
)
def test_a_failure_has_a_text_of_a_size(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        server.take(timeout=10)[0].fail("x" * 1000)
        with pytest.raises(gpuring.CallFailed, match=r"failed: x{240}$"):
            call.result(10)
        call = send(client, 0)
        server.take(timeout=10)[0].fail("")
        with pytest.raises(gpuring.CallFailed, match=r"failed: $"):
            call.result(10)
        ask_here(server, client, 1)


@promise(
    "services.md",
    "If the block of `call.answer()` raises, nothing is sent. You can then answer again, or fail "
    "the call.",
)
@pytest.mark.parametrize("again", [answer, lambda taken: taken.fail("no such thing")])
def test_an_answer_that_raises_is_not_sent_and_may_be_tried_again(name, again):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        with pytest.raises(ValueError, match="half"), taken.answer() as slot:  # noqa: PT012
            slot.array[:3] = 0
            raise ValueError("half done")
        assert not taken.answered
        assert not call.done
        again(taken)
        if again is answer:
            services.finish(client, 0, call)
        else:
            with pytest.raises(gpuring.CallFailed, match="no such thing"):
                call.result(10)
        assert server.counts.answered == (again is answer)


@promise(
    "services.md",
    "The slot of a call is yours until you answer the call. You answer by `with call.answer()`, "
    '`call.reply(value)` or `call.fail("why")`.',
)
def test_a_call_is_answered_once(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        answer(taken)
        for again in (
            taken.answer,
            lambda: taken.fail("x"),
            lambda: taken.array,
            lambda: taken.meta,
        ):
            with pytest.raises(gpuring.RingError, match="was answered"):
                again()
        services.finish(client, 0, call)


def test_a_request_that_raises_is_not_sent(name):
    with serve(name) as server, gpuring.connect(name) as client:
        with pytest.raises(ValueError, match="half"), client.request():
            raise ValueError("half done")
        assert client.in_flight == 0
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)
        ask_here(server, client, 1)

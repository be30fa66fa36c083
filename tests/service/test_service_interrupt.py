"""Ctrl-C at every opcode of the Python of services: nothing stays held, claimed, begun or in need
of room, and whoever was interrupted goes on."""

from __future__ import annotations

import contextlib
import signal

import pytest

import gpuring
from tests.helpers.interrupted import interrupts
from tests.service.services import answer, check, finish, send, serve, serve_once

# ---- engines ------------------------------------------------------------------------------------


def finish_all(server, client, calls):
    """Runs an engine's loop, and checks all answers."""
    while not all(call.done for call in calls):
        serve_once(server, timeout=0.05)
    for k, call in enumerate(calls):
        finish(client, k, call)


def owed(server):
    """What the engine still has after the next batch."""
    serve_once(server)
    held = [*server._requests._peer.holding(), *server._calls]
    for writer in server._delivery.writers.values():
        held += writer._peer.holding() + writer.begun
    return held


@pytest.mark.slow
def test_an_interrupted_engine_goes_on(name):
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        serve_once(server)
        for interrupt in interrupts():
            calls = [send(client, k) for k in range(2)]
            with interrupt:
                serve_once(server)
            finish_all(server, client, calls)
            assert owed(server) == [], interrupt.where
            assert client.in_flight == 0, interrupt.where


def test_an_engine_that_is_interrupted_in_the_midst_of_a_batch_goes_on(name):
    """Some calls are answered, one answer was begun, and one call fails.  The rest fail when the
    block ends."""

    def some(server):
        with server.take(4, timeout=10) as calls:
            answer(calls[0])
            calls[1].answer().abandon()
            answer(calls[1])
            calls[2].fail("on purpose")

    with serve(name) as server, gpuring.connect(name, calls=4) as client:
        for interrupt in interrupts(step=3):
            calls = [send(client, k) for k in range(4)]
            with interrupt:
                some(server)
            while not all(call.done for call in calls):
                serve_once(server, 4, timeout=0.05)
            for k, call in enumerate(calls):
                with contextlib.suppress(gpuring.CallFailed), call.result(10) as slot:
                    check(client, k, slot)
            assert owed(server) == [], interrupt.where
            assert client.in_flight == 0, interrupt.where


@pytest.mark.slow
@pytest.mark.parametrize("redeliver", [True, False])
def test_an_interrupted_close_of_an_engine_can_be_repeated(name, redeliver):
    """Its calls go to another engine, or their clients are told that they are lost."""
    terms = {"redeliver": redeliver}
    with (
        serve(name, engine=False, **terms),
        serve(name, **terms) as other,
        gpuring.connect(name, calls=3) as client,
    ):
        for interrupt in interrupts(step=7):
            server = serve(name, **terms)
            calls = [send(client, k) for k in range(3)]
            taken = server.take(3, timeout=10)
            slots = [taken[0].answer(), taken[1].answer()]
            slots[1].abandon()
            with interrupt:
                server.close()
            server.close()
            assert server.closed, interrupt.where
            assert server.ring.closed, interrupt.where
            if redeliver:
                finish_all(other, client, calls)
            for call in calls:
                with contextlib.suppress(gpuring.RingError), call.result(10):
                    pass
            assert owed(other) == [], interrupt.where
            assert client.in_flight == 0, interrupt.where
            assert len(client._mailbox._ring.stats().peers) <= 3, interrupt.where


def test_calls_that_nobody_has_go_back(name):
    """Ctrl-C came after they were taken, and before the caller had them."""
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(3)]
        server.take(2, timeout=10)
        taken = server.take(3, timeout=10)
        assert [call.number for call in taken] == [call.number for call in calls]
        for call in taken:
            answer(call)
        for k, call in enumerate(calls):
            finish(client, k, call)


def test_without_redelivery_calls_that_nobody_has_fail(name):
    with serve(name, redeliver=False) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        server.take(timeout=10)
        serve_once(server)
        with pytest.raises(gpuring.CallFailed, match="has let go of it"):
            call.result(10)


def test_an_answer_that_nobody_has_delays_nobody_after_the_next_batch(name):
    with serve(name) as server, serve(name) as other, gpuring.connect(name) as client:
        send(client, 0)
        (taken,) = server.take(timeout=10)
        taken.answer()
        ask_later = send(client, 1)
        answer(other.take(timeout=10)[0])
        serve_once(server)
        finish(client, 1, ask_later)
        answer(taken)


# ---- both ---------------------------------------------------------------------------------------


class Alarm(TimeoutError):
    """What handlers of signal.alarm mostly raise."""


@pytest.mark.parametrize(
    "wait",
    [
        lambda server, client: client.call(lambda _: None, 5),
        lambda server, client: send(client, 0).wait(5),
        lambda server, client: next(iter(send(client, 0).parts(5))),
        lambda server, client: server.take(1, timeout=5),
        lambda server, client: server.take(2, timeout=5),
    ],
    ids=["call", "wait", "parts", "take", "take two"],
)
def test_a_timeout_error_of_a_handler_is_not_taken_for_the_end_of_a_slice(name, wait):
    def alarm(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with serve(name) as server, gpuring.connect(name, calls=2) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Alarm):
                wait(server, client)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""Clients and engines that are closed, or interrupted, while somebody waits with them."""

from __future__ import annotations

import os
import signal

import pytest
from services import answer, in_thread, send, serve
from support import poll

import gpuring


@pytest.fixture
def on_signal():
    """Calls a function, in a signal handler, once a condition holds."""
    before = signal.getsignal(signal.SIGUSR1)

    def arrange(function, condition):
        def run():
            poll(condition)
            os.kill(os.getpid(), signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, lambda *_: function())
        in_thread(run)

    yield arrange
    signal.signal(signal.SIGUSR1, before)


def waits(endpoint):
    """Whether somebody sleeps in a verb of it."""
    number, stats = endpoint.peer, endpoint.ring.stats
    return lambda: any(each.waiting for each in stats().peers if each.number == number)


def test_a_signal_handler_may_close_a_client_that_waits_for_an_answer(name, on_signal):
    with serve(name):
        client = gpuring.connect(name)
        call = send(client, 0)
        on_signal(client.close, waits(client._mailbox._answers))
        with pytest.raises(gpuring.RingClosed):
            call.result()
        assert client.closed


def test_a_signal_handler_may_close_a_client_that_waits_to_send(name, on_signal):
    with serve(name, slots=1):
        client = gpuring.connect(name)
        send(client, 0)
        on_signal(client.close, waits(client._requests))
        with pytest.raises(gpuring.RingClosed):
            client.request()
        assert client.closed


def test_a_signal_handler_may_close_an_engine_that_waits_for_calls(name, on_signal):
    server = serve(name)
    on_signal(server.close, waits(server._requests))
    with pytest.raises(gpuring.RingClosed):
        server.take()
    assert server.closed


def test_a_client_may_be_closed_while_another_thread_waits_to_send(name):
    with serve(name, slots=1):
        client = gpuring.connect(name)
        send(client, 0)
        wait = in_thread(client.request)
        poll(waits(client._requests))
        client.close()
        with pytest.raises(gpuring.RingClosed):
            wait()


def raise_interrupt():
    raise KeyboardInterrupt


def test_an_interrupted_call_leaves_nothing_behind(name, on_signal):
    with serve(name) as server, gpuring.connect(name, calls=1) as client:
        on_signal(raise_interrupt, waits(client._mailbox._answers))
        with pytest.raises(KeyboardInterrupt):
            client.call(1)
        answer(server.take(timeout=10)[0])
        client.request(5).abandon()
        assert (client.in_flight, client.late) == (0, 1)

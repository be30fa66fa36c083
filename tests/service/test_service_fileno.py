"""The descriptor of a client, for selectors and event loops."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.helpers.rings import readable
from tests.service.services import answer, finish, in_thread, receives, send, serve


@promise(
    "services.md",
    "Every other event loop takes `client.fileno()`, or the client itself. It is readable when an "
    "answer may have come to any call, and `call.done` then says to which.",
)
def test_a_client_is_readable_when_an_answer_has_come(name):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(3)]
        assert not readable(client, 0)
        taken = server.take(3, timeout=PATIENCE_S)
        for k in range(2):
            answer(taken[k])
            assert readable(client, PATIENCE_S)
            assert calls[k].done
            poll(lambda: not calls[2].done and not readable(client, 0))
        answer(taken[2])
        assert readable(client, PATIENCE_S)
        for k in range(3):
            finish(client, k, calls[k])


def test_when_all_calls_are_done_a_client_is_not_readable(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        assert client.fileno() == client.fileno()
        answer(server.take(timeout=PATIENCE_S)[0])
        assert readable(client, PATIENCE_S)
        assert call.done
        assert not readable(client, 0)


def test_a_client_is_readable_though_another_thread_has_received_the_answer(name):
    with serve(name) as server, gpuring.connect(name) as client:
        assert not readable(client, 0)
        slow, call = send(client, 0), send(client, 1)
        first, second = server.take(2, timeout=PATIENCE_S)
        join = in_thread(slow.wait, PATIENCE_S)
        poll(lambda: receives(client))
        answer(second)
        poll(call._is_done)
        assert readable(client, PATIENCE_S)
        poll(lambda: receives(client))
        assert readable(client, PATIENCE_S)  # still, until it is asked
        assert call.done
        poll(lambda: not readable(client, 0))
        answer(first)
        assert join()
        assert readable(client, 0) is False
        finish(client, 0, slow)
        finish(client, 1, call)


def test_a_call_that_nobody_has_leaves_no_client_readable(name):
    with serve(name) as server, gpuring.connect(name) as client:
        assert not readable(client, 0)
        calls = [send(client, k) for k in range(2)]
        taken = server.take(2, timeout=PATIENCE_S)
        del calls[0]
        for each in taken:
            answer(each)
        assert readable(client, PATIENCE_S)
        poll(lambda: calls[0].done)
        poll(lambda: not readable(client, 0))


def test_a_closed_client_has_no_descriptor(name):
    with serve(name):
        client = gpuring.connect(name)
        client.close()
        with pytest.raises(gpuring.RingClosed, match="client was closed"):
            client.fileno()


class Watched:
    """A notifier that notes whether it is readable whenever it was armed."""

    def __init__(self, notifier, client):
        self._notifier, self._client = notifier, client
        self.seen = []
        self.set = notifier.set
        self.fileno = notifier.fileno

    def arm(self, peer):
        self._notifier.arm(peer)
        self.seen.append(readable(self._client, 0))


def watch(client, monkeypatch):
    assert not readable(client, 0)
    watched = Watched(client._mailbox._answers._notify(), client)
    monkeypatch.setattr(client._mailbox._answers, "_notify", lambda: watched)
    return watched


def test_while_one_answer_is_asked_for_the_descriptor_tells_of_the_other(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        watched = watch(client, monkeypatch)
        for taken in server.take(2, timeout=PATIENCE_S):
            answer(taken)
        for k, call in enumerate(calls):
            assert all(watched.seen)
            finish(client, k, call)
        assert watched.seen[-1] is False


def test_while_a_thread_waits_the_descriptor_tells_of_what_it_has_received(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        slow, call = send(client, 0), send(client, 1)
        watched = watch(client, monkeypatch)
        first, second = server.take(2, timeout=PATIENCE_S)
        answer(second)
        for timeout in (0, 0.01, 0.01):
            assert not slow.wait(timeout)
            assert all(watched.seen)
            assert readable(client, 0)
        finish(client, 1, call)
        answer(first)
        finish(client, 0, slow)

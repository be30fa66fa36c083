"""An answer that comes twice, between two looks or never, and what its client may conclude."""

from __future__ import annotations

import os
import signal

import pytest

import gpuring
from gpuring.service.server import Server
from tests.helpers.processes import up
from tests.helpers.promise import promise
from tests.service import services
from tests.service.services import answer, ask_here, finish, send, serve


def dies_after_its_answer(pipe, name):
    """An engine that dies between the answer and the release of its request."""
    server = serve(name)
    pipe.send("up")
    Server._let_go = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    (call,) = server.take()
    answer(call)


@promise(
    "services.md",
    "another engine answers it again; the client discards the second answer",
    "A call may be *computed* twice, but it is answered once.",
)
def test_an_answer_that_came_twice_is_given_once(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        victim = up(children(dies_after_its_answer, name))
        call = send(client, 0)
        victim.process.join(20)
        with serve(name) as other:
            (taken,) = other.take(timeout=10)
            assert taken.redelivered
            answer(taken)
            finish(client, 0, call)
            ask_here(other, client, 1)
        assert (client.late, client.in_flight) == (1, 0)


def send_unseeing(client, k):
    """Sends as send() does, but does not receive answers first."""
    client._mailbox.pump = lambda *_: True
    try:
        return send(client, k)
    finally:
        del client._mailbox.pump


@pytest.mark.slow
@pytest.mark.parametrize("looks", [True, False])
def test_answers_that_come_too_often_overwrite_each_other_and_block_nobody(name, children, looks):
    """Each engine that dies after its answer takes one more slot of a client that does not look.
    (A client looks before each request, and while it waits.)"""

    def deaths(n):
        for _ in range(n):
            victim = up(children(dies_after_its_answer, name))
            yield
            victim.process.join(20)
            assert victim.process.exitcode == -signal.SIGKILL

    with serve(name, engine=False), gpuring.connect(name, calls=3) as client:
        with serve(name) as server:
            first = send(client, 0)
            answer(server.take(timeout=10)[0])
        again = None
        for _ in deaths(4):
            again = again or send_unseeing(client, 1)
        if looks:
            with serve(name):  # no engine has anything to send
                client.request(10).abandon()
        assert len(list(deaths(3))) == 3  # with the first answer one more than the ring has slots
        with serve(name) as other:
            answer(other.take(timeout=10)[0])
            finish(client, 1, again)
            if looks:
                finish(client, 0, first)
            else:
                with pytest.raises(gpuring.PeerLost, match="has dealt with it, and no answer"):
                    first.result(20)
            ask_here(other, client, 2)
            assert other.counts.undelivered == 0
        assert client.in_flight == 0


def test_a_call_whose_answer_was_missed_is_known_to_be_lost(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        monkeypatch.setattr(server._delivery, "reach", lambda *_: None)
        answer(taken)
        monkeypatch.undo()
        assert server.counts.undelivered == 1
        with pytest.raises(gpuring.PeerLost, match="has dealt with it, and no answer came"):
            call.result(20)
        ask_here(server, client, 1)


def look_now(client, call):
    """Lets the next wait look at once at what has become of the call."""
    client._mailbox._looked = call._sent_at = 0


def test_an_answer_that_comes_between_two_looks_is_not_lost(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)

        def nothing_yet(*_, **__):
            answer(taken)  # just after the client has looked for it
            raise gpuring.RingTimeout

        with monkeypatch.context() as patched:
            patched.setattr(client._mailbox._answers, "acquire", nothing_yet)
            patched.setattr(client._mailbox._answers, "_replaced", True)
            look_now(client, call)
            client._mailbox.receive(0.01, None)
            assert not call._is_done()
        finish(client, 0, call)


def test_the_time_without_engines_begins_anew_with_each_gap(name):
    with serve(name, engine=False), gpuring.connect(name, engine_s=20) as client:
        with serve(name):
            call = send(client, 0)
        look_now(client, call)
        assert not call.wait(0)
        client._mailbox._orphaned -= 100
        with serve(name) as server:
            answer(server.take(timeout=10)[0])
            finish(client, 0, call)
            call = send(client, 1)
        look_now(client, call)
        assert not call.wait(0)
        with serve(name) as server:
            answer(server.take(timeout=10)[0])
            finish(client, 1, call)


def test_an_answer_that_a_ctrl_c_came_upon_is_found_again(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        answer(server.take(timeout=10)[0])

        def interrupted(_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(client._mailbox, "_dispatch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call.result(10)
        finish(client, 0, call)


@promise(
    "services.md",
    "A client reads its answers in the order in which `call.answer()` was called for them. So call "
    "it when you have something to write.",
)
def test_a_lost_call_is_not_told_while_its_answer_may_be_behind_another_one(name):
    """An engine that is slow with one answer keeps the client from later answers.  None of them is
    lost."""
    with serve(name) as server, gpuring.connect(name) as client:
        slow, quick = (send(client, k) for k in range(2))
        first, second = server.take(2, timeout=10)
        writing = first.answer()
        answer(second)
        assert not quick.wait(0.3)  # time for some looks.  This synchronises nothing.
        writing.array[...] = services.answer_of(first.array)
        writing.meta["k"], writing.meta["client"] = 0, client.id
        writing.publish()
        finish(client, 1, quick)
        finish(client, 0, slow)


def test_a_wait_that_ends_without_a_frame_makes_no_error(name, monkeypatch):
    """An error says who is in the way.  To find that out takes longer than a call, and here nobody
    reads it."""

    def refused(*_, **__):
        raise AssertionError("an error was made")

    with serve(name) as server, gpuring.connect(name) as client:
        first, second = send(client, 0), send(client, 1)
        batch = server.take(8, max_wait_s=0.01, timeout=10)  # it waits for calls that do not come
        answer(batch[0])
        monkeypatch.setattr("gpuring.registry.diagnosis.refused", refused)
        with batch[1].answer() as slot:  # it is claimed and not sent
            finish(client, 0, first)
            assert not second.wait(0.01)
            slot.array[...] = services.answer_of(batch[1].array)
            slot.meta["k"], slot.meta["client"] = 1, client.id
        finish(client, 1, second)
        with pytest.raises(gpuring.RingTimeout, match="no call within"):
            server.take(8, timeout=0.01)
        with pytest.raises(gpuring.RingTimeout, match="no call within"):
            server.take(timeout=0)

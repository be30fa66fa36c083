"""Clients and engines that are closed or interrupted while somebody waits in one of their verbs."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal

import pytest

import gpuring
from gpuring.native.snapshot import snapshot
from gpuring.ring import inner
from gpuring.service.pending import Answer
from tests.helpers.interrupted import interrupts
from tests.helpers.processes import PATIENCE_S, other_threads_sleep, poll, up
from tests.helpers.rings import segments_of
from tests.service.services import (
    answer,
    finish,
    holder,
    in_thread,
    send,
    serve,
    whole,
)


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
    """Whether a thread sleeps in a verb of it."""
    number, stats = endpoint.peer, endpoint.ring.stats
    return lambda: any(each.waiting for each in stats().peers if each.number == number)


@pytest.mark.parametrize("verb", ["result", "request", "take"])
def test_a_signal_handler_may_close_who_waits(name, on_signal, verb):
    with serve(name, slots=1) as server, gpuring.connect(name) as client:
        if verb == "take":
            closes, endpoint, wait = server, server._requests, server.take
        else:
            call = send(client, 0)
            endpoint = client._mailbox._answers if verb == "result" else client._requests
            closes, wait = client, call.result if verb == "result" else client.request
        on_signal(closes.close, waits(endpoint))
        with pytest.raises(gpuring.RingClosed):
            wait()
        assert closes.closed


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


def test_a_client_is_closed_with_its_ring_and_its_calls_end_with_its_close(name):
    with serve(name):
        client = gpuring.connect(name)
        call = send(client, 0)
        client.ring.close()
        assert client.closed
        client.close()
        with pytest.raises(gpuring.RingClosed, match="this client was closed"):
            call.result(10)


def test_an_interrupted_call_leaves_nothing_behind(name, on_signal):
    with serve(name) as server, gpuring.connect(name, calls=1) as client:
        on_signal(raise_interrupt, waits(client._mailbox._answers))
        with pytest.raises(KeyboardInterrupt):
            client.call(whole(1))
        with pytest.raises(gpuring.RingTimeout):  # it passes over the call
            server.take(timeout=0)
        client.request(5).abandon()
        assert (client.in_flight, client.late) == (0, 1)


@pytest.mark.slow
def test_an_interrupted_close_of_a_client_can_be_repeated(name):
    with serve(name) as server:
        for interrupt in interrupts(step=3):
            client = gpuring.connect(name, calls=2)
            send(client, 0)
            answer(server.take(timeout=10)[0])
            with interrupt:
                client.close()
            client.close()
            assert client.closed, interrupt.where
            assert client.ring.closed, interrupt.where
            assert client._mailbox._ring.closed, interrupt.where


@pytest.mark.slow
@pytest.mark.parametrize("engine", [True, False])
def test_an_interrupted_close_of_a_creator_can_be_repeated(name, engine):
    for interrupt in interrupts(step=3):
        server = serve(name, engine=engine)
        with interrupt:
            server.close()
        server.close()
        assert server.closed, interrupt.where
        assert segments_of(name) == [], interrupt.where


@pytest.mark.slow
def test_after_an_interrupted_request_a_client_can_be_closed(name):
    with serve(name):
        for interrupt in interrupts(step=3):
            client = gpuring.connect(name, calls=2)
            with interrupt:
                client.request(5).abandon()
            client.close()
            assert client.ring.closed, interrupt.where


def abandons(client, server):
    slot = client.request(10)
    return slot.abandon, lambda: slot._open


def releases(client, server):
    call = send(client, 0)
    answer(server.take(timeout=10)[0])
    return call.result(10).release, call._has_answer


def cancels(client, server):
    call = send(client, 0)
    answer(server.take(timeout=10)[0])
    assert call.wait(10)
    return call.cancel, call._has_answer


def closes_a_stream(client, server):
    call = send(client, 0)
    (taken,) = server.take(timeout=10)
    with taken.part(timeout=10):
        pass
    taken.end()
    next(parts := call.parts(10))
    return parts.close, lambda: True


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("begin", [abandons, releases, cancels, closes_a_stream])
def test_a_call_whose_end_was_interrupted_needs_no_room(name, begin):
    with serve(name) as server, gpuring.connect(name, calls=1, parts=1) as client:
        for interrupt in interrupts():
            end, unfinished = begin(client, server)
            with interrupt:
                end()
            if unfinished():
                end()
            client.request(10).abandon()
            assert client.in_flight == 0, interrupt.where


def test_a_cancel_that_was_interrupted_can_be_repeated(name, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with serve(name) as server, gpuring.connect(name) as client:
        cancel, has_answer = cancels(client, server)
        with monkeypatch.context() as patch:
            patch.setattr(Answer, "_end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cancel()
        assert has_answer()
        cancel()
        assert not has_answer()


def test_after_an_interrupted_wait_others_come(name, on_signal):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        on_signal(raise_interrupt, waits(client._mailbox._answers))
        with pytest.raises(KeyboardInterrupt):
            calls[0].wait(20)
        for taken in server.take(2, timeout=10):
            answer(taken)
        for k, call in enumerate(calls):
            in_thread(finish, client, k, call)()


# ---- in a forked child -------------------------------------------------------------------------


def bytes_of(client):
    """What the headers and metadata of the client's two rings hold."""
    rings = client.ring, client._mailbox._ring
    tables = [inner.metadata(ring, writable=False).tobytes() for ring in rings]
    return [snapshot(ring._header) for ring in rings], tables


def forks(pipe, name):
    """The errors of a child that is forked while threads receive and wait to send.  Everything is
    open then."""
    with serve(name, slots=6) as server, gpuring.connect(name, parts=2) as client:
        calls = [send(client, k) for k in range(5)]
        taken = server.take(4, timeout=10)
        with taken[0].part(timeout=10):
            pass
        next(part := calls[0].parts(10))
        answer(taken[1])
        held = calls[1].result(10)
        request, begun = client.request(10), taken[2].answer()
        wait, sending = in_thread(calls[4].result), in_thread(client.request)
        poll(waits(client._mailbox._answers))
        poll(waits(client._requests))
        poll(other_threads_sleep)  # a thread that is about to sleep still writes to the header
        before = bytes_of(client)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            told = ["cancelled"] * taken[0].cancelled
            for verb in (
                calls[4].result, client.request, lambda: client.call(whole(1)), part.__next__,
                held.release, request.publish, client.fileno, lambda: server.take(timeout=0),
                lambda: taken[0].part(0), lambda: answer(taken[3]), lambda: taken[3].fail("why"),
                taken[0].end, begun.publish, lambda: asyncio.run(client.call_async(whole(1))),
            ):  # fmt: skip
                try:
                    verb()
                    told.append(f"{verb}: no error")
                except gpuring.RingError as error:
                    told.append(str(error))
                except BaseException as error:
                    told.append(repr(error))
            for end in (calls[3].cancel, part.close, client.close, server.stop, server.close):
                try:
                    repr(client)
                    end()
                except BaseException as error:
                    told.append(f"{end}: {error!r}")
            del part, held, request, begun, taken, calls
            gc.collect()
            os.write(write, "\n".join(told).encode())
            os._exit(not (client.closed and server.closed))
        os.close(write)
        with os.fdopen(read) as words:
            told = words.read().splitlines()
        assert os.waitpid(pid, 0)[1] == 0
        poll(lambda: bytes_of(client) == before)  # a sleep may end, and another one begin
        held.release()
        request.publish()
        begun.publish()
        for call in (taken[0], taken[3], *server.take(timeout=10)):
            call.fail("why")
        with pytest.raises(gpuring.CallFailed):
            wait()
        sending().abandon()
        return told


def test_what_a_forked_child_does_with_a_service_does_not_reach_its_parent(name, children):
    """The child does not wait for a thread that only its parent has, either."""
    told = children(forks, name).result()
    assert len(told) == 14, told
    assert all("fork()" in each for each in told), told


def test_no_call_begins_after_its_client_was_closed(name):
    """The call is sent when close has looked at the calls, and not yet at the senders.  Nobody
    would end the call."""
    with serve(name), gpuring.connect(name) as client:
        claim = client._requests.claim

        def closed_meanwhile(timeout, **options):
            slot = claim(timeout, **options)
            client._mailbox.shut()
            return slot

        client._requests.claim = closed_meanwhile
        client._requests._replaced = True
        with pytest.raises(gpuring.RingClosed, match="this client was closed"):
            send(client, 0)
        assert client.in_flight == 0


def test_an_answer_that_nobody_took_is_gone_with_its_client(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        answer(server.take(1)[0])
        assert call.wait(PATIENCE_S)
        client.close()
        with pytest.raises(gpuring.RingClosed, match="this client was closed"):
            call.result()
        with pytest.raises(gpuring.RingClosed, match="this client was closed"):
            next(call.parts())


def test_an_engine_whose_batch_fills_when_the_service_is_closed_gets_what_there_is(name):
    with (
        serve(name, engine=False) as keeper,
        gpuring.serve(name) as server,
        gpuring.connect(name) as client,
    ):
        call = send(client, 0)
        join = in_thread(server.take, 8, 60)
        poll(lambda: server._calls)
        poll(waits(server._requests))
        keeper.close()
        (taken,) = join()
        answer(taken)
        finish(client, 0, call)
        with pytest.raises(gpuring.EndOfStream):
            server.take(timeout=10)


def test_an_engine_is_told_who_was_closed(name):
    with serve(name) as creator, gpuring.serve(name) as engine:
        creator.close()
        told = f"^service '{name}' was closed, and no call is left to take$"
        with pytest.raises(gpuring.EndOfStream, match=told):
            engine.take(timeout=10)
        engine.close()
        for server in (creator, engine):
            with pytest.raises(gpuring.RingClosed, match=f"^service '{name}': this server was clo"):
                server.take(timeout=10)


def test_a_batch_whose_wait_was_interrupted_is_counted_once(name, on_signal):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        waiting = waits(server._requests)
        on_signal(raise_interrupt, lambda: server._calls and waiting())
        with pytest.raises(KeyboardInterrupt):
            server.take(2, max_wait_s=None)
        assert server.counts.taken == 0
        answer(server.take(timeout=10)[0])
        finish(client, 0, call)
        assert (server.counts.taken, server.counts.answered) == (1, 1)


def test_a_batch_that_could_not_be_taken_is_counted_once(name, children, monkeypatch):
    """The engine has too few descriptors to reach one of the clients."""
    with serve(name, engine=False), gpuring.connect(name) as client:
        victim = up(children(holder, name, 2))
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0, 1]
        with serve(name) as server:
            victim.kill()
            poll(lambda: client.ring.stats().reaps)
            reach, reached = server._delivery.reach, []

            def refuses_the_second(client, *now):
                reached.append(client)
                if len(reached) == 2:
                    raise OSError(errno.EMFILE, "on purpose")
                return reach(client, *now)

            monkeypatch.setattr(server._delivery, "reach", refuses_the_second)
            with pytest.raises(OSError, match="on purpose"):
                server.take(2, timeout=10)
            counts = server.counts
            assert (counts.taken, counts.redelivered) == (0, 0)
            for call in server.take(2, timeout=10):
                answer(call)
            for k, call in enumerate(calls):
                finish(client, k, call)
            assert (counts.taken, counts.answered) == (2, 2)

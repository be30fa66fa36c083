"""Threads, tasks, descriptors and interrupts of a client while its service is replaced."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading

import pytest

import gpuring
from tests.helpers.interrupted import interrupts
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import readable, segments_of
from tests.service.in_loops import ask_here as ask_here_async
from tests.service.in_loops import send_async, settled, soon
from tests.service.services import (
    answer,
    ask_here,
    engine,
    finish,
    finish_in,
    in_thread,
    send,
    serve,
)


@pytest.mark.slow(keep=1)
def test_threads_and_tasks_go_on_while_the_service_is_replaced_again_and_again(name, children):
    """Each call ends in one way, and each client has an answer from every service."""
    ends = []
    over = threading.Event()

    def one(client, k):
        try:
            with send(client, k).result(PATIENCE_S) as slot:
                assert slot.meta["k"] == k
        except gpuring.PeerLost:
            return "lost"
        return "answered"

    def thread(client, first):
        k = first
        while not over.is_set():
            ends.append(one(client, k))
            k += 1

    async def task(client, first):
        k = first
        while not over.is_set():
            try:
                call = await send_async(client, k)
                with await call.result_async(PATIENCE_S) as slot:
                    assert slot.meta["k"] == k
                ends.append("answered")
            except gpuring.PeerLost:
                ends.append("lost")
            k += 1

    async def tasks(client):
        await asyncio.gather(*(task(client, 10_000 * n) for n in range(4, 8)))

    with serve(name, engine=False), gpuring.connect(name, engine_s=PATIENCE_S) as client:
        joins = [in_thread(thread, client, 10_000 * n) for n in range(3)]
        joins.append(in_thread(lambda: asyncio.run(tasks(client))))
        for _ in range(5):
            worker, answered = up(children(engine, name, None, {"replace": True})), len(ends) + 50
            poll(lambda: ends[answered:].count("answered") > 20)  # noqa: B023
            worker.kill()
        over.set()
        worker = up(children(engine, name, None, {"replace": True}))
        for join in joins:
            join()
        client.request(PATIENCE_S).abandon()
        assert client._former == []
        assert client.in_flight == 0
        worker.finish()


@promise(
    "services.md",
    "Threads and tasks that wait to send a request go there, too, and tasks keep their turn.",
)
def test_tasks_keep_their_turn_in_the_next_service(name, replaced):
    order = []

    async def ordered(client, k):
        call = await send_async(client, k)
        order.append(k)
        return call

    async def main(client):
        lost = await send_async(client, 0)
        waiting = [asyncio.create_task(ordered(client, k)) for k in range(1, 4)]
        await settled()
        server = replaced(slots=1)
        calls = [await soon(waiting[0])]
        assert client._mailbox.tasks()._queue  # the others wait
        waiting.append(asyncio.create_task(ordered(client, 4)))
        for each in waiting[1:]:
            answer(server.take(timeout=PATIENCE_S)[0])
            calls.append(await soon(each))
        answer(server.take(timeout=PATIENCE_S)[0])
        assert order == [1, 2, 3, 4]
        with pytest.raises(gpuring.PeerLost):
            await lost.result_async(PATIENCE_S)
        for call in calls:
            (await call.result_async(PATIENCE_S)).release()
        await ask_here_async(server, client, 9)
        assert client._former == []

    replaced(slots=1)
    with gpuring.connect(name) as client:
        asyncio.run(main(client))


def test_tasks_that_wait_for_room_go_to_the_next_service(name, replaced):
    async def main(client, other):
        first = await send_async(client, 0)
        (taken,) = other.take(timeout=PATIENCE_S)
        waiting = asyncio.create_task(send_async(client, 1, timeout=None))
        await settled()
        assert client._calls.for_room
        server = replaced()
        call = await soon(waiting)
        answer(server.take(timeout=PATIENCE_S)[0])
        (await call.result_async(PATIENCE_S)).release()
        answer(taken)
        (await first).release()

    replaced()
    with gpuring.connect(name, calls=1) as client, serve(name) as other:
        asyncio.run(main(client, other))


def test_who_has_not_had_the_turn_to_send_is_told_that_there_is_no_engine(name):
    """Not that others wait to send: all of them wait for an engine."""
    told = rf"^service '{name}': there is no engine, and none came within 0\.05 s$"

    async def main(client):
        first = asyncio.create_task(client.request_async(PATIENCE_S))
        await settled()
        with pytest.raises(gpuring.PeerLost, match=told):
            await client.request_async(0.05)
        with client._sending, pytest.raises(gpuring.PeerLost, match=told):
            await asyncio.to_thread(client.request, 0.05)
        first.cancel()

    with serve(name, engine=False), gpuring.connect(name) as client:
        asyncio.run(main(client))


def test_a_task_says_for_how_long_no_engine_came(name):
    async def main(client):
        with pytest.raises(gpuring.PeerLost, match=r"no engine, and none came within 0\.01 s$"):
            await client.request_async()
        with pytest.raises(gpuring.PeerLost, match=r"there is no engine$"):
            await client.request_async(0)

    with serve(name, engine=False), gpuring.connect(name, engine_s=0.01) as client:
        asyncio.run(main(client))


@promise(
    "services.md",
    "`client.fileno()` is the same number as before, and is readable for answers from "
    "both services.",
)
def test_a_descriptor_tells_of_answers_in_both_services(name, replaced):
    replaced()
    with gpuring.connect(name) as client, serve(name) as other:
        fd = client.fileno()
        early = send(client, 0)
        (taken,) = other.take(timeout=PATIENCE_S)
        server, former = replaced(), client._mailbox
        late = send(client, 1)
        assert client.fileno() == fd
        assert not readable(fd, 0)
        answer(server.take(timeout=PATIENCE_S)[0])
        assert readable(fd, PATIENCE_S)
        finish(client, 1, late)
        poll(lambda: not readable(fd, 0))
        answer(taken)
        assert readable(fd, PATIENCE_S)
        finish_in(former, 0, early)
        ask_here(server, client, 2)
        assert client._former == []
        poll(lambda: not readable(fd, 0))
        call = send(client, 3)
        answer(server.take(timeout=PATIENCE_S)[0])
        assert readable(fd, PATIENCE_S)
        finish(client, 3, call)


def test_a_descriptor_that_is_asked_for_while_the_service_is_replaced(name, replaced):
    replaced()
    with gpuring.connect(name) as client:
        server, settle_in, asked = replaced(), client._settle_in, []

        def asked_just_before(*to):
            asked.append(client.fileno())
            return settle_in(*to)

        client._settle_in = asked_just_before
        call = send(client, 0)
        answer(server.take(timeout=PATIENCE_S)[0])
        assert readable(asked[0], PATIENCE_S)
        finish(client, 0, call)


def test_a_client_that_has_no_descriptor_for_the_next_service_tries_again(
    name, replaced, monkeypatch
):
    def none_left(_):
        raise OSError(errno.EMFILE, "on purpose")

    replaced()
    with gpuring.connect(name) as client:
        fd, former = client.fileno(), client._mailbox
        server = replaced()
        with monkeypatch.context() as patched:
            patched.setattr(type(former), "fileno", none_left)
            with pytest.raises(OSError, match="on purpose"):
                client.request(PATIENCE_S)
        assert client._mailbox is former
        assert len(server.stats().peers) == 2
        call = send(client, 0)
        answer(server.take(timeout=PATIENCE_S)[0])
        assert readable(fd, PATIENCE_S)
        finish(client, 0, call)


@pytest.mark.slow
def test_an_interrupt_while_a_client_goes_to_the_next_service_leaves_nothing(name, replaced):
    server = replaced()
    with gpuring.connect(name, calls=2) as client:
        client.fileno()
        for interrupt in interrupts(step=400):
            server = replaced()
            with interrupt:
                client.request(PATIENCE_S).abandon()
            for k in range(2):
                ask_here(server, client, k)
            assert client._former == [], interrupt.where
            call = send(client, 3)
            answer(server.take(timeout=PATIENCE_S)[0])
            assert readable(client.fileno(), PATIENCE_S), interrupt.where
            finish(client, 3, call)
            assert len(server.stats().peers) == 3, interrupt.where
            gc.collect()
            assert len(segments_of(name)) == 4, interrupt.where


@pytest.mark.slow
def test_a_client_is_closed_while_it_goes_to_the_next_service(name, replaced, recwarn):
    """A signal handler of the same thread closes it."""
    server = replaced()
    client = gpuring.connect(name)
    server, settle_in = replaced(), client._settle_in

    def closing(*to):
        client.close()
        return settle_in(*to)

    client._settle_in = closing
    with pytest.raises(gpuring.RingClosed, match="this client was closed"):
        client.request(PATIENCE_S)
    assert client.closed
    assert len(server.stats().peers) == 2
    assert len(segments_of(name)) == 2
    assert [each for each in recwarn if name in str(each.message)] == []  # nothing was dropped

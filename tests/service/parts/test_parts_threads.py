"""Answers in parts: interrupts, and several threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading

import pytest

import gpuring
from gpuring.service.mailbox import Mailbox
from tests.helpers.interrupted import InterruptOfALoop, at_each_place, signals
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.helpers.promise import promise
from tests.service.parts import part, read, take, value
from tests.service.services import another_thread_receives, ask_here, in_thread, send, serve


@pytest.mark.slow
def test_an_interrupt_anywhere_in_a_stream_leaves_its_client_whole(name, quick):
    """No part is lost or comes twice, whether the loop goes on or not."""
    with serve(name) as server, gpuring.connect(name, calls=2, parts=2) as client:
        for interrupt in signals(step=1):
            call = send(client, 0)
            taken = take(server)
            part(taken, 0)
            part(taken, 1)
            got = []
            with interrupt:
                parts = call.parts(PATIENCE_S)
                for each in parts:
                    got.append(value(each))
                    if len(got) == 2:
                        taken.end()
            if interrupt.raised:
                assert got in ([], [0], [0, 1]), interrupt.where
                parts = each = None
                call.cancel()
                taken.answered or taken.end()
            else:
                assert got == [0, 1]
            del call
            client.request(PATIENCE_S).abandon()
            poll(lambda: client.in_flight == 0)


def test_an_interrupted_loop_of_a_task_gives_its_call_up(name):
    """A task keeps the error, whose traceback keeps the arguments of all functions, until the
    garbage collector comes."""

    async def loop(parts, left):
        async for each in parts.pop():
            assert value(each) < 2
            left -= 1
            if not left:
                return

    gc.disable()
    try:
        with serve(name) as server, gpuring.connect(name, calls=1, parts=2) as client:
            for interrupt in at_each_place(InterruptOfALoop, 1):
                call = send(client, 0)
                taken = take(server)
                part(taken, 0)
                part(taken, 1)
                parts = [call.parts(PATIENCE_S)]
                with interrupt:
                    asyncio.run(loop(parts, 2))
                assert taken.cancelled, interrupt.where
                assert client._mailbox._answers._peer.holding() == [], interrupt.where
                taken.end()
                ask_here(server, client, 1)
    finally:
        gc.enable()
        gc.collect()


@promise(
    "services.md",
    "To answer calls later, call `take` without `with`: then no block fails them.",
)
@promise(
    "parts.md",
    "Several threads and tasks may take parts of different calls at the same time.",
)
def test_threads_and_tasks_take_parts_of_one_client(name, children):
    with serve(name, engine=False), gpuring.connect(name, calls=6, parts=3) as client:
        engine = up(children(many_streams, name))

        def reads(k):
            return [read(send(client, k)) for _ in range(5)]

        async def in_tasks():
            async def reads(k):
                call = send(client, k)
                return [value(each) async for each in call.parts(PATIENCE_S)]

            return await asyncio.gather(*(reads(k) for k in range(3)))

        joins = [in_thread(reads, k) for k in range(3)]
        assert asyncio.run(in_tasks()) == [list(range(k, k + 20)) for k in range(3)]
        for k, join in enumerate(joins):
            assert join() == [list(range(k, k + 20))] * 5
        assert (client.in_flight, client.late) == (0, 0)
        engine.finish()


def many_streams(pipe, name):
    """An engine with several streams at a time.  It sends a part of each in turn."""
    running = {}
    with serve(name) as server:
        pipe.send("up")
        while not pipe.told():
            with contextlib.suppress(gpuring.RingTimeout):
                for call in server.take(8, timeout=0 if running else 0.05):
                    running[call] = int(call.meta["k"])
            for call, k in list(running.items()):
                with contextlib.suppress(gpuring.RingFull):
                    part(call, k, 0)
                    running[call] += 1
                    if k == int(call.meta["k"]) + 19:
                        call.end()
                        del running[call]


def test_parts_that_are_released_while_another_thread_receives_overwrite_none(name):
    """The engine has left out the slots of those that were held."""
    sent, got = [0, 0], [[], []]
    with serve(name) as server, gpuring.connect(name, calls=2, parts=8) as client:
        calls = [send(client, k) for k in range(2)]
        taken = [take(server) for _ in calls]

        def fill(k):
            with contextlib.suppress(gpuring.RingFull):
                while sent[k] < 20:
                    part(taken[k], sent[k], 0)
                    sent[k] += 1

        fill(0)
        fill(1)
        streams = [call.parts(PATIENCE_S) for call in calls]
        assert all(parts.ready for parts in streams)
        with another_thread_receives(client):
            for k in (1, 0):
                got[k] += read(streams[k], 8)
                assert not streams[k].ready
                fill(k)

        def all_are_read():
            for k, parts in enumerate(streams):
                got[k] += read(parts, 1 if parts.ready else 0)
                fill(k)
            return sum(map(len, got)) == 40

        poll(all_are_read)
        for each, parts in zip(taken, streams, strict=True):
            each.end()
            assert read(parts) == []
    assert got == [list(range(20))] * 2


def test_an_end_that_another_thread_has_received_belongs_to_the_stream(name, monkeypatch):
    """A thread that has received the end may wait for the GIL while the engine leaves."""
    received, go_on = threading.Event(), threading.Event()
    give = Mailbox._dispatch

    def slowly(box, answer):
        if threading.current_thread() is not threading.main_thread():
            received.set()
            go_on.wait(PATIENCE_S)
        give(box, answer)

    with serve(name, engine=False), gpuring.connect(name, parts=3, engine_s=100) as client:
        with serve(name) as server:
            call = send(client, 0)
            taken = take(server)
            part(taken, 0)
            assert call.wait(PATIENCE_S)
            monkeypatch.setattr(Mailbox, "_dispatch", slowly)
            taken.end()
            join = in_thread(lambda: client._mailbox.pump(call._is_over, None))
            assert received.wait(PATIENCE_S)
        parts = call.parts(PATIENCE_S)
        assert not parts.ready
        go_on.set()
        join()
        assert read(parts) == [0]
        assert client.in_flight == 0

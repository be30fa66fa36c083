"""Slots of answers that an engine has left out, and that are released before the client has passed
them.  If they counted as free, answers that nobody has read would be overwritten."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import gpuring
from tests.helpers.arrays import array_of, assign
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.service import in_loops
from tests.service.services import (
    another_thread_receives,
    answer,
    answer_of,
    ask_here,
    finish,
    in_thread,
    receives,
    send,
    serve,
)

CALLS, KEPT = 10, 5
"""Twice as many calls as answers that are kept, and more of these than there are spare slots."""


@pytest.fixture
def service(name):
    with serve(name) as server, gpuring.connect(name, calls=CALLS) as client:
        yield server, client


def answer_all(server, count):
    for _ in range(count):
        answer(server.take(timeout=10)[0])


def keep_some(server, client):
    """Old answers.  The ring comes to their slots after those of as many new ones."""
    calls = [send(client, k) for k in range(CALLS)]
    answer_all(server, CALLS)
    slots = [call.result(10) for call in calls]
    for slot in slots[KEPT:]:
        slot.release()
    return slots[:KEPT]


@contextlib.contextmanager
def released_while_another_thread_receives(server, client):
    """Old answers that are released when the ring has come to their slots.  The block gets the
    calls of the new ones, none of which the client has received."""
    kept = keep_some(server, client)
    with another_thread_receives(client):
        calls = [send(client, k) for k in range(CALLS - KEPT)]
        answer_all(server, len(calls))
        for slot in kept:
            slot.release()
        yield calls


def send_more(client, calls):
    """As many requests as there is room for."""
    with contextlib.suppress(gpuring.RingFull):
        for k in range(len(calls), CALLS):
            calls.append(send(client, k, timeout=0))


def finish_all(server, client, calls):
    for k, call in enumerate(calls):
        finish(client, k, call)
    for k in range(2 * CALLS):
        ask_here(server, client, k)
    kept = keep_some(server, client)
    for slot in kept:
        slot.release()
    assert (client.in_flight, client.late, server.counts.undelivered) == (0, 0, 0)


def test_answers_that_are_released_while_another_thread_receives_overwrite_none(service):
    server, client = service
    with released_while_another_thread_receives(server, client) as calls:
        sent = len(calls)
        send_more(client, calls)
        answer_all(server, len(calls) - sent)
        told = "5 are in flight.* until this client has received what came before. Wait for the eng"
        with pytest.raises(gpuring.RingFull, match=told):
            client.request(0.01)
        assert client.try_request() is None
    send_more(client, calls)
    answer_all(server, CALLS - sent)
    assert len(calls) == CALLS
    finish_all(server, client, calls)


@pytest.fixture
def slow(service):
    """(server, client, calls in flight, a slot).  The engine still writes the first answer.  It has
    left out slots behind it, which are released then."""
    server, client = service
    kept = keep_some(server, client)
    calls = [send(client, k) for k in range(CALLS - KEPT)]
    first = server.take(timeout=10)[0]
    slot = first.answer()
    assign(array_of(slot), answer_of(array_of(first.slot)))
    slot.meta["k"], slot.meta["client"] = 0, first.client
    answer_all(server, len(calls) - 1)
    for each in kept:
        each.release()
    return server, client, calls, slot


def test_answers_that_are_released_while_an_engine_writes_overwrite_none(slow):
    server, client, calls, slot = slow
    send_more(client, calls)
    sent = len(calls)
    slot.publish()
    answer_all(server, sent - (CALLS - KEPT))
    send_more(client, calls)
    answer_all(server, len(calls) - sent)
    assert len(calls) == CALLS
    finish_all(server, client, calls)


def test_slots_that_were_left_out_before_one_that_is_written_are_passed_at_once(service):
    server, client = service
    kept = keep_some(server, client)
    calls = [send(client, k) for k in range(CALLS - KEPT)]
    answer_all(server, len(calls) - 1)
    with server.take(timeout=10) as (last,), last.answer():
        for k, call in enumerate(calls[:-1]):
            finish(client, k, call)
        for slot in kept:
            slot.release()
        for k in range(CALLS - 1):
            send(client, k, timeout=0).cancel()


def test_a_request_waits_for_room_that_only_comes_when_an_engine_has_written(slow):
    """Though all calls are of the thread that waits."""
    server, client, calls, slot = slow
    send_more(client, calls)
    assert len(calls) == CALLS - KEPT

    def publish():
        poll(lambda: receives(client))
        slot.publish()

    join = in_thread(publish)
    calls.append(send(client, len(calls), timeout=PATIENCE_S))
    join()
    answer_all(server, 1)
    finish_all(server, client, calls)


def test_a_task_waits_for_room_that_only_comes_when_an_engine_has_written(slow):
    server, client, calls, slot = slow

    async def ask():
        task = asyncio.ensure_future(in_loops.send_async(client, len(calls)))
        await in_loops.settled()
        assert not task.done()
        slot.publish()
        calls.append(await in_loops.soon(task))

    asyncio.run(ask())
    answer_all(server, 1)
    finish_all(server, client, calls)


@promise(
    "services.md",
    "An answer that is released keeps its room until the client has received what came before it. "
    "A request that finds no other room waits for that.",
)
def test_a_thread_that_waits_for_room_is_woken_by_the_one_that_receives(service):
    server, client = service
    with released_while_another_thread_receives(server, client) as calls:
        join = in_thread(lambda: send(client, len(calls), timeout=PATIENCE_S))
        poll(lambda: client._calls.for_room)
    calls.append(join())
    answer_all(server, 1)
    finish_all(server, client, calls)

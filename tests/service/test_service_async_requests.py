"""Tasks that send requests: their order, and what a task waits for."""

from __future__ import annotations

import asyncio

import pytest

import gpuring
from gpuring.service import tasks
from tests.helpers.rings import waiters
from tests.service.in_loops import ask, finish, send_async, settled, soon
from tests.service.services import answer, check


@pytest.mark.parametrize("slots", [1])
async def test_tasks_send_in_the_order_in_which_they_came(no_slices, server, client):
    """The request ring has one slot.  A task that waits is woken when the engine gives the slot
    back."""
    waits = [asyncio.create_task(ask(client, k)) for k in range(5)]
    for k in range(5):
        await settled()
        (call,) = await soon(asyncio.to_thread(server.take, timeout=10))
        assert int(call.meta["k"]) == k
        answer(call)
    await soon(asyncio.gather(*waits))


async def test_what_an_interrupt_leaves_of_a_task_keeps_nobody_waiting(server, client):
    """The interrupted task is still in the queue to send, or was not woken."""

    async def ends():
        mine = tasks.Task(asyncio.get_running_loop())
        client._mailbox.tasks()._queue[mine.key] = mine

    await asyncio.create_task(ends())
    call = await send_async(client, 0)
    wait = asyncio.create_task(finish(client, 0, call))
    await settled()
    call._sleepers.clear()
    answer(server.take(timeout=10)[0])
    await soon(wait)


@pytest.mark.parametrize("calls", [1])
async def test_who_has_no_room_waits_for_a_release(no_slices, server, client):
    call = await send_async(client, 0)
    wait = asyncio.create_task(send_async(client, 1))
    await settled()
    with pytest.raises(gpuring.RingFull, match="other tasks are waiting"):
        await client.request_async(0.02)
    answer(server.take(timeout=10)[0])
    with await call as slot:
        await settled()
        assert not wait.done()
        check(client, 0, slot)
    call = await soon(wait)
    answer(server.take(timeout=10)[0])
    await finish(client, 1, call)


@pytest.mark.parametrize(("slots", "calls"), [(1, 8), (8, 1)])
async def test_who_waits_to_send_may_be_cancelled_or_late(no_slices, server, client):
    call = await send_async(client, 0)
    with pytest.raises(gpuring.RingFull):
        await client.request_async(0)
    first, second = (asyncio.create_task(send_async(client, k)) for k in (1, 2))
    await settled()
    first.cancel()
    with pytest.raises(gpuring.RingFull):
        await client.request_async(0.02)
    answer(server.take(timeout=10)[0])
    await finish(client, 0, call)
    call = await soon(second)
    answer(server.take(timeout=10)[0])
    await finish(client, 2, call)
    assert first.cancelled()
    assert client.in_flight == 0
    assert waiters(client._mailbox._ring) == 0

"""Functions for tests of clients in event loops."""

from __future__ import annotations

import asyncio

from tests.helpers.arrays import array_of, assign
from tests.helpers.processes import PATIENCE_S
from tests.service import services
from tests.service.services import answer, check


async def soon(what):
    """The result of `what`, which must come within the patience of a test."""
    return await asyncio.wait_for(what, PATIENCE_S)


async def settled():
    """Lets every other task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def finish(client, k, call, place=None):
    # Longer than `soon`, because a call that was not woken finds its answer when its time is up.
    with await call.result_async(2 * PATIENCE_S) as slot:
        check(client, k, slot, place)


async def send_async(client, k, place=None, timeout=PATIENCE_S):
    with await client.request_async(timeout) as slot:
        assign(array_of(slot), services.content(client.id, k))
        slot.meta["k"] = k
        return slot.call


async def ask(client, k, place=None):
    await finish(client, k, await send_async(client, k, place), place)


async def ask_here(server, client, k):
    """Asks one call, which an engine of this process answers."""
    call = await send_async(client, k)
    answer(server.take(timeout=10)[0])
    await finish(client, k, call)

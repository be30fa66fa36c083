"""One client in several event loops and threads: no loop waits for another one, or in vain."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

import gpuring
from gpuring.service import tasks
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.service.in_loops import finish, settled, soon
from tests.service.services import answer, in_thread, receives, send, serve


@pytest.fixture
def left():
    """Runs a loop until its tasks wait for `what`, and leaves it like that."""
    loops, tasks = [], []

    def leave(*what, closed=False):
        loop = asyncio.new_event_loop()
        loops.append(loop)
        tasks.extend(loop.create_task(each) for each in what)
        loop.run_until_complete(settled())
        if closed:
            loop.close()

    yield leave
    for loop in loops:
        if not loop.is_closed():
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(settled())
            loop.close()
    for task in tasks:  # the loop is closed: asyncio shall not warn of pending tasks
        task._log_destroy_pending = False
    gc.collect()


async def go_on(server, client, call):
    """Waits for call 1 in a loop of its own, while two are answered."""
    ours = asyncio.create_task(finish(client, 1, call))
    await settled()
    for taken in server.take(2, timeout=10):
        answer(taken)
    await soon(ours)


@promise("services.md", "No loop waits for another one.")
@pytest.mark.parametrize("closed", [False, True])
def test_nobody_waits_for_a_loop_that_was_left_with_its_tasks(name, no_slices, left, closed):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        left(calls[0].result_async(), closed=closed)
        asyncio.run(go_on(server, client, calls[1]))
        calls[0].cancel()
        assert client.in_flight == 0


def test_nobody_waits_for_a_busy_loop(name, no_slices):
    async def busy():
        waits = asyncio.create_task(finish(client, 0, calls[0]))
        await settled()
        join = in_thread(asyncio.run, go_on(server, client, calls[1]))
        join()
        await soon(waits)

    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        asyncio.run(busy())


def test_nobody_waits_for_the_turn_of_a_loop_that_was_left(name, no_slices, left):
    async def main():
        ours = asyncio.create_task(client.request_async())
        await settled()
        held.release()
        (await soon(ours)).abandon()

    with serve(name) as server, gpuring.connect(name, calls=1) as client:
        call = send(client, 0)
        left(client.request_async())
        answer(server.take(timeout=10)[0])
        held = call.result(10)
        asyncio.run(main())


@pytest.mark.parametrize("before", ["it asks to be woken", "it sleeps"])
def test_a_thread_that_stops_receiving_just_before_a_task_sleeps(
    name, no_slices, monkeypatch, before
):
    async def main():
        thread = in_thread(calls[0].result, 20)
        poll(lambda: receives(client))

        def stop():
            tasks.Attempt, tasks.Task.sleep = tried, slept
            answer(taken[0])
            thread().release()

        @contextlib.contextmanager
        def attempt(turn):
            with tried(turn) as mine:
                yield mine
            assert not mine
            stop()

        async def sleep(*args):
            stop()
            await slept(*args)

        tried, slept = tasks.Attempt, tasks.Task.sleep
        if before == "it sleeps":
            monkeypatch.setattr(tasks.Task, "sleep", sleep)
        else:
            monkeypatch.setattr(tasks, "Attempt", attempt)
        ours = asyncio.create_task(finish(client, 1, calls[1]))
        await settled()
        answer(taken[1])
        await soon(ours)

    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        taken = server.take(2, timeout=10)
        asyncio.run(main())

"""Clients in event loops: answers to any number of tasks, beside threads and other loops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import warnings

import pytest

import gpuring
from gpuring.service import tasks
from tests.helpers.processes import PATIENCE_S, up
from tests.helpers.promise import promise
from tests.helpers.rings import bells, waiters
from tests.service import services
from tests.service.in_loops import ask, ask_here, finish, send_async, settled, soon
from tests.service.services import answer, check, engine, holder, send, serve

# ---- answers -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_many_tasks_share_a_client_that_has_room_for_few_calls(
    name, place, children, watched
):
    worker = up(children(engine, name, place))
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def several(client, n):
        for k in range(n, n + 5):
            await ask(client, k, place)

    ticker = asyncio.create_task(tick())
    with gpuring.connect(name, calls=6, timeout=10) as client:
        await asyncio.gather(*(several(client, 10 * n) for n in range(40)))
        assert (client.in_flight, client.late) == (0, 0)
        assert waiters(client._mailbox._ring) == 0
    ticker.cancel()
    assert ticks > 200 / 6, "the loop was blocked"  # one for each 6 calls
    worker.send()
    assert worker.result()["answered"] == 200


async def test_tasks_that_are_answered_together_ring_no_bell_when_they_go_on(
    no_slices, server, client
):
    """The loop arms its bell when all of them have run, because their releases would ring an armed
    bell."""

    async def several(client):
        for k in range(3):
            call = await send_async(client, k)
            with await call:
                seen.append(bells(client._mailbox._ring))

    seen, rung = [], []
    running = [asyncio.create_task(several(client)) for _ in range(8)]
    for _ in range(3):
        await settled()
        seen.clear()
        for call in server.take(8, max_wait_s=0, timeout=10):
            answer(call)
        while len(seen) < 8:
            await asyncio.sleep(0)
        await settled()
        rung.append(bells(client._mailbox._ring) - seen[0])
    await soon(asyncio.gather(*running))
    assert rung == [0, 0, 0]


async def test_a_loop_in_which_nobody_waits_for_an_answer_is_left_alone(
    no_slices, server, client, monkeypatch
):
    heard, hear = [], tasks.Tasks._hear
    monkeypatch.setattr(tasks.Tasks, "_hear", lambda self: (heard.append(1), hear(self)))
    waits = asyncio.create_task(ask(client, 0))
    await settled()
    answer(server.take(timeout=10)[0])
    await soon(waits)
    answered = len(heard)
    await settled()
    assert len(heard) == answered
    (mine,) = client._mailbox._loops.values()
    descriptor = mine._reader.fileno()
    client.close()
    await settled()
    assert not asyncio.get_running_loop().remove_reader(descriptor)


def test_a_client_that_is_dropped_leaves_while_the_loop_runs(name):
    async def main(server):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            client = gpuring.connect(name)
            ring = client._mailbox._ring.name
            waits = asyncio.create_task(ask(client, 0))
            await settled()
            answer(server.take(timeout=10)[0])
            await soon(waits)
            del client, waits
            deadline = time.monotonic() + PATIENCE_S
            while ring in [each.name for each in gpuring.ls()]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
                gc.collect()

    with serve(name) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("order", ["0 1 2", "2 1 0", "1 2 0", "01 2"])
async def test_a_task_that_is_done_hands_the_listening_on(no_slices, server, client, order):
    """The listener receives the answers of two tasks at once, and makes the second task the next
    listener."""
    waits = [asyncio.create_task(finish(client, k, send(client, k))) for k in range(3)]
    await settled()
    taken = server.take(3, timeout=10)
    for several in order.split():
        for k in several:
            answer(taken[int(k)])
        await soon(asyncio.gather(*(waits[int(k)] for k in several)))


@promise(
    "services.md",
    "If a task is cancelled, for example because a visitor hangs up, its call is cancelled, too.",
)
@pytest.mark.parametrize("cancelled", [0, 1])
@pytest.mark.parametrize("calls", [2])
async def test_who_is_cancelled_cancels_the_call_and_hands_the_listening_on(
    no_slices, server, client, cancelled
):
    calls = [send(client, k) for k in range(2)]
    waits = [asyncio.create_task(finish(client, k, call)) for k, call in enumerate(calls)]
    await settled()
    waits[cancelled].cancel()
    await settled()
    assert waits[cancelled].cancelled()
    with pytest.raises(gpuring.RingError, match="was cancelled"):
        calls[cancelled].result(0)
    for call in server.take(2, timeout=10):
        answer(call)
    await soon(waits[1 - cancelled])
    await ask_here(server, client, 7)  # the client comes upon the answer to discard
    assert (client.in_flight, client.late) == (0, 1)


async def test_an_answer_whose_task_is_cancelled_in_the_same_turn_is_released(server, client):
    calls = [send(client, k) for k in range(2)]
    wait = asyncio.create_task(calls[0].result_async())
    await settled()
    first, second = server.take(2, timeout=10)
    answer(first)
    other = asyncio.create_task(finish(client, 1, calls[1]))  # receives both answers
    await asyncio.sleep(0)
    assert calls[0].done
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert wait.cancelled()
    answer(second)
    await soon(other)
    assert client.in_flight == 0


async def test_a_stream_is_for_a_service_on_a_gpu(server, client):
    call = send(client, 0)
    services.serve_once(server, 1)
    with pytest.raises(TypeError, match="takes no stream"):
        await call.result_async(10, stream=5)


async def test_a_call_whose_time_is_up_is_given_up(server, client):
    call = send(client, 0)
    with pytest.raises(gpuring.RingTimeout, match=r"no answer within 0\.02 s; given up"):
        await call.result_async(0.02)
    assert waiters(client._mailbox._ring) == 0, "its bell is still armed"
    with pytest.raises(gpuring.RingTimeout):
        await send(client, 1).result_async(0)
    with pytest.raises(gpuring.RingTimeout):  # the engine passes over both calls
        server.take(2, timeout=0)
    await ask_here(server, client, 2)
    assert (client.in_flight, client.late) == (0, 2)


@promise(
    "services.md", "Tasks use `request_async`, `result_async` (or `await call`) and `call_async`:"
)
async def test_a_call_can_be_awaited_and_made_in_one_line(name, children):
    worker = up(children(engine, name))
    with gpuring.connect(name, timeout=10) as client:
        with await client.call_async(services.whole(7), timeout=PATIENCE_S) as slot:
            assert (slot.array == services.answer_of(7)).all()
        with await send(client, 3) as slot:
            check(client, 3, slot)
    worker.send()
    assert worker.result()["answered"] == 2


async def test_a_call_that_begins_while_others_have_just_ended_is_heard_of(
    no_slices, server, client
):
    async def twice(k):
        await finish(client, k, send(client, k))
        await finish(client, k + 10, send(client, k + 10))

    waits = [asyncio.create_task(twice(k)) for k in range(3)]
    for _ in range(2):
        for call in await asyncio.to_thread(server.take, 3, PATIENCE_S, PATIENCE_S):
            answer(call)
    await soon(asyncio.gather(*waits))


async def test_an_answer_that_comes_just_before_a_task_sleeps(
    no_slices, server, client, monkeypatch
):
    call = send(client, 0)
    (taken,) = server.take(timeout=10)
    pump = client._mailbox.pump

    def early(*args):
        monkeypatch.setattr(client._mailbox, "pump", pump)
        assert not pump(*args)
        answer(taken)
        assert pump(call, time.monotonic() + PATIENCE_S)
        return False

    monkeypatch.setattr(client._mailbox, "pump", early)
    await soon(finish(client, 0, call))


async def test_what_a_loop_cannot_receive_is_told_to_a_task(no_slices, server, client, monkeypatch):
    call = send(client, 0)
    wait = asyncio.create_task(call.result_async())
    await settled()

    def torn(*_):
        raise gpuring.FrameTorn("earlier", (0,))

    with monkeypatch.context() as patched:
        patched.setattr(client._mailbox, "receive", torn)
        answer(server.take(timeout=10)[0])
        with pytest.raises(gpuring.FrameTorn, match="earlier"):
            await soon(wait)
    await soon(finish(client, 0, call))


async def test_two_tasks_may_wait_for_one_call(server, client):
    call = send(client, 0)
    waits = [asyncio.create_task(call.result_async()) for _ in range(2)]
    await settled()
    answer(server.take(timeout=10)[0])
    first, second = await soon(asyncio.gather(*waits))
    assert first is second
    first.release()


# ---- beside threads and other loops ------------------------------------------------------------


@promise(
    "services.md",
    "One thread receives answers for all threads. Each event loop receives answers for all of its "
    "own tasks.",
)
@pytest.mark.parametrize("first", ["thread", "task"])
async def test_a_thread_and_a_task_hand_the_receiving_to_each_other(
    no_slices, server, client, first
):
    calls = {who: send(client, k) for k, who in enumerate(("thread", "task"))}
    waits = {}
    for who in (first, *({"thread", "task"} - {first})):
        if who == "task":
            waits[who] = asyncio.create_task(finish(client, 1, calls[who]))
        else:
            result = asyncio.to_thread(services.finish, client, 0, calls[who])
            waits[who] = asyncio.create_task(result)
            while not services.receives(client):
                await asyncio.sleep(0)
        await settled()
    taken = dict(zip(("thread", "task"), server.take(2, timeout=10), strict=True))
    for who in (first, *({"thread", "task"} - {first})):
        answer(taken[who])
        await soon(waits[who])


@promise(
    "services.md",
    "Several threads, and tasks of several event loops, may use one client at the same time.",
)
@pytest.mark.slow
def test_tasks_of_several_loops_and_threads_share_a_client(name, children, watched):
    async def tasks(client, first):
        await asyncio.gather(*(ask(client, k) for k in range(first, first + 60)))

    def loop(client, first):
        asyncio.run(tasks(client, first))
        done.append(first)

    def plain(client, first):
        for k in range(first, first + 60):
            services.ask(client, k)
        done.append(first)

    done: list[int] = []
    worker = up(children(engine, name))
    with gpuring.connect(name, calls=5) as client:
        threads = [
            threading.Thread(target=role, args=(client, 1000 * n), daemon=True)
            for n, role in enumerate((loop, plain, loop, plain))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert sorted(done) == [0, 1000, 2000, 3000]
        assert client.in_flight == 0
    worker.send()
    assert worker.result()["answered"] == 240


# ---- ends --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("calls", [2])
async def test_closing_a_client_wakes_its_tasks(no_slices, watched, server, client):
    waits = [asyncio.create_task(send(client, k).result_async()) for k in range(2)]
    waits += [asyncio.create_task(client.request_async()) for _ in range(2)]
    await settled()
    await asyncio.to_thread(client.close)
    for wait in waits:
        with pytest.raises(gpuring.RingClosed):
            await soon(wait)


def test_an_engine_that_dies_fails_what_is_awaited(name, children):
    async def main(victim, client):
        waits = [asyncio.create_task(send(client, k).result_async()) for k in range(3)]
        await settled()
        assert await asyncio.to_thread(victim.receive) == [0, 1, 2]
        os.kill(victim.pid, signal.SIGKILL)
        for wait in waits:
            with pytest.raises(gpuring.PeerLost):
                await soon(wait)

    with serve(name, engine=False, redeliver=False):
        victim = up(children(holder, name, 3, {"redeliver": False}))
        with gpuring.connect(name) as client:
            asyncio.run(main(victim, client))


def test_without_an_engine_a_request_waits_and_then_fails(name):
    async def main(client):
        begun = time.monotonic()
        with pytest.raises(gpuring.PeerLost, match="no engine"):
            await client.request_async()
        assert time.monotonic() - begun >= 0.1
        wait = asyncio.create_task(send_async(client, 0))
        await settled()
        with serve(name) as server:
            call = await soon(wait)
            answer(server.take(timeout=10)[0])
            await finish(client, 0, call)

    with serve(name, engine=False), gpuring.connect(name, engine_s=0.1) as client:
        asyncio.run(main(client))

"""Signal handlers that raise, wherever Python runs them, in a client of threads and event loops.

`interrupts` raises at every opcode, also where no handler can run: within the last lines of a
`with`, so that a lock stays the thread's own.  Then only that thread goes on.

`signals` raises where CPython looks for signals: after a call, where a function begins or goes on,
and where a loop begins anew.  After each the others go on, with whoever was interrupted or without.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path

import pytest

import gpuring
from tests.helpers.interrupted import Signal, interrupts, signals
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.helpers.rings import waiters
from tests.service import services
from tests.service.services import ask, in_thread, serve, serve_once

# A coroutine may be interrupted before its first line.  A recorded warning would keep the
# coroutine.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.fixture
def served(name, quick):
    """A service with an engine in another thread."""
    over = threading.Event()

    def engine():
        with serve(name) as server:
            up.set()
            while not over.is_set():
                serve_once(server, 4, timeout=0.01)

    up = threading.Event()
    join = in_thread(engine)
    assert up.wait(PATIENCE_S)
    yield name
    over.set()
    join()


NOTIFIERS = 2  # one for each endpoint of a client, from its first wait in a loop on


def descriptors():
    """How many descriptors are open.  Those of the watchdog are left out, because it opens one for
    each peer at its next look."""
    gc.collect()
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            count += str(each.readlink()) != "anon_inode:[pidfd]"
    return count


def check_whole(client, where, others=True):
    """Checks that other threads and this one can use the client.  Nothing may still need room or
    wait."""
    try:
        if others:
            in_thread(ask, client, 100)()
        gc.collect()  # an exception keeps the frames that it went through, and these keep calls
        ask(client, 101)
        poll(lambda: client.in_flight == 0)
        poll(lambda: waiters(client.ring) <= 1)  # the engine
    except (AssertionError, gpuring.RingError) as error:
        raise AssertionError(f"after {where}: {error}") from error
    assert client._requests._peer.holding() == [], where
    assert client._mailbox._answers._peer.holding() == [], where
    assert client._calls.for_room == {}, where


# ---- event loops --------------------------------------------------------------------------------


async def one(client, k):
    async with asyncio.timeout(PATIENCE_S) if hasattr(asyncio, "timeout") else _no_timeout():
        with await client.request_async() as slot:
            slot.array[...] = services.content(client.id, k)
            slot.meta["k"] = k
            call = slot.call
        with await call as answer:
            services.check(client, k, answer)


@contextlib.asynccontextmanager
async def _no_timeout():
    yield


async def short(client, k):
    with await client.call_async(services.whole(k), PATIENCE_S) as answer:
        assert answer.array[0] == 3 * k + 1


def begin(loop, client):
    """Tasks of a program that does not look at the errors of interrupted tasks."""
    calls = one(client, 0), one(client, 1), short(client, 2), one(client, 3)
    tasks = [loop.create_task(each) for each in calls]
    for task in tasks:
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return tasks


async def several(client):
    await asyncio.wait(begin(asyncio.get_running_loop(), client))


@contextlib.contextmanager
def stops_twice():
    """An interrupt of a callback that runs right after the main task's end leaves asyncio's order
    to stop behind.  The loop's next run obeys it and raises RuntimeError; asyncio.run has such a
    run."""
    try:
        yield
    except RuntimeError as error:
        if str(error) != "Event loop stopped before Future completed.":
            raise
        raise KeyboardInterrupt from error


@promise("services.md", "No other thread, task or loop waits for the one that was interrupted.")
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "each", [lambda: signals(7), lambda: interrupts(151)], ids=["signals", "all"]
)
def test_a_program_of_tasks_that_is_ended_by_a_signal_leaves_its_client_whole(served, each):
    """asyncio.run cancels every task, and runs them to their ends."""
    with gpuring.connect(served, calls=2) as client:
        asyncio.run(several(client))
        before = descriptors()
        for interrupt in each():
            with interrupt, stops_twice():
                asyncio.run(several(client))
            check_whole(client, interrupt.where, isinstance(interrupt, Signal))
        asyncio.run(several(client))
        # Each second the engine looks for what dead clients left, and has their files open then.
        poll(lambda: descriptors() <= before + NOTIFIERS)


@pytest.mark.slow
def test_tasks_go_on_where_their_loop_is_run_again(served):
    with gpuring.connect(served, calls=2) as client:
        for interrupt in signals(7):
            loop = asyncio.new_event_loop()
            tasks = begin(loop, client)
            try:
                with interrupt:
                    loop.run_until_complete(asyncio.wait(tasks))
                with contextlib.suppress(KeyboardInterrupt), stops_twice():
                    loop.run_until_complete(asyncio.sleep(0))
                done, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=10))
                assert not pending, (interrupt.where, pending)
                for task in done:
                    error = task.exception()
                    assert error is None or isinstance(error, KeyboardInterrupt), interrupt.where
                del done, pending, tasks, task, error
                loop.run_until_complete(one(client, 9))
            finally:
                loop.close()
            check_whole(client, interrupt.where)


@promise("services.md", "Any of them can `close` the client.")
@pytest.mark.slow
def test_another_thread_closes_a_client_whose_loop_was_interrupted(served):
    for interrupt in signals(23):
        client = gpuring.connect(served, calls=2)
        with interrupt:
            try:
                asyncio.run(several(client))
            except RuntimeError as error:  # asyncio.run raises it, whose loop was about to stop
                raise error.__context__ or error from None
        in_thread(client.close)()
        assert client.closed, interrupt.where


# ---- threads ------------------------------------------------------------------------------------


def each_verb(client):
    ask(client, 0)
    with client.call(services.whole(1), PATIENCE_S):
        pass
    with client.request(PATIENCE_S) as slot:
        slot.array[...] = 2
        call = slot.call
    call.wait(PATIENCE_S)
    call.cancel()
    client.request(PATIENCE_S).abandon()


@promise(
    "services.md",
    "**Interrupts.** After a Ctrl-C, or after a signal handler that raises, no request stays half "
    "made.",
    "If nobody refers to a call any more, the next request gives it up. If nobody refers to an "
    "answer any more, the next request releases it.",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "each", [lambda: signals(2), lambda: interrupts(23)], ids=["signals", "all"]
)
def test_a_thread_that_was_interrupted_leaves_its_client_whole(served, each):
    with gpuring.connect(served, calls=1) as client:
        for interrupt in each():
            with interrupt:
                each_verb(client)
            ask(client, 7)
            check_whole(client, interrupt.where, isinstance(interrupt, Signal))


@pytest.mark.slow
def test_other_threads_go_on_without_the_one_that_was_interrupted(served):
    """The interrupted thread does nothing more with the client."""
    with gpuring.connect(served, calls=2) as client:
        for interrupt in signals(7):
            others = [in_thread(ask, client, k) for k in (10, 11)]
            with interrupt:
                each_verb(client)
            for join in others:
                join()
            in_thread(check_whole, client, interrupt.where)()

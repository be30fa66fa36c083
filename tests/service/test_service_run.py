"""Engines that run until they are told to end: warm-up, signals, `stop`, and several services."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring.registry import segment
from tests.helpers.processes import Pipe, poll, up
from tests.helpers.promise import promise
from tests.service.services import (
    WORDS,
    asker,
    content,
    finish,
    in_thread,
    running,
    send,
    serve,
)


def answers(requests):
    return 3 * requests + 1


def with_meta(requests, calls):
    """Answers calls one by one, as services.check expects it."""
    for call in calls:
        with call.answer() as slot:
            slot.array[...] = answers(call.array)
            slot.meta["k"], slot.meta["client"] = call.meta["k"], call.client
    return requests


# ---- before the first call ----------------------------------------------------------------------


@promise(
    "services.md",
    "With `warm_up=True` the function is called with zeros of the largest batch before the first "
    "call is taken.",
)
def test_a_warm_up_comes_before_the_first_call(name):
    got = []
    with serve(name, response_meta=None) as server, gpuring.connect(name) as client:

        @server.batch(max_batch=5, warm_up=True)
        def answer(requests, calls):
            got.append((requests.shape, requests.dtype, len(calls), not requests.any()))
            return answers(requests)

        call = send(client, 1)
        assert not got
        with running(server), call.result(20) as slot:
            assert (slot.array == answers(content(client.id, 1))).all()
    assert got[0] == ((5, WORDS), np.dtype("i8"), 0, True)
    assert [n for _, _, n, _ in got] == [0, 1]


@promise("services.md", "A function of your own may take the place of that call.")
def test_a_warm_up_may_be_a_function(name):
    told = []
    with serve(name) as server:

        @server.batch(max_batch=5, warm_up=lambda: told.append("warm") or server.stop())
        def answer(_):
            raise AssertionError("nobody has asked")

        server.run()
    assert told == ["warm"]


@promise(
    "services.md",
    "So no client waits for a compilation, and a function that returns the wrong shape is found "
    "before any call is taken.",
)
def test_a_function_that_fails_its_warm_up_takes_no_call(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        server.batch(2, warm_up=True)(lambda requests: requests[:1])
        with pytest.raises(ValueError, match=r"shape \(1, 64\) for 2 calls"):
            server.run()
        assert not call.done
        assert server.counts.taken == 0


# ---- the end ------------------------------------------------------------------------------------


def worker(pipe: Pipe, name: str) -> dict[str, int]:
    """Warms up until it is told to begin.  Sends each batch, and answers it when it is told to."""
    handler = signal.getsignal(signal.SIGTERM)
    with gpuring.serve(name, timeout=10) as server:

        @server.batch(max_batch=2, warm_up=lambda: (pipe.send("up"), pipe.receive()))
        def answer(requests, calls):
            pipe.ask([int(call.meta["k"]) for call in calls])
            return with_meta(requests, calls)

        ended = None
        with contextlib.suppress(KeyboardInterrupt):
            ended = server.run()
        assert signal.getsignal(signal.SIGTERM) is handler
    return vars(server.counts) | {"ended": ended}


@promise(
    "services.md",
    "SIGTERM, which only a `run` in the main thread sees | answers the batch that it has, and "
    'returns "SIGTERM" | get the calls that are left',
)
def test_sigterm_ends_an_engine_when_its_batch_is_answered(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client, gpuring.serve(name) as other:
        engine = up(children(worker, name))
        calls = [send(client, k) for k in range(5)]
        engine.send()
        assert engine.receive() == [0, 1]
        os.kill(engine.pid, signal.SIGTERM)
        counts = engine.finish()
        assert (counts["taken"], counts["answered"], counts["failed"]) == (2, 2, 0)
        assert counts["ended"] == "SIGTERM"
        rest = other.take(8, timeout=10)
        assert [(int(call.meta["k"]), call.redelivered) for call in rest] == [
            (k, False) for k in (2, 3, 4)
        ]
        with_meta(None, rest)
        for k, call in enumerate(calls):
            finish(client, k, call)


def test_sigterm_ends_an_engine_that_waits(name, children):
    with serve(name, engine=False) as keeper:
        engine = up(children(worker, name))
        engine.send()
        poll(lambda: any(peer.waiting for peer in keeper.stats().peers))
        os.kill(engine.pid, signal.SIGTERM)
        assert engine.result()["taken"] == 0


@promise(
    "services.md",
    "Ctrl-C | raises `KeyboardInterrupt` | get the batch as well",
)
def test_ctrl_c_gives_the_batch_to_another_engine(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client, gpuring.serve(name) as other:
        engine = up(children(worker, name))
        calls = [send(client, k) for k in range(3)]
        engine.send()
        assert engine.receive() == [0, 1]
        os.kill(engine.pid, signal.SIGINT)
        assert engine.result()["answered"] == 0
        rest = other.take(3, max_wait_s=20, timeout=10)
        assert sorted(int(call.meta["k"]) for call in rest) == [0, 1, 2]
        with_meta(None, rest)
        for k, call in enumerate(calls):
            finish(client, k, call)


@promise(
    "services.md",
    "`server.stop()`, from any thread and from the function | answers the batch that it has, and "
    'returns "stopped" | get the calls that are left',
)
def test_stop_ends_the_run_from_a_thread_from_the_function_or_before_it(name):
    with serve(name) as server, gpuring.connect(name) as client:

        @server.batch(max_batch=1)
        def answer(requests, calls):
            if calls[0].meta["k"] == 1:
                server.stop()
            return with_meta(requests, calls)

        server.stop()
        assert server.run() == "stopped"  # at once
        ended = in_thread(server.run)
        poll(lambda: any(peer.waiting for peer in server.stats().peers))
        server.stop()
        assert ended() == "stopped"
        calls = [send(client, k) for k in range(3)]
        server.run()
        assert [call.done for call in calls] == [True, True, False]
        for k in range(2):
            finish(client, k, calls[k])


@promise(
    "services.md",
    "SIGTERM, which only a `run` in the main thread sees",
    "When `run` has returned, SIGTERM does what it did before.",
)
def test_a_run_outside_of_the_main_thread_leaves_sigterm_alone(name):
    handler, seen = signal.getsignal(signal.SIGTERM), []
    with serve(name) as server:

        @server.batch(max_batch=1, warm_up=lambda: seen.append(signal.getsignal(signal.SIGTERM)))
        def answer(requests):
            return requests

        with running(server):
            poll(lambda: seen)
        assert seen == [handler]
        server.stop()
        server.run()
        assert threading.current_thread() is threading.main_thread()
        assert len(seen) == 2
        assert seen[1] is not handler
        assert signal.getsignal(signal.SIGTERM) is handler


def test_a_run_that_ctrl_c_interrupts_anywhere_leaves_sigterm_as_it_was(name):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    handler = signal.getsignal(signal.SIGTERM)
    gc.disable()  # an interrupt in the collector would become a warning
    with serve(name) as server:
        server.batch(max_batch=1)(lambda requests: requests)
        try:
            for k in range(3000):
                server.stop()
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + k % 150))
                    server.run()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert signal.getsignal(signal.SIGTERM) is handler, k
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            gc.enable()


def replaced(pipe: Pipe, name: str) -> dict[str, int]:
    """Answers until SIGTERM comes."""
    with gpuring.serve(name, timeout=10) as server:
        server.batch(8, warm_up=lambda: pipe.send("up"))(with_meta)
        server.run()
    return vars(server.counts)


@promise(
    "services.md",
    "So engines can be replaced one after the other under load, and no call fails or is worked on "
    "twice. This needs a process that owns the service and takes no calls ([Who owns a "
    "service](#who-owns-a-service)).",
)
@pytest.mark.slow
def test_engines_that_are_replaced_under_load_lose_no_call(name, children):
    with serve(name, engine=False):
        engines = [up(children(replaced, name)) for _ in range(2)]
        askers = [up(children(asker, name, None, 1500, 8)) for _ in range(2)]
        counts = []
        for _ in range(3):
            engines.append(up(children(replaced, name)))
            poll(lambda: gpuring.health(name, within_s=60).ready == 3)
            os.kill(engines[0].pid, signal.SIGTERM)
            counts.append(engines.pop(0).result())
        for each in askers:
            each.result()
        for each in engines:
            os.kill(each.pid, signal.SIGTERM)
            counts.append(each.result())
    assert sum(each["answered"] for each in counts) == 3000
    for what in ("failed", "redelivered", "undelivered", "dropped", "expired"):
        assert not any(each[what] for each in counts)


@promise(
    "services.md",
    'the service is closed | returns "closed" | return "closed" as well, so a supervisor has to '
    "start all of them again",
)
def test_a_service_that_is_closed_ends_the_run(name):
    keeper = serve(name, engine=False)
    with gpuring.serve(name) as server:
        server.batch(1)(answers)
        ended = in_thread(server.run)
        keeper.close()
        assert ended() == "closed"


# ---- several services ---------------------------------------------------------------------------


@promise("services.md", "`gpuring.run([urgent, normal])` runs the functions of both.")
def test_one_engine_runs_several_services_by_priority(name):
    order = []
    with (
        serve(f"{name}-urgent", response_meta=None) as urgent,
        serve(f"{name}-normal", request=((3,), "f4"), response=((3,), "f4")) as normal,
        gpuring.connect(urgent.name, calls=16) as first,
        gpuring.connect(normal.name, calls=16) as second,
    ):

        @urgent.batch(max_batch=2)
        @normal.batch(max_batch=4)
        def answer(requests):
            order.append(requests.shape)
            return 2 * requests

        def small(k):
            with second.request() as slot:
                slot.array[:], slot.meta["k"] = k, k
                return slot.call

        numbers = [small(k) for k in range(5)]
        calls = [send(first, k) for k in range(3)]
        ended = in_thread(gpuring.run, [urgent, normal])
        for k, call in enumerate(calls):
            with call.result(20) as slot:
                assert (slot.array == 2 * content(first.id, k)).all()
        for k, call in enumerate(numbers):
            with call.result(20) as slot:
                assert (slot.array == 2 * k).all()
        normal.stop()
        ended()
    assert order == [(2, WORDS), (1, WORDS), (4, 3), (1, 3)]


def test_an_engine_that_is_closed_has_no_memory_of_its_service(name):
    with serve(name, engine=False), gpuring.serve(name) as server:
        slots = segment.slots_name(name, bytes.fromhex(server.stats().epoch))
        server.batch(2)(answers)
        assert slots in Path("/proc/self/maps").read_text()
        server.close()
        assert slots not in Path("/proc/self/maps").read_text()

"""Waits in event loops, whose threads do other things meanwhile, and waits that began before the
trace."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import statistics
import time

import pytest

pytest.importorskip("perfetto")

import gpuring
from gpuring.tracing.state import BEFORE
from tests.cli.processes import camera, holder
from tests.helpers.processes import poll, sleeps, up
from tests.helpers.rings import small_ring
from tests.tracing.pipelines import paced, stalls, trace, trace_frames
from tests.tracing.traced import events, tracer_of


def of(slices, child):
    return [each for each in slices if each.pid == child.pid]


def loops(pipe, names):
    """One thread with a task for each ring."""

    async def read(ring):
        async for _ in ring.consumer(label="task"):
            pass

    async def run(rings):
        pipe.send()
        await asyncio.gather(*map(read, rings))

    with contextlib.ExitStack() as stack:
        asyncio.run(run([stack.enter_context(gpuring.attach(name)) for name in names]))


def polls(pipe, name):
    """A loop with a selector of its own."""
    with (
        gpuring.attach(name) as ring,
        ring.consumer(label="selector") as consumer,
        selectors.DefaultSelector() as selector,
    ):
        selector.register(consumer, selectors.EVENT_READ)
        pipe.send()
        while True:
            selector.select()
            with contextlib.suppress(gpuring.RingTimeout):
                consumer.acquire(0).release()


def test_tasks_of_one_thread_wait_side_by_side(children, name, path):
    names = [name, f"{name}-b"]
    with small_ring(name, slots=8), small_ring(names[1], slots=8):
        child = up(children(loops, names))
        sources = [up(children(paced, each, 0.003)) for each in names]
        _, seen = trace_frames(path, *names)
    for each, source in zip(names, sources, strict=True):
        waits = [
            wait
            for wait in of(seen.named("waits for frame"), child)
            if wait.track.endswith(f"/ {each}: waits in an event loop")
        ]
        assert len(waits) > 10
        assert f"camera, pid {source.pid}" in {wait.args["culprit"] for wait in waits}
        reads = {
            read.args["sequence"]: read
            for read in of(seen.named("reads"), child)
            if read.args["ring"] == each
        }
        ended = [wait for wait in waits if "end" not in wait.args]
        for wait in ended[1:-1]:
            read = reads[wait.args["sequence"]]
            assert wait.end_ns <= read.begin_ns  # it has waited for exactly that frame


def test_a_selector_of_ones_own_waits_too(children, name, path):
    with small_ring(name, slots=8):
        child = up(children(polls, name))
        up(children(paced, name, 0.003))
        _, seen = trace_frames(path, name)
    waits = of(seen.named("waits for frame"), child)
    assert len(waits) > 10
    assert {each.track.rpartition(" / ")[2] for each in waits} == {
        f"{name}: waits in an event loop"
    }


def claims(pipe, name):
    async def run(producer):
        pipe.send()
        while True:
            (await producer.claim_async()).publish()
            await asyncio.sleep(0.002)

    with gpuring.attach(name) as ring, ring.producer(label="task") as producer:
        asyncio.run(run(producer))


def test_a_claim_in_a_loop_names_the_culprit_and_has_its_arrow(children, name, path):
    with small_ring(name):
        recorder = up(children(stalls, name, 0.1))
        source = up(children(claims, name))
        told, seen = trace_frames(path, name)
    # Between two frames, it waits for the subscription of that name, which has no pid.
    held = of(seen.named("waits for recorder, pid"), source)
    assert held
    assert {each.args["culprit's pid"] for each in held} == {recorder.pid}
    assert f"pid {source.pid}, waited for recorder, pid {recorder.pid}" in " ".join(told.split())
    stalled = [
        each
        for each in of(seen.named("reads"), recorder)
        if each.end_ns - each.begin_ns > 90e6 and "end" not in each.args
    ]
    assert any(each.leads_to for each in stalled)


def test_a_wait_in_a_loop_that_is_older_than_the_trace_is_in_it(children, name, path):
    with small_ring(name):
        up(children(polls, name))
        poll(lambda: is_waiting(name, "consumer"))
        _, seen = trace(path, name, seconds=1.5)
    (wait,) = seen.named("waits for frame")
    assert wait.args[BEFORE]
    assert wait.args["end"] == "still waits"


def is_waiting(name, role):
    (ring,) = [each for each in gpuring.ls() if each.name == name]
    return [peer for peer in ring.peers if peer.role == role and peer.waiting]


def test_a_wait_that_is_older_than_the_trace_is_in_it_and_in_what_the_command_says(
    children, name, path
):
    with small_ring(name):
        recorder = up(children(holder, name, "recorder"))
        source = up(children(camera, name))
        poll(lambda: is_waiting(name, "producer"))
        told, seen = trace(path, name, seconds=1.5)
    (wait,) = of(seen.named("waits for recorder"), source)
    assert wait.args[BEFORE]
    assert f"waited for recorder, pid {recorder.pid}, in {name}: " in " ".join(told.split())
    assert "from before the trace on" in " ".join(told.split())


def test_a_sleeper_tells_each_trace_at_once_what_it_waits_for(children, name):
    """If it told one only when it looks by itself, that would be a second after it told the last.
    On a busy machine it may take nearly as long at times, but not mostly."""
    with small_ring(name):
        up(children(holder, name, "recorder"))
        source = up(children(camera, name))
        (producer,) = poll(lambda: is_waiting(name, "producer"))
        took_s = [told_after_s(name, producer.number, source) for _ in range(20)]
    assert statistics.median(took_s) < 0.5


def told_after_s(name, number, child):
    """When this returns it sleeps again.  The end of a trace wakes it, too."""
    begun = time.monotonic()
    is_told(name, number)
    took_s = time.monotonic() - begun
    poll(lambda: sleeps(child.pid))
    return took_s


def is_told(name, number):
    """The trace ends with its tracer."""
    tracer = tracer_of(name)
    poll(lambda: "wait" in dict(events(tracer, number)))


def test_a_wait_that_is_given_up_ends(name):
    with small_ring(name) as ring, ring.producer(), ring.consumer() as consumer:
        tracer = tracer_of(name)

        async def give_up():
            with pytest.raises(gpuring.RingTimeout):
                await consumer.acquire_async(0.01)
            task = asyncio.create_task(consumer.acquire_async())
            while not consumer._awaited:
                await asyncio.sleep(0)
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(give_up())
        kinds = [kind for kind, _ in events(tracer, consumer._peer.number)]
        assert kinds == ["wait", "stop", "wait", "stop"]

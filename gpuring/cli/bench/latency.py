"""How long one frame takes: there and back, and one way; idle, and with a third process on the GPU.

Round trip: the asker claims, writes, publishes on one ring; the echo process acquires, checks,
releases, and answers on a second ring; the asker acquires, checks, releases. The clock stops when
its check has run on the GPU. One way: in such rounds, from before the asker's claim to the moment
at which the echo process has seen its check done (it answers only then); both by CLOCK_MONOTONIC.
One frame is in flight, all processes spin. busy=True: a third process keeps every multiprocessor
filled with kernels of 200 µs. Not shown: latency under a queue of frames (that is the queue's), and
real kernels (theirs comes on top).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import gpuring

from .attempt import Wrong, attempt, expect_right
from .crew import Crew, Pipe
from .figures import Distribution, Figure
from .patterns import cuda_tools, pattern_for
from .settings import FRAME_NBYTES, SLOTS, Place, Settings, ring_name

GROUP = "latency"
BUSY_NS = 200_000
_WARM_UP = 100
_FEWEST = 50
"""Rounds that must be done in time for percentiles to mean something."""


@dataclass(frozen=True)
class Course:
    """One run."""

    place: Place
    kernel: bool
    rounds: int
    limit_s: float
    spoil: bool
    ring: str = field(default_factory=ring_name)
    back: str = field(default_factory=ring_name)


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    for place in settings.places:
        loads = (False, True) if place in settings.busy_places else (False,)
        for busy in loads:
            for kernel in (True,) if place.on_gpu else (False, True):
                where = settings.where(
                    place, kernel=kernel, busy=busy, slots=SLOTS, nbytes=FRAME_NBYTES
                )
                for name in ("round trip", "one-way"):
                    rounds, limit_s = settings.rounds(500, 5000), settings.seconds(1.2, 4.0)
                    course = Course(place, kernel, rounds, limit_s, settings.spoil)
                    blank = Figure(GROUP, name, "gpuring", "µs", where)
                    one_way = name == "one-way"
                    yield from attempt(blank, partial(_measure, crew, course, busy, blank, one_way))


def _measure(
    crew: Crew, course: Course, busy: bool, blank: Figure, one_way: bool
) -> Iterator[Figure]:
    with _third_process(crew, busy), crew.start(ask, course) as asker:
        asker.receive()
        with crew.start(echo, course, one_way) as echoing:
            echoing.receive()
            asker.send("go")
            began, ended, wrong = asker.receive()
            checked, more_wrong = echoing.result()
            expect_right(wrong + more_wrong)
        asker.send("close")
        asker.result()
    done = checked if one_way else ended
    yield _figure(blank, course, [end - start for start, end in zip(began, done, strict=True)])


def _figure(blank: Figure, course: Course, ns: list[int]) -> Figure:
    ns = ns[_WARM_UP:]
    if len(ns) < min(_FEWEST, course.rounds):
        return replace(blank, skipped=f"only {len(ns)} rounds within {course.limit_s:g} s")
    verified = f"4 KiB of {'every frame' if course.kernel else f'{_WARM_UP} warm-up frames'}"
    return replace(blank, values=Distribution.of([n / 1e3 for n in ns]), verified=verified)


@contextlib.contextmanager
def _third_process(crew: Crew, busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    with crew.start(occupy) as part:
        part.receive()
        yield
        part.send("stop")
        launched, took_s = part.result()
    if launched * BUSY_NS / 1e9 < 0.01 * took_s:
        raise Wrong("the third process did not get the GPU at all")


# ---- the processes ------------------------------------------------------------------------------


def _create(name: str, place: Place) -> gpuring.Ring:
    shape = (FRAME_NBYTES // 8,)
    return gpuring.create(name, slots=SLOTS, shape=shape, dtype="u8", **place.options)


def _until(rounds: int, limit_s: float) -> Iterator[int]:
    """Numbers of rounds, until all are done or the time is up."""
    end = time.monotonic() + limit_s
    for n in range(rounds + _WARM_UP):
        if n >= _WARM_UP and time.monotonic() > end:
            return
        yield n


def ask(pipe: Pipe, course: Course) -> None:
    with (
        _create(course.ring, course.place) as outward,
        _create(course.back, course.place) as inward,
    ):
        with outward.producer() as producer, inward.consumer() as consumer:
            pattern, answers = pattern_for(outward), pattern_for(inward)
            began: list[int] = []
            ended: list[int] = []
            pipe.send("ready")
            pipe.receive()
            clock = time.monotonic_ns
            for n in _until(course.rounds, course.limit_s):
                touched = course.kernel or n < _WARM_UP
                began.append(clock())
                slot = producer.claim()
                if touched:
                    pattern.stamp(slot)
                    if course.spoil and n == 0:
                        pattern.spoil(slot)
                slot.publish()
                answer = consumer.acquire()
                if touched:
                    answers.check(answer)
                answer.release()
                while answers.pending():
                    pass
                ended.append(clock())
            producer.close()
            pipe.send((began, ended, answers.wrong()))
        pipe.receive()


def echo(pipe: Pipe, course: Course, one_way: bool) -> tuple[list[int], int]:
    """Answers every frame.  When it had seen each checked, if that is wanted; how many words were
    wrong."""
    with (
        gpuring.attach(course.ring, timeout=30) as inward,
        gpuring.attach(course.back, timeout=30) as outward,
        inward.consumer() as consumer,
        outward.producer() as producer,
    ):
        pattern, back, n = pattern_for(inward), pattern_for(outward), 0
        checked: list[int] = []
        clock = time.monotonic_ns
        pipe.send("ready")
        with contextlib.suppress(gpuring.EndOfStream):
            while True:
                touched = course.kernel or n < _WARM_UP
                question = consumer.acquire()
                if touched:
                    pattern.check(question)
                question.release()
                if one_way:
                    while pattern.pending():
                        pass
                    checked.append(clock())
                answer = producer.claim()
                if touched:
                    back.stamp(answer)
                answer.publish()
                n += 1
        return checked, pattern.wrong()


def occupy(pipe: Pipe) -> tuple[int, float]:
    """Keeps the GPU busy with at most two kernels in flight, until told; their number, the time."""
    tools = cuda_tools()
    runtime = tools.cupy.cuda.runtime
    device = tools.cupy.cuda.Device()
    blocks = 2 * int(device.attributes["MultiProcessorCount"])  # of 1024 threads: fills them
    kernel = tools.kernel("busy", "driver", BUSY_NS)
    done = [runtime.eventCreateWithFlags(runtime.eventDisableTiming) for _ in range(2)]
    try:
        kernel.launch_grid(blocks, 1024)
        tools.stream.synchronize()
        pipe.send("busy")
        start, n = time.monotonic(), 0
        while not pipe.told():
            if n >= 2:
                runtime.eventSynchronize(done[n % 2])
            kernel.launch_grid(blocks, 1024)
            runtime.eventRecord(done[n % 2], tools.stream.ptr)
            n += 1
        pipe.receive()
        tools.stream.synchronize()
        return n, time.monotonic() - start
    finally:
        for event in done:
            runtime.eventDestroy(event)

"""How long one frame takes: there and back, and one way.

Round trip: the asker claims, writes, publishes on one ring; the echo process acquires, checks,
releases, and answers on a second ring; the asker acquires, checks, releases. The clock stops when
its check has run on the GPU. One way: in such rounds, from before the asker's claim to the moment
at which the echo process has seen its check done (it answers only then); both by CLOCK_MONOTONIC.
One frame is in flight. Consumers wait as they do by default: they spin for some tens of
microseconds, and then sleep. Not shown: latency behind a queue of frames, which is that of the
queue, and the time of real kernels, which is added.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import gpuring

from ..measure.attempt import attempt, expect_right
from ..measure.crew import Crew, Pipe
from ..measure.figures import Distribution, Figure
from ..measure.patterns import pattern_for
from ..measure.settings import FRAME_NBYTES, SLOTS, Place, Settings, create, ring_name

GROUP = "latency"
_WARM_UP = 100
_FEWEST = 50
"""Rounds that are measured however long they take."""


@dataclass(frozen=True)
class Course:
    place: Place
    kernel: bool
    rounds: int
    limit_s: float
    spoil: bool
    ring: str = field(default_factory=ring_name)
    back: str = field(default_factory=ring_name)


Beside = Callable[[], AbstractContextManager[None]]
"""What runs beside the two processes while they are measured."""


def run(
    settings: Settings,
    crew: Crew,
    place: Place,
    *,
    kernel: bool,
    names: tuple[str, ...] = ("round trip", "one-way"),
    busy: bool = False,
    beside: Beside = contextlib.nullcontext,
) -> Iterator[Figure]:
    """busy: what figures say of `beside`."""
    where = settings.where(place, kernel=kernel, busy=busy, slots=SLOTS, nbytes=FRAME_NBYTES)
    for name in names:
        rounds, limit_s = settings.rounds(2000, 10_000), settings.seconds(1.5, 4.0)
        course = Course(place, kernel, rounds, limit_s, settings.spoil)
        blank = Figure(GROUP, name, "gpuring", "µs", where)
        yield from attempt(blank, partial(_measure, crew, course, beside, blank, name == "one-way"))


def _measure(
    crew: Crew, course: Course, beside: Beside, blank: Figure, one_way: bool
) -> Iterator[Figure]:
    with beside(), crew.start(ask, course) as asker:
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
    verified = f"4 KiB of {'every frame' if course.kernel else f'{_WARM_UP} warm-up frames'}"
    return replace(
        blank, values=Distribution.of([n / 1e3 for n in ns[_WARM_UP:]]), verified=verified
    )


# ---- the processes ------------------------------------------------------------------------------


def rounds_within(rounds: int, limit_s: float) -> Iterator[int]:
    """Numbers of rounds, until all are done or the time is up; _FEWEST are done in any case."""
    end = time.monotonic() + limit_s
    for n in range(rounds + _WARM_UP):
        if n >= _WARM_UP + _FEWEST and time.monotonic() > end:
            return
        yield n


def ask(pipe: Pipe, course: Course) -> None:
    with (
        create(course.ring, course.place) as outward,
        create(course.back, course.place) as inward,
    ):
        with outward.producer() as producer, inward.consumer() as consumer:
            pattern, answers = pattern_for(outward), pattern_for(inward)
            began: list[int] = []
            ended: list[int] = []
            pipe.send("ready")
            pipe.receive()
            clock = time.monotonic_ns
            for n in rounds_within(course.rounds, course.limit_s):
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

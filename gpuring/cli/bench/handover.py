"""What each verb costs its own process when nobody has to wait.

One process is producer and consumer in turn: it claims a lap of slots, publishes them, acquires
them, releases them. Each lap is timed as a whole, so that the clock costs little. On a GPU the
stream runs dry in between. Not shown: cache misses between cores, and the GPU's own time (see
throughput and latency).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ..measure.attempt import attempt, expect_right
from ..measure.crew import Crew, Pipe
from ..measure.figures import Distribution, Figure, Value
from ..measure.kernels import WORDS, cuda_tools
from ..measure.patterns import pattern_for
from ..measure.settings import SLOTS, Place, Settings, create, ring_name

GROUP = "transitions"
VERBS = ("claim", "publish", "acquire", "release")
WARM_UP = 50  # laps


def run(settings: Settings, crew: Crew, place: Place) -> Iterator[Figure]:
    """The verbs one by one, and both sides of a hand-over."""
    blank = Figure(GROUP, "verbs", "gpuring", "ns", settings.where(place, slots=SLOTS))
    yield from attempt(blank, partial(_in_python, settings, crew, place))


def launches(settings: Settings, crew: Crew) -> Iterator[Figure]:
    """What the kernels of these benchmarks cost themselves."""
    blank = Figure(GROUP, "kernel launch", "gpuring", "ns", {"mps": settings.mps})
    yield from attempt(blank, partial(_launches, crew, laps(settings), blank))


def laps(settings: Settings) -> int:
    return settings.rounds(1000, 2500)


def _in_python(settings: Settings, crew: Crew, place: Place) -> Iterator[Figure]:
    found, wrong = crew.call(measure_verbs, ring_name(), place, laps(settings), settings.spoil)
    expect_right(wrong)
    for name, setting, ns in found:
        yield Figure(
            GROUP,
            name,
            "gpuring",
            "ns",
            settings.where(place, slots=SLOTS, **setting),
            Distribution.of(ns),
            "two laps of whole frames before the clock, and 4 KiB of every frame with kernel=True",
        )


Found = tuple[str, dict[str, Value], list[float]]


def measure_verbs(
    pipe: Pipe, name: str, place: Place, laps: int, spoil: bool
) -> tuple[list[Found], int]:
    """Nanoseconds per verb, one value a lap; and how many words were wrong."""
    with (
        create(name, place) as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        pattern = pattern_for(ring)
        _verify(producer, consumer, pattern, spoil)
        found = _separately(producer, consumer, pattern, laps)
        sides = _sides(producer, consumer, pattern)
        for (label, setting), (produce, consume) in sides.items():
            ours: list[float] = []
            theirs: list[float] = []
            for lap in range(laps + WARM_UP):
                for side, into in ((produce, ours), (consume, theirs)):
                    start = time.perf_counter_ns()
                    side()
                    took = time.perf_counter_ns() - start
                    pattern.finish()
                    if lap >= WARM_UP:
                        into.append(took / SLOTS)
            for side_name, ns in (("producer", ours), ("consumer", theirs)):
                found.append((label, {"side": side_name, **dict(setting)}, ns))
        return found, pattern.wrong()


def _verify(producer: Any, consumer: Any, pattern: Any, spoil: bool = False) -> None:
    for _ in range(2):
        for _ in range(SLOTS):
            with producer.claim() as slot:
                pattern.stamp_all(slot)
                if spoil:
                    pattern.spoil(slot)
        for _ in range(SLOTS):
            with consumer.acquire() as slot:
                pattern.check_all(slot)
        pattern.finish()


def _separately(producer: Any, consumer: Any, pattern: Any, laps: int) -> list[Found]:
    claim, acquire, clock = producer.claim, consumer.acquire, time.perf_counter_ns
    ns: dict[str, list[float]] = {verb: [] for verb in VERBS}
    for lap in range(laps + WARM_UP):
        t0 = clock()
        written = [claim() for _ in range(SLOTS)]
        t1 = clock()
        for slot in written:
            slot.publish()
        t2 = clock()
        pattern.finish()
        t3 = clock()
        read = [acquire() for _ in range(SLOTS)]
        t4 = clock()
        for slot in read:
            slot.release()
        t5 = clock()
        pattern.finish()
        if lap >= WARM_UP:
            for verb, took in zip(VERBS, (t1 - t0, t2 - t1, t4 - t3, t5 - t4), strict=True):
                ns[verb].append(took / SLOTS)
    return [(verb, {}, values) for verb, values in ns.items()]


Lap = Callable[[], None]
Sides = dict[tuple[str, tuple[tuple[str, Value], ...]], tuple[Lap, Lap]]


def _sides(producer: Any, consumer: Any, pattern: Any) -> Sides:
    """Laps of each side, by the name and setting of the figure that they make."""
    claim, acquire = producer.claim, consumer.acquire
    stamp, check = pattern.stamp, pattern.check

    def publish_bare() -> None:
        for _ in range(SLOTS):
            claim().publish()

    def release_bare() -> None:
        for _ in range(SLOTS):
            acquire().release()

    def publish_stamped() -> None:
        for _ in range(SLOTS):
            slot = claim()
            stamp(slot)
            slot.publish()

    def release_checked() -> None:
        for _ in range(SLOTS):
            slot = acquire()
            check(slot)
            slot.release()

    name = "host time per frame"
    bare, touched = ("kernel", False), ("kernel", True)
    sides: Sides = {
        (name, (bare,)): (publish_bare, release_bare),
        (name, (touched,)): (publish_stamped, release_checked),
    }

    def publish_batch() -> None:
        left = SLOTS
        while left:
            slots = producer.claim_many(left)
            slots.publish()
            left -= len(slots)

    def release_batch() -> None:
        left = SLOTS
        while left:
            slots = consumer.acquire_many(left)
            slots.release()
            left -= len(slots)

    sides[f"{name}, batched", (bare, ("batch", SLOTS))] = publish_batch, release_batch
    return sides


# ---- what the kernels of these benchmarks cost themselves ---------------------------------------


def _launches(crew: Crew, laps: int, blank: Figure) -> Iterator[Figure]:
    for program, ns in crew.call(measure_launches, laps).items():
        verified = "each kernel told right words from wrong ones"
        yield replace(blank, program=program, values=Distribution.of(ns), verified=verified)


def measure_launches(pipe: Pipe, laps: int) -> dict[str, list[float]]:
    tools = cuda_tools()
    words = tools.zeros(WORDS)
    pointer, found = words.ptr, {}
    for launch in tools.launches:
        program = "cuda-bindings" if launch == "driver" else launch
        kernel = tools.kernel("stamp", launch, pointer, WORDS, 0)
        ns = []
        for lap in range(laps + WARM_UP):
            start = time.perf_counter_ns()
            for k in range(SLOTS):
                kernel.launch(pointer, k)
            took = time.perf_counter_ns() - start
            tools.finish()
            if lap >= WARM_UP:
                ns.append(took / SLOTS)
        found[program] = ns
    return found

"""What each verb costs its own process when nobody has to wait.

One process is producer and consumer in turn: it claims a lap of slots, publishes them, acquires
them, releases them, each lap timed as a whole so that the clock costs little, and on a GPU lets the
stream run dry in between. "core" is the C core alone; "gpuring" the Python API. Not shown: cache
misses between cores (see "producer's host cost") and the GPU's own time (see throughput and
latency).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gpuring

from .attempt import Wrong, attempt, expect_right
from .crew import Crew, Pipe
from .figures import QUANTILES, Distribution, Figure, Value
from .patterns import WORDS, cuda_tools, pattern_for
from .settings import FRAME_NBYTES, HOST, SLOTS, Place, Settings, ring_name

GROUP = "transitions"
VERBS = ("claim", "publish", "acquire", "release")
_WARM_UP = 50  # laps


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    if HOST in settings.places:
        yield from _in_c()
    laps = settings.rounds(500, 2500)
    for place in settings.places:
        blank = Figure(GROUP, "verbs", "gpuring", "ns", settings.where(place, slots=SLOTS))
        yield from attempt(blank, partial(_in_python, settings, crew, place, laps))
    if settings.gpu_places:
        blank = Figure(GROUP, "kernel launch", "gpuring", "ns", {"mps": settings.mps})
        yield from attempt(blank, partial(_launches, crew, laps, blank))
    for place in settings.one_per_sync:
        for consumers in (1, 2, 4) if settings.quick else (1, 2, 4, 8, 16):
            where = settings.where(place, consumers=consumers, loaded=False, kernel=False)
            blank = Figure(GROUP, "producer's host cost", "gpuring", "ns", where)
            yield from attempt(
                blank, partial(_with_consumers, settings, crew, place, consumers, laps, blank)
            )


# ---- the core in C ------------------------------------------------------------------------------


def _in_c() -> Iterator[Figure]:
    blank = Figure(GROUP, "claim", "core", "ns", {"sync": "host", "slots": SLOTS})
    package = Path(gpuring.__file__).parent
    sources = sorted(package.glob("core/*.c"))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or not sources:
        why = "no C compiler" if sources else "the C sources are not installed"
        yield replace(blank, skipped=why)
        return
    with tempfile.TemporaryDirectory() as out:
        program = Path(out, "transitions")
        command = [compiler, "-std=gnu11", "-O2", "-pthread", f"-I{package}", "-o", str(program)]
        command += [str(Path(__file__).with_name("transitions.c")), *map(str, sources)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
            asked = [str(program), *map(str, QUANTILES)]
            done = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=100)
        except subprocess.SubprocessError as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            yield replace(blank, skipped=lines[-1])
            return
    found = json.loads(done.stdout)
    for verb in VERBS:
        values = Distribution(found["n"], tuple(found[verb]))
        yield replace(blank, name=verb, values=values, verified="each sequence, in order")


# ---- through Python -----------------------------------------------------------------------------


def _in_python(settings: Settings, crew: Crew, place: Place, laps: int) -> Iterator[Figure]:
    found, wrong = crew.call(measure_verbs, ring_name(), place, laps, settings.spoil)
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
    shape = (FRAME_NBYTES // 8,)
    with (
        gpuring.create(name, slots=SLOTS, shape=shape, dtype="u8", **place.options) as ring,
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
            for lap in range(laps + _WARM_UP):
                for side, into in ((produce, ours), (consume, theirs)):
                    start = time.perf_counter_ns()
                    side()
                    took = time.perf_counter_ns() - start
                    pattern.finish()
                    if lap >= _WARM_UP:
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
    for lap in range(laps + _WARM_UP):
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
        if lap >= _WARM_UP:
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

    def publish_with() -> None:
        for _ in range(SLOTS):
            with claim():
                pass

    def release_with() -> None:
        for _ in range(SLOTS):
            with acquire():
                pass

    name = "host time per frame"
    bare, touched = ("kernel", False), ("kernel", True)
    sides: Sides = {
        (name, (bare,)): (publish_bare, release_bare),
        (name, (touched,)): (publish_stamped, release_checked),
        ("with statement", (bare,)): (publish_with, release_with),
    }
    if hasattr(producer, "claim_many"):

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
    words = tools.cupy.zeros(WORDS, tools.cupy.uint64)
    pointer, found = int(words.data.ptr), {}
    for program, launch in (("cupy", "cupy"), ("cuda-bindings", "driver")):
        kernel = tools.kernel("stamp", launch, pointer, WORDS, 0)
        ns = []
        for lap in range(laps + _WARM_UP):
            start = time.perf_counter_ns()
            for k in range(SLOTS):
                kernel.launch(pointer, k)
            took = time.perf_counter_ns() - start
            tools.stream.synchronize()
            if lap >= _WARM_UP:
                ns.append(took / SLOTS)
        found[program] = ns
    return found


# ---- what one more consumer costs the producer --------------------------------------------------


def _with_consumers(
    settings: Settings, crew: Crew, place: Place, consumers: int, laps: int, blank: Figure
) -> Iterator[Figure]:
    """In one process, so that nobody runs beside the producer; then with live consumers."""
    ns, wrong = crew.call(
        measure_with_consumers, ring_name(), place, consumers, laps, settings.spoil
    )
    expect_right(wrong)
    verified = "two laps of whole frames, each consumer, before the clock"
    yield replace(blank, values=Distribution.of(ns), verified=verified)
    where = {**blank.setting, "loaded": True}
    loaded = replace(blank, setting=where)
    rounds = settings.rounds(1000, 4000)
    yield from attempt(loaded, partial(_loaded, crew, place, consumers, rounds, loaded))


def measure_with_consumers(
    pipe: Pipe, name: str, place: Place, consumers: int, laps: int, spoil: bool
) -> tuple[list[float], int]:
    shape, ns = (FRAME_NBYTES // 8,), []
    with (
        gpuring.create(
            name, slots=SLOTS, shape=shape, dtype="u8", max_subscriptions=64, **place.options
        ) as ring,
        ring.producer() as producer,
    ):
        readers = [ring.consumer() for _ in range(consumers)]
        pattern = pattern_for(ring)
        for lap in range(2 + laps + _WARM_UP):
            whole = lap < 2
            start = time.perf_counter_ns()
            for _ in range(SLOTS):
                slot = producer.claim()
                if whole:
                    pattern.stamp_all(slot)
                    if spoil:
                        pattern.spoil(slot)
                slot.publish()
            took = time.perf_counter_ns() - start
            for reader in readers:
                for _ in range(SLOTS):
                    frame = reader.acquire()
                    if whole:
                        pattern.check_all(frame)
                    frame.release()
            pattern.finish()
            if lap >= 2 + _WARM_UP:
                ns.append(took / SLOTS)
        return ns, pattern.wrong()


def _loaded(
    crew: Crew, place: Place, consumers: int, rounds: int, blank: Figure
) -> Iterator[Figure]:
    """At a pace that the consumers keep up with: no wait is in it, their cache misses are."""
    name = ring_name()
    with crew.start(pace, name, place, rounds) as producer:
        producer.receive()
        readers = [crew.start(follow, name) for _ in range(consumers)]
        try:
            for reader in readers:
                reader.receive()
            producer.send("go")
            ns = producer.receive()
            for reader in readers:
                frames, wrong = reader.result()
                expect_right(wrong)
                if frames != rounds + _WARM_UP:
                    raise Wrong(f"{rounds + _WARM_UP} frames published, {frames} read")
        finally:
            for reader in readers:
                reader.__exit__()
        producer.send("close")
        producer.result()
    verified = f"4 KiB of the first {_WARM_UP} frames; every consumer read every frame"
    yield replace(blank, values=Distribution.of(ns), verified=verified)


def pace(pipe: Pipe, name: str, place: Place, rounds: int) -> None:
    gap_ns = 100_000 if place.on_gpu else 20_000  # short enough for consumers to be awake
    shape, ns = (FRAME_NBYTES // 8,), []
    with gpuring.create(
        name, slots=SLOTS, shape=shape, dtype="u8", max_subscriptions=64, **place.options
    ) as ring:
        with ring.producer() as producer:
            pattern = pattern_for(ring)
            pipe.send("ready")
            pipe.receive()
            clock, claim = time.perf_counter_ns, producer.claim
            for n in range(rounds + _WARM_UP):
                start = clock()
                slot = claim()
                if n < _WARM_UP:
                    pattern.stamp(slot)
                slot.publish()
                done = clock()
                if n >= _WARM_UP:
                    ns.append(done - start)
                while clock() - start < gap_ns:
                    pass
        pipe.send(ns)
        pipe.receive()


def follow(pipe: Pipe, name: str) -> tuple[int, int]:
    with gpuring.attach(name, timeout=30) as ring, ring.consumer() as consumer:
        pattern, frames = pattern_for(ring), 0
        pipe.send("ready")
        for slot in consumer:
            if frames < _WARM_UP:
                pattern.check(slot)
            frames += 1
        return frames, pattern.wrong()

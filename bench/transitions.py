"""What each verb costs its own process, in C and in Python, and what one more consumer adds to it.

"core" is the C core alone; "gpuring" is the Python API (gpuring.cli.bench.handover). Cache misses
between cores show in "producer's host cost" with loaded=True only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import gpuring
from gpuring.cli.bench import handover
from gpuring.cli.bench.handover import GROUP, VERBS, WARM_UP
from gpuring.cli.measure.attempt import Wrong, attempt, expect_right
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import QUANTILES, Distribution, Figure
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import HOST, SLOTS, Place, Settings, create, ring_name


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    if HOST in settings.places:
        yield from _in_c()
    for place in settings.places:
        yield from handover.run(settings, crew, place)
    if settings.gpu_places:
        yield from handover.launches(settings, crew)
    laps = handover.laps(settings)
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
    sources = sorted(package.glob("native/core/*.c"))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or not sources:
        why = "no C compiler" if sources else "the C sources are not installed"
        yield replace(blank, skipped=why)
        return
    with tempfile.TemporaryDirectory() as out:
        program = Path(out, "transitions")
        command = [
            compiler,
            "-std=gnu11",
            "-O2",
            "-pthread",
            f"-I{package / 'native'}",
            "-o",
            str(program),
        ]
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


# ---- what one more consumer costs the producer --------------------------------------------------


def _with_consumers(
    settings: Settings, crew: Crew, place: Place, consumers: int, laps: int, blank: Figure
) -> Iterator[Figure]:
    """Measures first in one process, so that nothing else runs at the same time, and then with live
    consumers."""
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
    ns = []
    with create(name, place, max_subscriptions=64) as ring, ring.producer() as producer:
        readers = [ring.consumer() for _ in range(consumers)]
        pattern = pattern_for(ring)
        for lap in range(2 + laps + WARM_UP):
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
            if lap >= 2 + WARM_UP:
                ns.append(took / SLOTS)
        return ns, pattern.wrong()


def _loaded(
    crew: Crew, place: Place, consumers: int, rounds: int, blank: Figure
) -> Iterator[Figure]:
    """Frames come at a pace that the consumers can keep up with, so the figure contains cache
    misses that they cause, and no waits."""
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
                if frames != rounds + WARM_UP:
                    raise Wrong(f"{rounds + WARM_UP} frames published, {frames} read")
        finally:
            for reader in readers:
                reader.__exit__()
        producer.send("close")
        producer.result()
    verified = f"4 KiB of the first {WARM_UP} frames; every consumer read every frame"
    yield replace(blank, values=Distribution.of(ns), verified=verified)


def pace(pipe: Pipe, name: str, place: Place, rounds: int) -> None:
    gap_ns = 100_000 if place.on_gpu else 20_000  # short enough for consumers to be awake
    ns = []
    with create(name, place, max_subscriptions=64) as ring:
        with ring.producer() as producer:
            pattern = pattern_for(ring)
            pipe.send("ready")
            pipe.receive()
            clock, claim = time.perf_counter_ns, producer.claim
            for n in range(rounds + WARM_UP):
                start = clock()
                slot = claim()
                if n < WARM_UP:
                    pattern.stamp(slot)
                slot.publish()
                done = clock()
                if n >= WARM_UP:
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
            if frames < WARM_UP:
                pattern.check(slot)
            frames += 1
        return frames, pattern.wrong()

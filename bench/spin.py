"""What `spin=` gains and costs if frames come at regular times.

    python -m bench.spin [--rounds 3] [--seconds 4] [--json FILE] [--spoil]

* `age of a frame`: a writer publishes a frame of a host ring at regular times.  This is how old the
  frame is when `acquire` returns it.
* `CPU of the reader`: its share of a core meanwhile.
* `timer, late`: how much later than asked for a sleep with a time-out ends.  It says how long
  before a frame a reader has to be awake.
* `round trip`, `one-way`: over a GPU, if there is one, as in `python -m bench`.

The ways to wait take turns in each round.  `spin` of a setting names them: "default" spins for
50 µs at most, and then a little before an answer that it foresees; the others are values of spin=.
"20 µs" is short and foresees nothing.  It takes about two minutes.  A run with a wrong word has no
result.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import gpuring
from bench import mps, options
from gpuring.cli.bench import latency, why_no_gpu
from gpuring.cli.measure import stored
from gpuring.cli.measure.attempt import expect_right
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure, Value
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import HOST, ON_GPU, Settings, create, remove_rings, ring_name

GROUP = "spin"
WAYS = {"default": None, "20 µs": 20e-6, "2 ms": 0.002, "inf": float("inf")}
"""Values of spin=."""
PERIODS_MS = (0.3, 1.0, 4.0, 16.7)
WARM_UP = 50
"""Frames from which the default learns the rhythm."""
MORE_THAN_P99_NEEDS = 1100
EXACT_NS = 200_000
"""For so long before a frame the writer spins, so that its own timer does not count."""


# ---- the processes ------------------------------------------------------------------------------


def write(pipe: Pipe, name: str, period_ms: float, frames: int, spoil: bool) -> None:
    clock, period_ns = time.monotonic_ns, round(1e6 * period_ms)
    with create(name, HOST) as ring:
        with ring.producer() as producer:
            pattern = pattern_for(ring)
            pipe.send()
            pipe.receive()
            due = clock() + 10_000_000
            for n in range(frames + WARM_UP):
                slot = producer.claim()
                pattern.stamp(slot)
                if spoil and n == 0:
                    pattern.spoil(slot)
                while (left := due + n * period_ns - clock()) > 0:
                    if left > 2 * EXACT_NS:
                        time.sleep((left - EXACT_NS) / 1e9)
                slot.publish()
        pipe.receive()


def read(pipe: Pipe, name: str, spin: float | None) -> tuple[list[float], float, int]:
    """Returns ages in µs, the share of a core in per cent, and how many words were wrong."""
    ages: list[float] = []
    with gpuring.attach(name, timeout=30) as ring, ring.consumer(spin=spin) as consumer:
        pattern, began = pattern_for(ring), (0.0, 0.0)
        pipe.send()
        with contextlib.suppress(gpuring.EndOfStream):
            while True:
                slot = consumer.acquire()
                ages.append((time.monotonic_ns() - slot.time_ns) / 1e3)
                if len(ages) == WARM_UP:
                    began = time.monotonic(), time.process_time()
                pattern.check(slot)
                slot.release()
        wall, cpu = time.monotonic() - began[0], time.process_time() - began[1]
        return ages[WARM_UP:], 100 * cpu / wall, pattern.wrong()


def oversleep(pipe: Pipe, period_ms: float, sleeps: int) -> list[float]:
    """How many µs a sleep takes longer than it should."""
    late, seconds = [], period_ms / 1e3
    for _ in range(sleeps):
        asked = time.monotonic() + seconds
        time.sleep(seconds)
        late.append(1e6 * (time.monotonic() - asked))
    return late


# ---- the run ------------------------------------------------------------------------------------


def frames_at(period_ms: float, seconds: float) -> int:
    """How many frames to take: those that come in the time, but not more than a p99 needs."""
    return max(WARM_UP, min(MORE_THAN_P99_NEEDS, int(1e3 * seconds / period_ms)))


def on_time(
    rounds: int, seconds: float, spoil: bool, periods_ms: tuple[float, ...] = PERIODS_MS
) -> Iterator[Figure]:
    """Frames of a host ring.  Raises Wrong."""
    ages: dict[tuple[float, str], list[float]] = {}
    shares: dict[tuple[float, str], list[float]] = {}
    late: dict[float, list[float]] = {}
    with Crew() as crew:
        for _ in range(rounds):
            for period_ms in periods_ms:
                frames = frames_at(period_ms, seconds)
                for way, spin in WAYS.items():
                    name = ring_name()
                    with crew.start(write, name, period_ms, frames, spoil) as writer:
                        writer.receive()
                        with crew.start(read, name, spin) as reader:
                            reader.receive()
                            writer.send("go")
                            found, share, wrong = reader.result()
                        writer.send("close")
                        writer.result()
                    expect_right(wrong)
                    ages.setdefault((period_ms, way), []).extend(found)
                    shares.setdefault((period_ms, way), []).append(share)
                found = crew.call(oversleep, period_ms, frames)
                late.setdefault(period_ms, []).extend(found)
    verified = "4 KiB of every frame"
    for (period_ms, way), us in ages.items():
        where: dict[str, Value] = {"sync": "host", "period_ms": period_ms, "spin": way}
        percent = Distribution.of(shares[period_ms, way])
        yield Figure(GROUP, "age of a frame", "gpuring", "µs", where, Distribution.of(us), verified)
        yield Figure(GROUP, "CPU of the reader", "gpuring", "% of a core", where, percent, verified)
    for period_ms, us in late.items():
        late_us = Distribution.of(us)
        yield Figure(GROUP, "timer, late", "time.sleep", "µs", {"period_ms": period_ms}, late_us)


def on_gpu(seconds: float, spoil: bool) -> Iterator[Figure]:
    with Crew() as crew:
        if why_not := crew.call(why_no_gpu):
            yield Figure(GROUP, "on a GPU", "gpuring", "", skipped=why_not)
            return
    for on in mps.modes(None):
        for way, seconds_of_spin in WAYS.items():
            with mps.environment(on) as environment:
                spin = {} if seconds_of_spin is None else {"GPURING_SPIN": str(seconds_of_spin)}
                settings = Settings(mps=on, scale=seconds / 4, spoil=spoil)
                with Crew({**environment, **spin}) as crew:
                    for figure in latency.run(settings, crew, ON_GPU[0], kernel=True):
                        where = {**figure.setting, "spin": way}
                        yield replace(figure, group=GROUP, setting=where)


def figures(rounds: int, seconds: float, spoil: bool) -> Iterator[Figure]:
    try:
        yield from on_time(rounds, seconds, spoil)
        yield from on_gpu(seconds, spoil)
    finally:
        remove_rings()


def main() -> int:
    parser = options.parser("python -m bench.spin", __doc__)
    options.add_rounds(parser, 3)
    options.add_seconds(parser, 4)
    options.add_json(parser)
    options.add_spoil(parser)
    args = parser.parse_args()
    os.environ.pop("GPURING_SPIN", None)
    found = figures(args.rounds, args.seconds, args.spoil)
    return stored.run(found, sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)

"""What create, join and hand-over cost with each kind of GPU memory, beside legacy CUDA IPC.

    python -m bench.memory_kinds [--rounds 5] [--json FILE]

The kinds take turns within each round, so that a machine that slows down slows all of them.  Frames
have 1 MiB, of which 4 KiB are written and checked.  It takes less than a minute.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import gpuring
from bench import options
from gpuring.cli.measure import stored
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import SLOTS, remove_rings, ring_name
from gpuring.memory import kinds

GROUP = "memory"
SHAPE = (1 << 17,)
FRAMES = 2000
TURNS = 200
"""Round trips in a round."""
PATIENCE_S = 20.0
UNITS = {
    "create": "ms",
    "join": "ms",
    "frames": "frames/s",
    "round trip": "µs",
}


def make(name: str, kind: str) -> gpuring.Ring:
    return gpuring.create(name, slots=SLOTS, shape=SHAPE, dtype="u8", memory=kind)


# ---- the processes -------------------------------------------------------------------------------


def own(pipe: Pipe, name: str, kind: str) -> dict[str, float]:
    """Creates a ring and another one for answers, and measures with its partner."""
    figures = {}
    begun = time.perf_counter()
    ring = make(name, kind)
    figures["create"] = 1e3 * (time.perf_counter() - begun)
    with ring, make(f"{name}.back", kind) as back, ring.producer() as producer:
        pattern, answer = pattern_for(ring, "cupy"), pattern_for(back, "cupy")
        with back.consumer() as answers:
            pipe.send()
            pipe.receive()  # the partner has joined both
            begun = time.perf_counter()
            for _ in range(FRAMES):
                with producer.claim(PATIENCE_S) as slot:
                    pattern.stamp(slot)
            with answers.acquire(PATIENCE_S):  # it has read all of them
                figures["frames"] = FRAMES / (time.perf_counter() - begun)
            begun = time.perf_counter()
            for _ in range(TURNS):
                with producer.claim(PATIENCE_S) as slot:
                    pattern.stamp(slot)
                with answers.acquire(PATIENCE_S) as slot:
                    answer.check(slot)
            answer.finish()
            figures["round trip"] = 1e6 * (time.perf_counter() - begun) / TURNS
        pipe.send()
        pipe.receive()  # the partner has left both
        if answer.wrong():
            raise RuntimeError(f"{answer.wrong()} words were wrong")
    return figures


def join(pipe: Pipe, name: str) -> float:
    """Reads what comes and answers.  Returns how many milliseconds the join took."""
    with gpuring.attach(f"{name}.back") as back, back.producer() as answers:
        answer = pattern_for(back, "cupy")  # makes the context, which is no cost of the ring
        begun = time.perf_counter()
        ring = gpuring.attach(name)
        frames = ring.consumer()
        took = 1e3 * (time.perf_counter() - begun)
        with ring, frames:
            pattern = pattern_for(ring, "cupy")
            pipe.send()
            for _ in range(FRAMES):
                with frames.acquire(PATIENCE_S) as slot:
                    pattern.check(slot)
            pattern.finish()
            answers.claim(PATIENCE_S).publish()
            for _ in range(TURNS):
                with frames.acquire(PATIENCE_S) as slot:
                    pattern.check(slot)
                with answers.claim(PATIENCE_S) as slot:
                    answer.stamp(slot)
            answer.finish()
        if pattern.wrong():
            raise RuntimeError(f"{pattern.wrong()} words were wrong")
    return took


# ---- the run -------------------------------------------------------------------------------------


def measure(crew: Crew, kind: str) -> dict[str, float]:
    name = ring_name()
    with crew.start(own, name, kind) as owner:
        owner.receive()
        with crew.start(join, name) as partner:
            partner.receive()
            owner.send()
            owner.receive()
            joined_ms: float = partner.result()
        owner.send()
        figures: dict[str, float] = owner.result()
    return figures | {"join": joined_ms}


def figures(rounds: int) -> Iterator[Figure]:
    found: dict[str, dict[str, list[float]]] = {}
    with Crew() as crew, contextlib.ExitStack() as stack:
        stack.callback(remove_rings)
        able = []
        for kind in kinds.ON_GPU:
            is_able, reason = kinds.supported(kind, 0)
            if is_able:
                able.append(kind)
            else:
                yield Figure(GROUP, "all", kind, "", skipped=reason)
        for kind in able * (rounds + 1):
            for what, value in measure(crew, kind).items():
                found.setdefault(what, {}).setdefault(kind, []).append(value)
    for what, unit in UNITS.items():
        for kind, values in found.get(what, {}).items():
            kept = Distribution.of(values[1:])  # the first round warms up
            yield Figure(GROUP, what, kind, unit, values=kept, verified="4 KiB of every frame")


def main() -> int:
    parser = options.parser("python -m bench.memory_kinds", __doc__)
    options.add_rounds(parser, 5)
    options.add_json(parser)
    args = parser.parse_args()
    return stored.run(figures(args.rounds), sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)

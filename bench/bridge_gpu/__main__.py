"""Names the parts of this benchmark, runs them, and writes their figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench import bridge_gpu, options
from bench.bridge_gpu.alone import engine
from bench.bridge_gpu.facts import facts, gpus_here
from bench.bridge_gpu.floors import copy
from bench.bridge_gpu.frames import Memory
from bench.bridge_gpu.whole import FAULTS, carried, in_turns
from gpuring.cli.measure import stored
from gpuring.cli.measure.card import machine_card
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.settings import remove_rings
from gpuring.cli.options import count

KILLS = 4
ON_HOST: tuple[Memory, ...] = ("auto",)
ON_GPU: tuple[Memory, ...] = ("ipc", "vmm", "pool")
LIMIT_S = 100.0
"""No part begins later than this."""


def parts(
    crew: Crew, places: list[str], seconds: float, slots: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The names of the parts, the most important first, and the functions that measure them."""
    pairs = [(places[0], places[0])]
    if len(places) > 1:
        pairs.insert(0, (places[0], places[1]))
    for near, far in pairs:
        yield f"copy, {near} → {far}", partial(crew.call, copy, near, far, seconds / 4)
    for near, far in pairs:
        for kind in ON_HOST if near == "host" else ON_GPU:
            measure = partial(carried, crew, near, far, "nixl", seconds, memory=kind, slots=slots)
            yield f"bridge, {near} → {far}, nixl, {kind}", measure
    near, far = pairs[0]
    for name in ("auto", "zmq"):
        measure = partial(carried, crew, near, far, name, seconds, kills=KILLS)
        yield f"kills, {near} → {far}, {name}", measure
    turns = partial(in_turns, crew, near, far, seconds)
    yield f"bridge, {near} → {far}, zmq, beside raw sockets", turns
    for near, far in pairs:
        for which, imported in (("its own", False), ("imported", True)):
            measure = partial(engine, crew, near, far, imported, seconds / 2)
            yield f"nixl alone, {near} → {far}, far memory {which}", measure


def beside_a_copy(name: str, found: dict[str, Any]) -> None:
    """Adds to a part the ratio of its speed to that of a plain copy between the same memories."""
    _, way, *_ = (*name.split(", "), "")
    plain, mine = found.get(f"copy, {way}", {}).get("GB/s"), found[name]
    if plain and "GB/s" in mine and not name.startswith("copy"):
        mine["of a plain copy"] = round(mine["GB/s"] / plain, 3)


def main() -> int:
    parser = options.parser("python -m bench.bridge_gpu", bridge_gpu.__doc__)
    options.add_json(parser, "where all of it goes, with the machine card")
    parser.add_argument("--host", action="store_true", help="use host memory instead of GPUs")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="run only parts with this in their names"
    )
    parser.add_argument("--slots", type=count, default=0, help="slots of each ring with NIXL")
    options.add_seconds(parser, 2.0)
    args = parser.parse_args()
    begun = time.perf_counter()
    found: dict[str, Any] = {}
    with Crew() as crew:
        gpus = 0 if args.host else crew.call(gpus_here)
        places = [f"cuda:{gpu}" for gpu in range(min(gpus, 2))] or ["host"]
        found["facts"] = crew.call(facts, gpus)
        for name, measure in parts(crew, places, args.seconds, args.slots):
            if args.only not in name:
                continue
            late = time.perf_counter() - begun > LIMIT_S
            try:
                found[name] = {"skipped": "no time is left"} if late else measure()
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
                remove_rings()
            beside_a_copy(name, found)
            print(f"{time.perf_counter() - begun:5.1f} s  {name}: {found[name]}", flush=True)
            if args.json is not None:  # after each part, in case the run is ended
                stored.write(args.json, {"machine": machine_card()} | found)
    failed = [name for name, figures in found.items() if "failed" in figures]
    wrong = [n for n, f in found.items() if any(f.get(k) for k in FAULTS)]
    print(f"{len(failed)} parts failed: {failed}" if failed else "no part failed")
    print(f"wrong frames in: {wrong}" if wrong else "every frame was right")
    return 1 if wrong else 0


if __name__ == "__main__":
    options.run(main)

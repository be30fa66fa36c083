"""What a bridge costs, compared with other ways to carry a ring to another process over
loopback."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench import options
from bench.bridge import table
from bench.bridge.carriers import CARRIERS, OWN_COST, Carrier
from bench.bridge.measure import Taken, carried, idle_percent
from bench.bridge.producers import producers
from bench.bridge.recovery import recovery
from gpuring.cli.measure import stored
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew, RoleFailed
from gpuring.cli.measure.figures import VERIFICATION_FAILED, Distribution, Figure
from gpuring.cli.measure.settings import remove_rings

KIB, MIB = 1 << 10, 1 << 20
SIZES = {64 * KIB: 0.005, MIB: 0.01, 6 * MIB: 0.02, 64 * MIB: 0.15}
"""Bytes of a frame, and the seconds between two frames that come at a leisurely pace."""
PARTS = ("sizes", "far", "idle", "producers", "recovery")
SLOTS = 16
FAR_MS = 5
"""How long everything takes on its way, in one direction, where the two sides are far apart."""
FAR_SLOTS = (SLOTS, 4 * SLOTS)
"""At most half of the far ring's slots are on their way, so a long link takes more of them."""
PACED, PACED_S = 1100, 25
"""How many frames come at a leisurely pace, in all rounds: enough for a p99, unless it takes longer
than so many seconds."""
VERIFIED = "each word of the first 24 frames, then two words of each frame"


def figures(args: argparse.Namespace) -> Iterator[Figure]:
    chosen = [carrier for carrier in CARRIERS if not args.only or carrier.name in args.only]
    missing = {carrier.name: carrier.missing for carrier in chosen if carrier.missing}
    for name, why in missing.items():
        yield Figure("bridge", "all", name, "", skipped=why)
    there = [carrier for carrier in chosen if carrier.name not in missing]
    sizes = dict(itertools.islice(SIZES.items(), 1)) if args.quick else SIZES
    parts = ["sizes"] if args.quick else args.parts
    try:
        with Crew() as crew:
            for nbytes in sizes if "sizes" in parts else ():
                yield from _size(args, there, crew, nbytes)
            for slots in FAR_SLOTS if "far" in parts else ():
                yield from _size(args, there, crew, MIB, FAR_MS, slots)
            for carrier in there:
                if carrier.engine and "idle" in parts:
                    yield from _idle(carrier, crew, 5)
                if carrier.engine and "producers" in parts:
                    yield from producers(carrier, crew, args.rounds, args.seconds)
                if carrier.engine and "recovery" in parts:
                    yield from recovery(carrier, crew, 3)
    finally:
        remove_rings()


def _size(
    args: argparse.Namespace,
    carriers: list[Carrier],
    crew: Crew,
    nbytes: int,
    delay_ms: float = 0,
    slots: int = SLOTS,
) -> Iterator[Figure]:
    """Measures all carriers in turns, so that other load of the machine disturbs all of them."""
    paced = 20 if args.quick else -(-min(PACED, round(PACED_S / SIZES[nbytes])) // args.rounds)
    link = {"round trip, ms": 2 * delay_ms, "slots": slots} if delay_ms else {}
    setting = {"nbytes": nbytes, **link}
    rounds: list[dict[str, Taken]] = []
    failed: dict[str, str] = {}
    for _ in range(args.rounds):
        rounds.append({})
        for carrier in carriers:
            if carrier.name in failed:
                continue
            try:
                with carried(carrier, crew, nbytes, slots, delay_ms) as between:
                    taken = between.measure(args.seconds, SIZES[nbytes], paced, 24)
                rounds[-1][carrier.name] = taken
            except Wrong as wrong:
                failed[carrier.name] = f"{VERIFICATION_FAILED}: {wrong}"
            except RoleFailed as role:
                failed[carrier.name] = role.last_line
    for carrier in carriers:
        blank = Figure("bridge", "all", carrier.name, "", setting)
        if carrier.name in failed:
            yield replace(blank, skipped=failed[carrier.name])
        else:
            yield from _of_one(replace(blank, verified=VERIFIED), nbytes, rounds)


def _of_one(blank: Figure, nbytes: int, rounds: list[dict[str, Taken]]) -> Iterator[Figure]:
    mine = [each[blank.program] for each in rounds]

    def figure(name: str, unit: str, values: list[float]) -> Figure:
        return replace(blank, name=name, unit=unit, values=Distribution.of(values))

    yield figure("throughput", "GB/s", [nbytes * taken.gb_s for taken in mine])
    yield figure("CPU near", "µs/frame", [1e6 * taken.near_s for taken in mine])
    yield figure("CPU far", "µs/frame", [1e6 * taken.far_s for taken in mine])
    for name in ("paced", "saturated"):
        times = [1e6 * s for taken in mine for s in getattr(taken, f"{name}_s")]
        yield figure(f"one way, {name}", "µs", times)
    own = OWN_COST.get(blank.program, "")
    if all(own in each for each in rounds):
        pairs = [(each[blank.program], each[own]) for each in rounds]
        cpu = [(ours.near_s + ours.far_s) / (bare.near_s + bare.far_s) for ours, bare in pairs]
        yield figure("CPU beside its engine alone", "×", cpu)
        rate = [ours.gb_s / bare.gb_s for ours, bare in pairs]
        yield figure("frames/s beside its engine alone", "×", rate)


def _idle(carrier: Carrier, crew: Crew, seconds: float) -> Iterator[Figure]:
    used = idle_percent(carrier, crew, seconds)
    for side, percent in zip(("near", "far"), used, strict=True):
        values = Distribution.of([percent])
        yield Figure("bridge", f"idle, {side}", carrier.name, "% of a core", values=values)


def main(argv: Sequence[str] | None = None) -> int:
    asked = sys.argv[1:] if argv is None else argv
    parser = options.parser("python -m bench.bridge", __doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest frames only")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    options.add_rounds(parser, 3)
    options.add_seconds(parser, 1.5)
    options.add_only(parser, (each.name for each in CARRIERS), "CARRIER")
    options.add_json(parser)
    options.add_from(parser, "print the table of this run")
    args = parser.parse_args(asked)
    if args.stored:
        print(table.text(stored.load(args.stored).figures))
        return 0
    run = stored.run(figures(args), asked, args.json)
    print("", table.text(run.figures), f"{run.seconds:.0f} s", sep="\n")
    return run.status


if __name__ == "__main__":
    options.run(main)

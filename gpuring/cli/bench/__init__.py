"""Measure what this ring costs on this machine, in well under a minute.

Frames are checked first.  If a single word is wrong, nothing is reported.  Each figure is compared
with a baseline: the simplest hand-over between two processes on this machine.  The source tree has
benchmarks of other libraries and of many more settings: python -m bench.
"""

# latency, throughput, handover and wakeup measure a ring, and baselines what it is compared with.
# summary is what is printed.  bench/ uses all of them, too.  cli/measure has what they stand on.

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..measure.options import add_device, add_from, add_json, add_spoil
from ..trouble import CommandError

if TYPE_CHECKING:
    from ..measure.crew import Pipe
    from ..measure.figures import Figure
    from ..measure.settings import Place


THROUGHPUT_S = 1.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_json(parser)
    add_from(parser, "print the summary of an earlier --json FILE instead of measuring")
    add_spoil(parser)


def run(args: argparse.Namespace) -> int:
    """0: everything that was measured was verified.  1: wrong data crossed somewhere."""
    from ..measure import stored
    from . import summary

    if args.stored:
        if args.json or args.spoil or args.device != "auto":
            raise ValueError("--from measures nothing, and takes no --json, --spoil or --device")
        done = stored.load(args.stored)
    else:
        if args.json:
            stored.must_be_writable(args.json, "--json")
        done = stored.measured(measure(args.device, spoil=args.spoil), sys.argv[1:], _progress)
        _progress(None)
        if args.json:
            done.save(args.json)
    print(summary.text(done))
    return done.status


def _progress(figure: Figure | None) -> None:
    """On a terminal, one line that names what was measured last; None: it is erased."""
    if sys.stderr.isatty():
        said = f"measured {figure.name}, {figure.program}" if figure else ""
        print(f"\r\033[K{said}", end="", file=sys.stderr, flush=True)


def measure(device: str, *, spoil: bool = False, scale: float = 1.0) -> Iterator[Figure]:
    """Every figure, as it comes.  This process itself never touches CUDA.

    scale: of all durations and counts.
    """
    from ..measure import mps
    from ..measure.crew import Crew
    from ..measure.figures import Figure
    from ..measure.settings import HOST, Settings, remove_rings
    from . import baselines, handover, latency, throughput, wakeup

    try:
        with Crew() as crew:
            places = [HOST] if device != "cuda" else []
            if device != "host":
                why_not = crew.call(why_no_gpu)
                if not why_not:
                    places.append(crew.call(default_place))
                elif device == "cuda":
                    raise CommandError(f"--device cuda: {why_not}")
                else:
                    yield Figure("latency", "on a GPU", "gpuring", "", skipped=why_not)
            for place in places:
                settings = Settings(
                    quick=True, places=(place,), mps=mps.reachable(), spoil=spoil, scale=scale
                )
                seconds = THROUGHPUT_S * scale
                loads = [
                    throughput.Load(place, kernel, seconds=seconds, spoil=spoil)
                    for kernel in (False, True)
                ]
                for kernel in (False, True) if not place.on_gpu else (True,):
                    yield from latency.run(settings, crew, place, kernel=kernel, names=("one-way",))
                yield from throughput.run(settings, crew, loads)
                yield from handover.run(settings, crew, place)
                if place.on_gpu:
                    yield from handover.launches(settings, crew)
                else:
                    yield from wakeup.run(settings, crew)
                yield from baselines.run(settings, crew, place, seconds)
    finally:
        remove_rings()


# ---- for workers --------------------------------------------------------------------------------


def why_no_gpu(pipe: Pipe) -> str:
    """Empty if rings and kernels work on a GPU here."""
    from gpuring.memory import cuda

    from ..measure.kernels import cuda_tools

    usable, reason = cuda.available()
    if not usable:
        return re.split(r"; (?:or )?use device=", reason)[0]  # which is no option of a command
    try:
        cuda_tools()
    except Exception as error:  # CuPy without NVRTC has many ways to say so
        return f"kernels cannot be compiled: {str(error).splitlines()[0]}"
    return ""


def default_place(pipe: Pipe) -> Place:
    """What create(device="cuda") chooses here."""
    import gpuring

    from ..measure.settings import Place, ring_name

    with gpuring.create(ring_name(), slots=1, shape=8, dtype="u8", device="cuda") as ring:
        return Place(ring.sync, ring.gate)

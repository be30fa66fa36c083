"""What a hand-over costs, measured on this machine and verified before it is timed: transitions,
throughput, latency, waiting, recovery, beside the leanest possible ring (the floor) and what people
use today (peers).  Writes JSON and a self-contained report.html.
"""

# figures   what is reported            settings   where and how long
# crew      the worker processes        patterns   frames that can be verified
# attempt   failures leave a figure     mps        CUDA's Multi-Process Service for a run
# report    JSON to html                targets    what the figures are held to
# The others measure; each has run(settings, crew) and yields figures.

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .crew import Crew, Pipe
    from .figures import Figure
    from .settings import Settings

OURS = ("transitions", "throughput", "latency", "waiting", "recovery")
GROUPS = (*OURS, "floor", "peers")
ONLY_ON_GPU = ("floor",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's options."""
    parser.add_argument("--quick", action="store_true", help="about a minute instead of eight")
    parser.add_argument(
        "--peers", action="store_true", help="also torch queues and what else is installed"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("gpuring-bench"),
        metavar="DIR",
        help="where report.html and bench.json go (default: gpuring-bench)",
    )
    parser.add_argument(
        "--only", nargs="+", choices=GROUPS, metavar="GROUP", help=f"of {', '.join(GROUPS)}"
    )
    parser.add_argument(
        "--memory",
        choices=("auto", "cuda", "host"),
        default="auto",
        help="auto: the host, and a GPU where one is usable",
    )
    parser.add_argument(
        "--mps",
        choices=("off", "on", "both"),
        help="whether processes share the GPU through CUDA MPS (default: both where that can be "
        "had; --quick: as the environment has it)",
    )
    parser.add_argument(
        "--from", dest="stored", type=Path, metavar="FILE", help="no run: a report of this JSON"
    )
    parser.add_argument(
        "--spoil", action="store_true", help="damage frames on purpose: the run must fail"
    )


def run(args: argparse.Namespace) -> int:
    """0: everything that was measured was verified.  1: wrong data crossed somewhere."""
    from . import report
    from .figures import Figure

    stored, status = (json.loads(args.stored.read_text()), 0) if args.stored else _measured(args)
    figures = [Figure.from_json(each) for each in stored["figures"]]
    args.report.mkdir(parents=True, exist_ok=True)
    source = args.stored or args.report / "bench.json"
    if not args.stored:
        source.write_text(json.dumps(stored, indent=1) + "\n")
    page = args.report / "report.html"
    page.write_text(report.html(stored["machine"], figures, stored["seconds"]))
    print(report.verdict(figures))
    print(f"{stored['seconds']:.0f} s; {page}, {source}")
    failed = [figure for figure in figures if figure.failed]
    for figure in failed:
        print(f"gpuring bench: {report.line(figure)}", file=sys.stderr)
    return status or (1 if failed else 0)


def _measured(args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """For the JSON, and the exit status; after Ctrl-C or SIGTERM, what there was until then."""
    from ..demo.signals import terminable
    from . import report
    from .card import machine_card

    started, figures, status = time.monotonic(), [], 0
    card = {**machine_card(), "asked for": " ".join(sys.argv[1:])}
    try:
        with terminable():
            for figure in measure(args):
                figures.append(figure.as_json())
                print(report.line(figure), flush=True)
    except KeyboardInterrupt:
        status, card["interrupted"] = 130, True
    seconds = round(time.monotonic() - started, 1)
    return {"machine": card, "seconds": seconds, "figures": figures}, status


def measure(args: argparse.Namespace, scale: float = 1.0) -> Iterator[Figure]:
    """Every figure of a run, as it comes.  This process itself never touches CUDA, so that each
    part can have MPS off or on."""
    from . import mps, settings
    from .crew import Crew
    from .figures import Figure

    groups = args.only or [group for group in GROUPS if group != "peers" or args.peers]
    host = (settings.HOST,) if args.memory != "cuda" else ()
    base = settings.Settings(quick=args.quick, spoil=args.spoil, scale=scale)
    try:
        why_not = "not asked for (--memory host)"
        if args.memory != "host":
            with Crew() as crew:
                why_not = crew.call(why_no_gpu)
        if why_not:
            if args.memory == "cuda":
                raise ValueError(f"--memory cuda: {why_not}")
            for group in groups:
                yield Figure(group, "on a GPU", "gpuring", "", skipped=why_not)
            with Crew() as crew:
                ours = [group for group in groups if group not in ONLY_ON_GPU]
                yield from _groups(ours, replace(base, places=host), crew)
            return
        running = mps.reachable()
        modes = _modes(args.mps, running, args.quick)
        for number, mode in enumerate(modes):
            places = (*(host if number == 0 else ()), *settings.ON_GPU)
            with ExitStack() as stack:
                environment = {}
                if mode and not running:
                    try:
                        environment = stack.enter_context(mps.daemon())
                    except mps.NoMps as error:
                        yield Figure("latency", "with MPS", "gpuring", "", skipped=str(error))
                        continue
                elif running and not mode:
                    environment = mps.without()
                part = replace(base, places=places, mps=mode, environment=environment)
                if not mode:
                    yield from _groups(groups, part, stack.enter_context(Crew(environment)))
                    continue
                for group in groups:  # under MPS one failure may make every worker useless
                    with Crew(environment) as crew:
                        yield from _groups([group], part, crew)
    finally:
        settings.remove_rings()


def _modes(asked: str | None, running: bool, quick: bool) -> tuple[bool, ...]:
    from . import mps

    if asked is None:
        asked = "on" if running else "both" if mps.installed() and not quick else "off"
    return {"off": (False,), "on": (True,), "both": (False, True)}[asked]


def _groups(groups: list[str], settings: Settings, crew: Crew) -> Iterator[Figure]:
    from .figures import Figure

    for group in groups:
        name = f"{__name__}.{group}"
        if importlib.util.find_spec(name) is None:
            yield Figure(group, "all", group, "", skipped="not part of this installation")
            continue
        try:
            yield from importlib.import_module(name).run(settings, crew)
        except Exception as error:  # a peer's missing library, say: the others go on
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Figure(group, "all", group, "", skipped=why)


def why_no_gpu(pipe: Pipe) -> str:
    """Empty if rings and kernels work on a GPU here.  For a worker."""
    from gpuring.memory import cuda_ipc

    from .patterns import cuda_tools

    usable, reason = cuda_ipc.available()
    if not usable:
        return reason
    try:
        cuda_tools()
    except Exception as error:  # CuPy without NVRTC has many ways to say so
        return f"kernels cannot be compiled: {str(error).splitlines()[0]}"
    return ""

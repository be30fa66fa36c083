"""Measures all figures of a run: on the host, then on a GPU with MPS off and on."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from bench import mps
from gpuring.cli.bench import why_no_gpu
from gpuring.cli.measure import settings
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.settings import Settings
from gpuring.cli.trouble import CommandError

OURS = ("transitions", "throughput", "latency", "waiting", "recovery")
GROUPS = (*OURS, "baselines", "floor", "rivals")
ONLY_ON_GPU = ("floor",)


def measure(args: argparse.Namespace, scale: float = 1.0) -> Iterator[Figure]:
    """Every figure of a run, as it comes.  This process itself never touches CUDA, so that each
    part can have MPS off or on."""
    groups = args.only or [group for group in GROUPS if group != "rivals" or args.rivals]
    host = (settings.HOST,) if args.device != "cuda" else ()
    base = Settings(quick=args.quick, spoil=args.spoil, scale=scale)
    try:
        why_not = ""
        if args.device != "host":
            with Crew() as crew:
                why_not = crew.call(why_no_gpu)
        if why_not:
            if args.device == "cuda":
                raise CommandError(f"--device cuda: {why_not}")
            for group in groups:
                yield Figure(group, "on a GPU", "gpuring", "", skipped=why_not)
        if why_not or args.device == "host":
            with Crew() as crew:
                ours = [group for group in groups if group not in ONLY_ON_GPU]
                yield from _groups(ours, replace(base, places=host), crew)
            return
        for number, mode in enumerate(mps.modes(args.mps, both=not args.quick)):
            places = (*(host if number == 0 else ()), *settings.ON_GPU)
            with ExitStack() as stack:
                try:
                    environment = stack.enter_context(mps.environment(mode))
                except mps.NoMps as error:
                    yield Figure("latency", "with MPS", "gpuring", "", skipped=str(error))
                    continue
                part = replace(base, places=places, mps=mode, environment=environment)
                if not mode:
                    yield from _groups(groups, part, stack.enter_context(Crew(environment)))
                    continue
                for group in groups:  # under MPS one failure may make every worker useless
                    with Crew(environment) as crew:
                        yield from _groups([group], part, crew)
    finally:
        settings.remove_rings()


def _groups(groups: list[str], settings: Settings, crew: Crew) -> Iterator[Figure]:
    for group in groups:
        try:
            yield from importlib.import_module(f"bench.{group}").run(settings, crew)
        except Exception as error:  # for example, a rival's library is missing.  The others go on.
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Figure(group, "all", group, "", skipped=why)

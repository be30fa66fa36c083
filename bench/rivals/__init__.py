"""Others who hand frames between processes, each used as its own documentation recommends.

`work` is what is done with each frame, the same for everybody. `rival` is what a rival brings.
`pair` runs the two processes, each of them a `player`. `measure` verifies a rival, then measures
it. The other modules are the rivals, one per family; they say where the recommendation stands and
what the rival lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.rivals import cuda_core, host, indices, pinned, torch_queue
from bench.rivals.measure import measure
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.stored import Run

RIVALS = (*torch_queue.RIVALS, *cuda_core.RIVALS, *indices.RIVALS, *pinned.RIVALS, *host.RIVALS)


def run(settings: Any, crew: Crew) -> Iterator[Figure]:
    """Yields the figures of all rivals, those of the GPU first.

    settings.quick: shorter runs.  settings.mps: whether the Multi-Process Service is on; then those
    in host memory, which it does not concern, are left to the run without it.  A rival that is not
    installed, fails or delivers wrong data gives one figure without values that says so.
    """
    for rival in RIVALS:
        if rival.memory == "cuda" or not getattr(settings, "mps", False):
            yield from measure(rival, settings, crew)


ENVIRONMENT_SINCE = "2026-11-22T12"
"""Runs that began before this gave rivals that inherit their lanes no environment, so they had no
MPS when the ring had it."""


def sound(run: Run) -> Run:
    """Returns the run without figures that are known to be wrong."""
    if str(run.machine.get("date", ENVIRONMENT_SINCE)) >= ENVIRONMENT_SINCE:
        return run
    wrong = {rival.name for rival in RIVALS if rival.inherits}
    figures = [
        replace(f, values=None, skipped="it ran without MPS, by a mistake of the benchmark")
        if f.program in wrong and f.setting.get("mps") is True
        else f
        for f in run.figures
    ]
    return replace(run, figures=figures)

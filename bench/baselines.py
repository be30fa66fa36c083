"""The baselines in Python (gpuring.cli.bench.baselines); floor has the one in C for GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gpuring.cli.bench import baselines
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.settings import Settings


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    for place in settings.one_per_sync:
        yield from baselines.run(settings, crew, place, settings.seconds(0.6, 1.2))

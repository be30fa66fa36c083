"""Frames per second against frame size, slots, consumers, members and producers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuring.cli.bench import throughput
from gpuring.cli.bench.throughput import Load
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.settings import HOST, Settings

NBYTES = tuple(1 << k for k in (12, 16, 20, 24, 27, 30))
HOST_NBYTES_MAX = 1 << 24
"""Larger frames take seconds of page faults, which have nothing to do with the ring."""


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    yield from throughput.run(settings, crew, loads(settings))


def loads(settings: Settings) -> Iterator[Load]:
    quick = settings.quick
    timing = throughput.timing(settings)
    for place in settings.places:
        for kernel in (False, True):
            yield Load(place, kernel, **timing)
    for place in settings.one_per_sync:
        base = Load(place, **timing)
        for nbytes in (NBYTES[0], NBYTES[2], NBYTES[-1]) if quick else NBYTES:
            if place.on_gpu or nbytes <= HOST_NBYTES_MAX:
                yield replace(base, nbytes=nbytes)
            if place.on_gpu:  # a kernel finds its words more slowly the more memory is in turn
                yield replace(base, nbytes=nbytes, kernel=False)
        for slots in (1, 8, 32) if quick else (1, 2, 4, 8, 16, 32, 64):
            yield replace(base, slots=slots)
        for consumers in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
            yield replace(base, consumers=consumers)
            if consumers != 1 or not quick:
                yield replace(base, consumers=consumers, lossless=False)
        for n in (2,) if quick else (2, 4, 8):
            yield replace(base, members=n)
            yield replace(base, producers=n)
    if HOST in settings.places:  # on a host, where a size costs only the copy into the frame
        for nbytes in NBYTES[2 : 3 if quick else 4]:
            yield Load(HOST, kernel=False, nbytes=nbytes, **timing)

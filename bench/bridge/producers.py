"""What a bridge costs those who produce the frames: the time from a claim until the frame is
published, with a bridge beside no bridge.

Frames of 64 KiB come every 2 ms.  Nobody reads the near ring but the bridge, and nobody the far
one.  Producers of a ring with a lossy bridge must never wait for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np

import gpuring
from bench.bridge import ends
from bench.bridge.carriers import Carrier
from bench.bridge.measure import free_port, running
from gpuring.cli.bench.attempt import Wrong
from gpuring.cli.bench.crew import Crew
from gpuring.cli.bench.figures import Distribution, Figure
from gpuring.cli.bench.settings import ring_name

NBYTES, SLOTS, EVERY_S = 1 << 16, 16, 0.002
WAYS = {"no bridge": None, "a bridge": (), "a lossy bridge": ("--lossy",)}
"""Beside what the producer works: the options of the importer."""


def producers(carrier: Carrier, crew: Crew, rounds: int, seconds: float) -> Iterator[Figure]:
    """The ways in turns."""
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    lost = dict.fromkeys(WAYS, 0)
    for _ in range(rounds):
        for way, options in WAYS.items():
            times, passed = _once(carrier, crew, seconds, options)
            took[way] += times
            lost[way] += passed
    for way, options in WAYS.items():
        yield Figure(
            "bridge", "claim to publish", carrier.name, "µs", {"beside": way},
            Distribution.of(1e6 * np.array(took[way])),
            "" if options is None else f"the last frame has come, and {lost[way]} were lost",
        )  # fmt: skip


def _once(
    carrier: Carrier, crew: Crew, seconds: float, options: tuple[str, ...] | None
) -> tuple[list[float], int]:
    """The times of the producer in seconds, and how many of its frames were lost."""
    near, far, port = ring_name(), ring_name(), free_port()
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(crew.start(ends.produce, near, NBYTES, SLOTS))
        producer.receive()
        if options is not None:
            stack.enter_context(running(carrier.near(near, port)))
            stack.enter_context(running([*carrier.far(far, port, near, SLOTS), *options]))
            there = stack.enter_context(gpuring.attach(far, timeout=ends.PATIENCE_S))
        producer.send(("alone" if options is None else "timed", seconds, EVERY_S))
        sent, took_ns = producer.receive()
        lost = 0 if options is None else _lost(there, sent)
        producer.send(None)
        producer.result()
    return [ns / 1e9 for ns in took_ns], lost


def _lost(there: gpuring.Ring, sent: int) -> int:
    """How many of the frames were lost, when the last one has come.  Nothing takes its place."""
    last = 2 * SLOTS + sent - 1  # ends.create has filled each slot of the near ring once
    patience = time.monotonic() + ends.PATIENCE_S
    while (link := there.stats().link) is None or link.seq < last:
        if time.monotonic() > patience:
            raise Wrong("the last frame has not come")
        time.sleep(0.01)
    return link.lost

"""What a bridge costs those who produce the frames, beside no reader and a lossy reader that is on
the same host: the time from a claim until the frame is published, and the frames a second.

Frames of 64 KiB come every 2 ms, and then one behind the other.  Nobody else reads the near ring,
and nobody the far one.  Producers of a ring with a lossy bridge must never wait for it.
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
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.settings import ring_name

NBYTES, SLOTS, EVERY_S = 1 << 16, 16, 0.002
LOSSLESS, LOSSY = "a bridge", "a lossy bridge"
BRIDGES: dict[str, tuple[str, ...]] = {LOSSLESS: (), LOSSY: ("--lossy",)}
"""The options of the importer."""
READER = "a lossy reader"
WAYS = ("no reader", READER, LOSSLESS, LOSSY)
"""Beside what the producer works."""


def producers(carrier: Carrier, crew: Crew, rounds: int, seconds: float) -> Iterator[Figure]:
    """Measures the ways in turns.  A lossless bridge has no figure at full speed, because there the
    producer waits for the bridge."""
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    lost = dict.fromkeys(WAYS, 0)
    rates: dict[str, list[float]] = {way: [] for way in WAYS if way != LOSSLESS}
    for _ in range(rounds):
        for way in WAYS:
            times, passed = _once(carrier, crew, seconds, way, EVERY_S)
            took[way] += times
            lost[way] += passed
        for way, found in rates.items():
            times, _ = _once(carrier, crew, seconds, way, 0)
            found.append(len(times) / seconds)
    for way in WAYS:
        yield Figure(
            "bridge", "claim to publish", carrier.name, "µs", {"beside": way},
            Distribution.of(1e6 * np.array(took[way])),
            f"the last frame has come, and {lost[way]} were lost" if way in BRIDGES else "",
        )  # fmt: skip
    for way, found in rates.items():
        yield Figure(
            "bridge", "producer at full speed", carrier.name, "frames/s", {"beside": way},
            Distribution.of(found),
        )  # fmt: skip


def _once(
    carrier: Carrier, crew: Crew, seconds: float, way: str, every_s: float
) -> tuple[list[float], int]:
    """The times of the producer in seconds, and how many of its frames a bridge has lost."""
    near, far, port = ring_name(), ring_name(), free_port()
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(crew.start(ends.produce, near, NBYTES, SLOTS))
        producer.receive()
        if way in BRIDGES:
            stack.enter_context(running(carrier.near(near, port)))
            stack.enter_context(running([*carrier.far(far, port, near, SLOTS), *BRIDGES[way]]))
            there = stack.enter_context(gpuring.attach(far, timeout=ends.PATIENCE_S))
        elif way == READER:
            reader = stack.enter_context(crew.start(ends.read_lossy, near))
        producer.send(("timed" if way in (*BRIDGES, READER) else "alone", seconds, every_s))
        sent, took_ns = producer.receive()
        lost = _lost(there, sent) if way in BRIDGES else 0
        producer.send(None)
        producer.result()
        if way == READER:
            reader.result()
    return [ns / 1e9 for ns in took_ns], lost


def _lost(there: gpuring.Ring, sent: int) -> int:
    """How many frames were lost.  Waits until the last one has come, which no later one
    replaces."""
    last = 2 * SLOTS + sent - 1  # ends.create has filled each slot of the near ring once
    patience = time.monotonic() + ends.PATIENCE_S
    while (link := there.stats().link) is None or link.seq < last:
        if time.monotonic() > patience:
            raise Wrong("the last frame has not come")
        time.sleep(0.01)
    return link.lost

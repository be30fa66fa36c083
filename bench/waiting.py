"""What waiting costs: how fast a sleeping consumer is woken, and how much CPU waiting takes.

CPU use is the process's, all threads, the watchdog included. It is taken over a stretch in which no
frame comes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import gpuring
from gpuring.cli.bench import wakeup
from gpuring.cli.measure.attempt import attempt, expect_right
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import HOST, SLOTS, Place, Settings, create, ring_name

GROUP = wakeup.GROUP
_STRETCHES = 3


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    if HOST in settings.places:
        yield from wakeup.run(settings, crew)
    for place in settings.places:
        where = settings.where(place, waits_for="a frame")
        blank = Figure(GROUP, "CPU of a waiting consumer", "gpuring", "% of a core", where)
        yield from attempt(blank, partial(_idle, settings, crew, place, blank))


def _idle(settings: Settings, crew: Crew, place: Place, blank: Figure) -> Iterator[Figure]:
    stretch_s = settings.seconds(0.3, 1.0)
    with crew.start(hold_ring, ring_name(), place, settings.spoil) as holder:
        name = holder.receive()
        with crew.start(idle, name, stretch_s) as consumer:
            consumer.receive()
            holder.send("go")
            percent, wrong = consumer.result()
        holder.send("close")
        holder.result()
    expect_right(wrong)
    yield replace(blank, values=Distribution.of(percent), verified="4 KiB of the frames before")


# ---- the processes ------------------------------------------------------------------------------


def hold_ring(pipe: Pipe, name: str, place: Place, spoil: bool) -> None:
    """Publishes one lap, and no frame after that."""
    with create(name, place) as ring, ring.producer() as producer:
        pattern = pattern_for(ring)
        pipe.send(name)
        pipe.receive()
        for _ in range(SLOTS):
            with producer.claim() as slot:
                pattern.stamp(slot)
                if spoil:
                    pattern.spoil(slot)
        pattern.finish()
        pipe.receive()


def idle(pipe: Pipe, name: str, stretch_s: float) -> tuple[list[float], int]:
    """Sends the percentage of a core that each stretch of waiting took, and how many words were
    wrong."""
    percent = []
    with gpuring.attach(name, timeout=30) as ring, ring.consumer() as consumer:
        pattern = pattern_for(ring)
        pipe.send("ready")
        for _ in range(SLOTS):
            with consumer.acquire() as slot:
                pattern.check(slot)
        pattern.finish()
        for _ in range(_STRETCHES):
            wall, cpu = time.monotonic(), time.process_time()
            with contextlib.suppress(gpuring.RingTimeout):
                consumer.acquire(stretch_s)
            took, cpu = time.monotonic() - wall, time.process_time() - cpu
            percent.append(100 * cpu / took)
        return percent, pattern.wrong()

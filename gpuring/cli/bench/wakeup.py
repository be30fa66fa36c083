"""How fast a sleeping consumer is woken.

It sleeps on a futex of a host ring (rings in GPU memory have the same one). The producer checks
that the consumer sleeps, and publishes. The consumer takes the time. Not shown: a busy scheduler,
deeper idle states of other machines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import gpuring

from ..measure.attempt import Wrong, attempt, expect_right
from ..measure.crew import Crew, Pipe
from ..measure.figures import Distribution, Figure
from ..measure.patterns import pattern_for
from ..measure.settings import HOST, Settings, create, ring_name

GROUP = "waiting"
WARM_UP = 10
ASLEEP_S = 0.0005
"""Long enough to be in the system call."""


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    blank = Figure(GROUP, "wake-up", "gpuring", "µs", settings.where(HOST))
    yield from attempt(blank, partial(_wake_up, settings, crew, blank))


def _wake_up(settings: Settings, crew: Crew, blank: Figure) -> Iterator[Figure]:
    rounds = settings.rounds(1500, 4000)
    with crew.start(ring_bell, ring_name(), rounds, settings.spoil) as producer:
        name = producer.receive()
        with crew.start(sleep, name) as consumer:
            consumer.receive()
            producer.send("go")
            asleep = producer.receive()
            ns, wrong = consumer.result()
        producer.send("close")
        producer.result()
    expect_right(wrong)
    woken = [took / 1e3 for took, slept in zip(ns, asleep, strict=True) if slept][WARM_UP:]
    if not woken:
        raise Wrong("the consumer was never seen asleep")
    yield replace(blank, values=Distribution.of(woken), verified="4 KiB of every frame")


# ---- the processes ------------------------------------------------------------------------------


def ring_bell(pipe: Pipe, name: str, rounds: int, spoil: bool) -> None:
    """Publishes a frame each time that the consumer is asleep; answers whether it was."""
    asleep = []
    with create(name, HOST) as ring:
        with ring.producer() as producer:
            pattern = pattern_for(ring)
            pipe.send(name)
            pipe.receive()
            for n in range(rounds + WARM_UP):
                asleep.append(_falls_asleep(ring))
                slot = producer.claim()
                pattern.stamp(slot)
                if spoil and n == 0:
                    pattern.spoil(slot)
                slot.publish()
        pipe.send(asleep)
        pipe.receive()


def _falls_asleep(ring: gpuring.Ring) -> bool:
    """Whether the consumer sleeps, and has had time to be in the system call by now."""
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline:
        if any(peer.waiting for peer in ring.stats().peers):
            time.sleep(ASLEEP_S)
            return True
        time.sleep(0.0001)
    return False


def sleep(pipe: Pipe, name: str) -> tuple[list[int], int]:
    with gpuring.attach(name, timeout=30) as ring, ring.consumer() as consumer:
        pattern, ns = pattern_for(ring), []
        pipe.send("ready")
        clock = time.monotonic_ns
        with contextlib.suppress(gpuring.EndOfStream):
            while True:
                slot = consumer.acquire()
                ns.append(clock() - slot.time_ns)
                pattern.check(slot)
                slot.release()
        return ns, pattern.wrong()

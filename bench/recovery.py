"""How long the others wait when a process is killed: from SIGKILL to the survivor going on.

The victim is killed between claim and publish while a consumer waits for its frame, or while it
holds a frame that a producer needs; a process with a CUDA context first has to be taken down by the
kernel (50 to 60 ms on the machines that we know). What the survivor reads afterwards is checked.
Not shown: deaths at every fault point (tests/kill/test_kill_matrix.py has thousands of these), and
deaths with GPU work pending (tests/gpu/test_gpu_death.py). Not measured under MPS, where the death
of a client may end the others, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import gpuring
from gpuring.cli.measure.attempt import attempt, expect_right
from gpuring.cli.measure.crew import Crew, Part, Pipe
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import Place, Settings, create, ring_name

GROUP = "recovery"
SLOTS = 2
_AT_A_TIME = 5
"""How many victims are started together."""
_PATIENCE_S = 20.0


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    for place in settings.one_per_sync:
        for victim in ("producer", "consumer"):
            where = settings.where(place, victim=victim)
            blank = Figure(GROUP, "recovery from SIGKILL", "gpuring", "ms", where)
            if settings.mps and place.on_gpu:
                yield replace(blank, skipped="under MPS a killed client may take others with it")
            else:
                yield from attempt(blank, partial(_deaths, settings, crew, place, blank))


def _deaths(settings: Settings, crew: Crew, place: Place, blank: Figure) -> Iterator[Figure]:
    rounds = settings.rounds(3, 10) if place.on_gpu else settings.rounds(5, 20)
    victim = str(blank.setting["victim"])
    waited_ms: list[float] = []
    with crew.start(survive, ring_name(), place, victim, settings.spoil) as survivor:
        name = survivor.receive()
        while len(waited_ms) < rounds:
            with contextlib.ExitStack() as stack:
                together = min(_AT_A_TIME, rounds - len(waited_ms))
                victims = [
                    stack.enter_context(crew.start(hold, name, victim)) for _ in range(together)
                ]
                for part in victims:
                    part.receive()
                for part in victims:
                    waited_ms.append(_death(survivor, part))
        survivor.send(False)
        expect_right(survivor.result())
    verified = "4 KiB of the frame that the survivor went on with, each time"
    yield replace(blank, values=Distribution.of(waited_ms), verified=verified)


def _death(survivor: Part, victim: Part) -> float:
    """The milliseconds from the kill until the survivor goes on."""
    survivor.send(True)
    survivor.receive()
    victim.send("hold")
    survivor.send(victim.receive())  # the frame that the victim holds
    survivor.receive()
    time.sleep(0.02)  # so that the survivor waits.  If it does not yet, the figure does not grow.
    killed_ns = time.monotonic_ns()
    victim.kill()
    went_on_ns: int = survivor.receive()
    return (went_on_ns - killed_ns) / 1e6


# ---- the processes ------------------------------------------------------------------------------


def hold(pipe: Pipe, name: str, role: str) -> None:
    """Claims a slot, or acquires a frame, and never gives it back."""
    with gpuring.attach(name, timeout=30) as ring:
        pattern_for(ring)
        pipe.send("up")
        pipe.receive()
        endpoint = ring.producer() if role == "producer" else ring.consumer(start="oldest")
        held = endpoint.claim(_PATIENCE_S) if isinstance(endpoint, gpuring.Producer) else (
            endpoint.acquire(_PATIENCE_S)
        )  # fmt: skip
        pipe.send(held.seq)
        pipe.receive()


def survive(pipe: Pipe, name: str, place: Place, victim: str, spoil: bool) -> int:
    """Waits for what each victim holds.  Sends the time at which it went on."""
    with create(name, place, slots=SLOTS) as ring:
        pattern = pattern_for(ring)
        with ring.producer() as producer:
            pipe.send(name)
            while pipe.receive():
                if victim == "producer":
                    with ring.consumer() as consumer:
                        pipe.send("ready")
                        pipe.receive()
                        with producer.claim(_PATIENCE_S) as slot:  # the slot behind the victim's
                            pattern.stamp(slot)
                            if spoil:
                                pattern.spoil(slot)
                        pipe.send("waiting")
                        with consumer.acquire(_PATIENCE_S) as read:
                            pipe.send(time.monotonic_ns())
                            pattern.check(read)
                else:
                    for _ in range(SLOTS):
                        slot = producer.claim(_PATIENCE_S)
                        slot.publish()
                    pipe.send("ready")
                    held = pipe.receive()
                    for _ in range(slot.seq + 1, held + SLOTS):
                        producer.claim(_PATIENCE_S).publish()
                    pipe.send("waiting")
                    slot = producer.claim(_PATIENCE_S)  # the slot of the held frame
                    pipe.send(time.monotonic_ns())
                    if slot.seq != held + SLOTS:
                        raise RuntimeError(f"claimed {slot.seq} while {held} was held")
                    with ring.consumer(start=slot.seq) as consumer:
                        pattern.stamp(slot)
                        if spoil:
                            pattern.spoil(slot)
                        slot.publish()
                        with consumer.acquire(_PATIENCE_S) as read:
                            pattern.check(read)
            return pattern.wrong()

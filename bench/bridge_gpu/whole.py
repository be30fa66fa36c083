"""Bridges from ring to ring."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

import gpuring
from bench.bridge_gpu.floors import sockets
from bench.bridge_gpu.frames import NBYTES, PATIENCE_S, Memory, content, join, make, on, usual_slots
from bench.cpu import with_children_s
from gpuring import bridge
from gpuring.bridge.importer import supervisor
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.settings import ring_name
from gpuring.ring.creation import create_of

FAULTS = ("words wrong", "out of order", "frames missing")
"""What `watch` may find that must not be."""
_WARM_S = 0.3
"""How long frames go before the clock starts."""


def camera(pipe: Pipe, name: str, device: str) -> int:
    """Publishes frames until it is told to end.  Returns how many there were."""
    with on(device) as xp, join(name, device) as ring, ring.producer() as producer:
        words, n = content(xp), 0
        pipe.send()
        while not pipe.told():
            with producer.claim(PATIENCE_S) as slot:
                words.fill(slot.array, n)
                slot.meta["n"] = n
            n += 1
        pipe.receive()
        return n


def watch(pipe: Pipe, name: str, device: str) -> dict[str, Any]:
    """Checks every word of every frame, and that each comes once and in order."""
    n = out_of_order = 0
    total: int | None = None
    last = 0.0
    with on(device) as xp, join(name, device) as ring, ring.consumer(start="oldest") as frames:
        words = content(xp)
        pipe.send()
        while total is None or (n < total and time.perf_counter() < last + PATIENCE_S):
            if total is None and pipe.told():
                total, last = pipe.receive(), time.perf_counter()
            try:
                slot = frames.acquire(0.2)
            except (gpuring.RingTimeout, gpuring.PeerLost):
                continue
            except gpuring.EndOfStream:  # until another producer comes
                time.sleep(0.01)
                continue
            with slot:
                last = time.perf_counter()
                out_of_order += int(slot.meta["n"]) != n
                words.check(slot.array, int(slot.meta["n"]))
                n += 1
        return {
            "frames": n, "frames missing": total - n, "out of order": out_of_order,
            "words wrong": words.wrong,
        }  # fmt: skip


@contextlib.contextmanager
def bridged(
    near: str, far: str, engine: str, memory: Memory, slots: int
) -> Iterator[tuple[str, str, Any, Any]]:
    """Two rings and a bridge: their names, the exporter and the importer.  Half of the far ring may
    be on their way."""
    name = ring_name()
    there, here = f"{name}.a", f"{name}.b"
    # An importer has no option for the kind of memory, so the call is patched here.
    kind = mock.patch.object(supervisor, "create_of", partial(create_of, memory=memory))
    with kind, make(there, near, memory, slots):
        where = None if near == "host" else near
        with bridge.export(there, listen="127.0.0.1:0", device=where) as out:
            _until(lambda: out.address)
            address: Any = f"{out.address}/{there}"
            far_slots = slots or usual_slots(far)
            options: Any = {"name": here, "device": far, "engine": engine, "slots": far_slots}
            options["in_flight"] = far_slots // 2 * NBYTES
            with bridge.import_(address, **options) as into:
                _until(lambda: _link(into).connected)
                yield there, here, out, into


def carried(
    crew: Crew,
    near: str,
    far: str,
    engine: str,
    seconds: float,
    *,
    memory: Memory = "auto",
    kills: int = 0,
    slots: int = 0,
) -> dict[str, Any]:
    """Ring → bridge → ring, at full speed, or with the worker of each side killed in turn."""
    with contextlib.ExitStack() as stack:
        there, here, out, into = stack.enter_context(bridged(near, far, engine, memory, slots))
        watching = stack.enter_context(crew.start(watch, here, far, patience_s=4 * PATIENCE_S))
        watching.receive()
        filming = stack.enter_context(crew.start(camera, there, near, patience_s=2 * PATIENCE_S))
        filming.receive()
        found: dict[str, Any] = {}
        if kills:
            back = [_killed((out, into)[number % 2], into) for number in range(kills)]
            found["s until frames came again"] = back
        else:
            _until(lambda: _link(into).frames)
            time.sleep(_WARM_S)
            found |= _speed(out, into, seconds)
        filming.send()
        watching.send(filming.result())
        found |= watching.result()
        return found | {"engine": _link(into).engine}


def in_turns(crew: Crew, near: str, far: str, seconds: float, rounds: int = 3) -> dict[str, Any]:
    """A bridge over ZeroMQ, and raw blocking sockets between two processes, in host memory."""
    bridges, raw = [], []
    for _ in range(rounds):
        raw.append(sockets(crew, seconds / 2)["GB/s"])
        bridges.append(carried(crew, near, far, "zmq", seconds))
    ratios = [each["GB/s"] / plain for each, plain in zip(bridges, raw, strict=True)]
    faults = {name: sum(each[name] for each in bridges) for name in FAULTS}
    return {
        "GB/s": median(each["GB/s"] for each in bridges), "raw sockets, GB/s": median(raw),
        "of raw sockets": median(ratios), "of raw sockets, each round": ratios,
        "frames": sum(each["frames"] for each in bridges),
    } | faults | {"rounds": bridges}  # fmt: skip


def _speed(out: Any, into: Any, seconds: float) -> dict[str, float]:
    """The speed while nothing else happens."""

    def now() -> tuple[float, int, float, float]:
        near_s, far_s = with_children_s(out.pid), with_children_s(into.pid)
        return time.perf_counter(), _link(into).frames, near_s, far_s

    before = now()
    time.sleep(seconds)
    took, frames, near_s, far_s = (b - a for a, b in zip(before, now(), strict=True))
    return {
        "GB/s": frames * NBYTES / took / 1e9, "frames/s": frames / took,
        "near CPU, µs a frame": 1e6 * near_s / max(frames, 1),
        "far CPU, µs a frame": 1e6 * far_s / max(frames, 1),
    }  # fmt: skip


def _killed(victim: Any, into: Any) -> float:
    """Kills a worker with transfers in flight.  Returns the seconds until frames come again."""
    frames, before = _link(into).frames, (into.pid, _link(into).sessions)
    _until(lambda: _link(into).frames > frames)
    begun, killed = time.perf_counter(), victim.pid
    os.kill(killed, signal.SIGKILL)
    _until(lambda: victim.pid not in (0, killed))
    _until(lambda: (into.pid, _link(into).sessions) != before and _link(into).connected)
    frames = _link(into).frames
    _until(lambda: _link(into).frames > frames)
    return round(time.perf_counter() - begun, 2)


def _link(into: Any) -> bridge.LinkStats:
    """The importer's link, or None while its worker is being started."""
    with contextlib.suppress(gpuring.RingError):
        links: tuple[bridge.LinkStats, ...] = into.stats().links
        if links:
            return links[0]
    return _NO_LINK


_NO_LINK = bridge.LinkStats("", "", False, "", 0, 0, 0, 0, 0, 0, "")


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition is not true after {PATIENCE_S:g} s")
        time.sleep(0.005)

"""Bridges between two rings of this host, and what goes through them.  Needs pyzmq."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuring
from gpuring import bridge
from gpuring.bridge import Export, Import
from tests.helpers.arrays import array_of, assign, to_host
from tests.helpers.processes import poll

WAIT_S = 60.0
META = [("n", "i8")]


def ring_of(near: str, slots: int = 8, shape: Any = 64) -> gpuring.Ring:
    return gpuring.create(near, slots=slots, shape=shape, dtype="u2", meta=META, device="host")


@contextlib.contextmanager
def bridged(near: str, far: str, **options: Any) -> Iterator[tuple[Export, Import]]:
    with (
        bridge.export(near, listen="127.0.0.1:0") as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", **options) as into,
    ):
        yield out, into


def put(producer: gpuring.Producer, n: int) -> None:
    with producer.claim(timeout=WAIT_S) as slot:
        assign(array_of(slot), n % 65521)
        slot.meta["n"] = n


def put_all(producer: gpuring.Producer, frames: int) -> threading.Thread:
    """Puts frames in another thread."""

    def run() -> None:
        for n in range(frames):
            put(producer, n)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def got(slot: gpuring.ReadSlot) -> int:
    """Checks the content of a frame.  Returns its number."""
    n = int(slot.meta["n"])
    assert (to_host(array_of(slot)) == n % 65521).all()
    return n


def take(frames: gpuring.Consumer) -> int:
    with frames.acquire(timeout=WAIT_S) as slot:
        return got(slot)


def connected(side: Export | Import) -> bool:
    links = side.stats().links
    return bool(links) and all(link.connected for link in links)


def kill_worker(side: Export | Import) -> None:
    """Kills the worker of a side.  Returns when another one has taken its place."""
    os.kill(pid := poll(lambda: side.pid), signal.SIGKILL)
    poll(lambda: side.pid not in (0, pid), WAIT_S)


def most_mib(pid: int) -> float:
    """The most memory that a process has ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


@dataclass
class Bridged:
    """A near ring with a producer, a bridge, and a reader of the far ring."""

    ring: gpuring.Ring
    out: Export
    into: Import
    producer: gpuring.Producer
    there: gpuring.Ring
    frames: gpuring.Consumer


@contextlib.contextmanager
def both_ends(near: str, far: str, slots: int = 8, shape: Any = 64, **options: Any) -> Any:
    with (
        ring_of(near, slots, shape) as ring,
        bridged(near, far, **options) as (out, into),
        ring.producer() as producer,
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer("reader", start="oldest") as frames,
    ):
        yield Bridged(ring, out, into, producer, there, frames)

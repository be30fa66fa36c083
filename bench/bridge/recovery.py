"""How long no frame arrives when the worker of one side of a bridge is killed.

Frames of 64 KiB come every 5 ms.  After each SIGKILL, the longest time between two frames is taken.
How long it takes after a cut of the link, `tests/storm_bridge.py --troubles cut --kills 0` counts,
because a cut needs network namespaces.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.bridge.carriers import Carrier
from bench.bridge.measure import carried
from gpuring.cli.bench.crew import Crew
from gpuring.cli.bench.figures import Distribution, Figure

EVERY_S = 0.005
REST_S = 6.0
"""From one kill to the next.  A worker that lived for less than 2 s is started again later."""


def recovery(carrier: Carrier, crew: Crew, rounds: int) -> Iterator[Figure]:
    for victim in ("exporter", "importer"):
        with carried(carrier, crew, 1 << 16, 16) as between:
            between.send("verify", 24)
            root = between.near_pid if victim == "exporter" else between.far_pid
            killed_ns: list[int] = []

            def kill(root: int = root, killed_ns: list[int] = killed_ns) -> None:
                for _ in range(rounds):
                    time.sleep(REST_S)
                    killed_ns.append(time.monotonic_ns())
                    for worker in _children(root):
                        os.kill(worker, signal.SIGKILL)
                time.sleep(REST_S)

            _, came = between.send("timed", (rounds + 1) * REST_S, EVERY_S, meanwhile=kill)
        silent_ms = [_longest(np.array(came), at, at + REST_S * 1e9) / 1e6 for at in killed_ns]
        yield Figure(
            "bridge", "recovery from SIGKILL", carrier.name, "ms", {"victim": victim},
            Distribution.of(silent_ms), "the order and two words of each frame",
        )  # fmt: skip


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _longest(came: np.ndarray, begin: float, end: float) -> float:
    """The longest time without a frame that begins before `end` and ends after `begin`."""
    before, after = came[:-1], came[1:]
    some = (after > begin) & (before < end)
    return float((after - before)[some].max())

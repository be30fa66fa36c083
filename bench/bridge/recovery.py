"""How long a bridge is silent when the worker of one of its sides is killed.

Frames of 64 KiB come every 5 ms.  The worker is killed in the middle of a stream, and the longest
time between two frames since then is taken.  The stream is over when its last frame has arrived, so
the worker is back before it is killed again.  `python -m tests.storm bridge --troubles cut --kills
0` measures how long it takes after a cut of the link, because a cut needs network namespaces.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.bridge.carriers import Carrier
from bench.bridge.measure import Between, carried
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Distribution, Figure

NBYTES, SLOTS, EVERY_S = 1 << 16, 16, 0.005
REST_S = 2.5
"""How long frames arrive before a kill.  A worker that has lived for less than 2 s is started again
later."""


def recovery(carrier: Carrier, crew: Crew, kills: int) -> Iterator[Figure]:
    for victim in ("exporter", "importer"):
        silent_ms = silence(carrier, crew, victim, kills, REST_S)
        yield Figure(
            "bridge", "recovery from SIGKILL", carrier.name, "ms", {"victim": victim},
            Distribution.of(silent_ms), "the order and two words of each frame",
        )  # fmt: skip


def silence(carrier: Carrier, crew: Crew, victim: str, kills: int, rest_s: float) -> list[float]:
    """For how many ms no frame came after each kill.  Before a kill, frames come for `rest_s`."""
    with carried(carrier, crew, NBYTES, SLOTS) as between:
        between.send("verify", 24)
        return [_silence_ns(between, victim, rest_s) / 1e6 for _ in range(kills)]


def _silence_ns(between: Between, victim: str, rest_s: float) -> int:
    side = between.near_pid if victim == "exporter" else between.far_pid
    killed_ns = 0

    def kill() -> None:
        nonlocal killed_ns
        time.sleep(rest_s)
        (worker,) = _children(side)
        killed_ns = time.monotonic_ns()
        os.kill(worker, signal.SIGKILL)

    _, came = between.send("until told", every_s=EVERY_S, meanwhile=kill)
    return longest(came, killed_ns)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def longest(came: Sequence[int], since: int) -> int:
    """The longest time without a frame that ends after `since`.  Raises Wrong if frames had not
    come before that, or did not come again."""
    times = np.array(came)
    after = times[1:] > since
    if not after.any() or times[0] > since:
        raise Wrong("no frames came before the kill, or none after it")
    return int(np.diff(times)[after].max())

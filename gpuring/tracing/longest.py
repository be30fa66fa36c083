"""Which waits were the longest, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

from gpuring.tracing.state import BEFORE
from gpuring.tracing.tracks import Picture


@dataclass
class Wait:
    """All waits of one process for one culprit in one ring."""

    pid: int
    culprit: str
    ring: str
    times: int = 0
    in_all_s: float = 0.0
    longest_s: float = 0.0
    before: bool = False
    """Whether one of them began before the trace.  It counts from there on."""


def longest(picture: Picture) -> list[Wait]:
    """Who kept whom waiting, and for how long, the worst first.  Nobody is to blame for a frame
    that is not there yet, so waits for the next frame do not count."""
    found: dict[tuple[int, str, str], Wait] = {}
    for it in picture.slices:
        if it.kind != "waits" or "culprit" not in it.args:
            continue
        key = it.track.of_process, str(it.args["culprit"]), str(it.args["ring"])
        wait = found.setdefault(key, Wait(*key))
        took_s = (it.end_ns - it.begin_ns) / 1e9
        wait.times += 1
        wait.before |= BEFORE in it.args
        wait.in_all_s += took_s
        wait.longest_s = max(wait.longest_s, took_s)
    return sorted(found.values(), key=lambda each: -each.in_all_s)

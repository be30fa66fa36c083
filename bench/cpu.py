"""The CPU time of processes, in seconds of all their threads."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


def cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # the clock of that process's CPU time


def with_children_s(root: int) -> float:
    """The CPU time of a process and of all its descendants that still run."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(") ")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    used, left = 0.0, [root]
    while left:
        pid = left.pop()
        left += children.get(pid, [])
        with contextlib.suppress(OSError):
            used += cpu_s(pid)
    return used

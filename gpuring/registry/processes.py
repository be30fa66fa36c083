"""Processes of other pid namespaces, such as those of containers, as far as /proc shows them here.

A process may give itself any bytes as its name, and /proc shows all but newlines as they are.  So
its files are read as bytes, and their lines end in newlines only.

A header has the pid that a process has in its own namespace.  From here no signal can be sent to
that pid, and another process may have the same pid here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


class Processes:
    """One look at /proc, which is made when it is first needed."""

    def __init__(self) -> None:
        self._here: dict[tuple[int, int], int] | None = None

    def pid_here(self, namespace: int, pid: int) -> int | None:
        """The pid that a process of another pid namespace has in ours.  None: it has none, or its
        user is another one, or it is gone."""
        if self._here is None:
            self._here = dict(_seen())
        return self._here.get((namespace, pid))


def _seen() -> list[tuple[tuple[int, int], int]]:
    ours = Path("/proc/self/ns/pid").stat().st_ino
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            namespace = (process / "ns" / "pid").stat().st_ino
            if namespace != ours:
                pid = pid_inside((process / "status").read_bytes())
                found.append(((namespace, pid), int(process.name)))
    return found


def pid_inside(status: bytes) -> int:
    """The pid that a process has in its own namespace.  status: /proc/PID/status."""
    pids = next(each for each in status.split(b"\n") if each.startswith(b"NSpid:"))
    return int(pids.split()[-1])


def told(pid: int, elsewhere: bool) -> str:
    """A pid that a header has, and where it means something."""
    return f"pid {pid}{' of another pid namespace' if elsewhere else ''}"


def state(pid_here: int) -> str:
    """What a process does, by a letter of proc(5), such as "S" if it sleeps; "" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid_here}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
    return ""


def is_stopped(pid_here: int) -> bool:
    """Whether it is stopped, by a signal or a debugger."""
    return state(pid_here) in {"T", "t"}

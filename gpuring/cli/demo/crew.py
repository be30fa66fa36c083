"""The demo's processes as one: started together, listened to, and never left behind.

Only pipes connect them to the parent: a pipe has no lock that a killed process could keep, and no
name in /dev/shm that it could leave there.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from ..measure.signals import uninterrupted
from . import roles
from .records import Job, Progress, Report

TICK_S = 0.125
GRACE_S = 0.5
"""How long others may speak after a failure: who dies takes others along and may speak last."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class CrewError(Exception):
    """A process died, or all were silent; the text has the child's traceback if there is one."""


class Crew:
    """The processes named in `roles.ROLES`.  Leaving the `with` block ends whoever still runs."""

    def __init__(self, job: Job, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.reports: dict[str, Report] = {}
        self.progress: dict[str, Progress] = {}
        self.latest_ns: dict[str, list[int]] = {name: [] for name in roles.ROLES}
        """Latencies so far, by process."""
        self._failed: dict[str, str] = {}
        self._ready: set[str] = set()
        self._pipes: dict[str, Connection] = {}
        self._processes: dict[str, SpawnProcess] = {}
        self._job = job

    def __enter__(self) -> Crew:
        try:
            with uninterrupted():
                self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def listen(self, tick: Callable[[], None]) -> dict[str, Report]:
        """Until every process has reported: hears them, and calls `tick` every TICK_S.

        CrewError if one dies, or if all of them are silent for `timeout_s`.
        """
        next_tick = time.monotonic()
        while waited := [n for n in roles.ROLES if n not in self.reports and n not in self._failed]:
            by_handle: dict[Any, str] = {}
            for name in waited:
                by_handle[self._pipes[name]] = by_handle[self._processes[name].sentinel] = name
            now = time.monotonic()
            if now >= self.deadline:
                if self._failed:
                    break
                raise CrewError(f"no progress for {self.timeout_s:g} s: {self._whereabouts()}")
            if now >= next_tick:
                tick()
                next_tick = now + TICK_S
            heard = wait(list(by_handle), max(0.0, min(next_tick, self.deadline) - now))
            for name in {by_handle[handle] for handle in heard}:
                self._hear(name)
        tick()
        if self._failed:
            raise CrewError(self._failures())
        return self.reports

    def _hear(self, name: str) -> None:
        """Takes in all that `name` has said so far, and notices if it is dead."""
        process = self._processes[name]
        gone = process.exitcode is not None  # asked first: what it said before stays readable
        try:
            while name not in self.reports and name not in self._failed:
                if not self._pipes[name].poll():
                    break
                self._take(name, *self._pipes[name].recv())
        except (EOFError, OSError):
            process.join(1.0)
            gone = True
        if gone and name not in self.reports and name not in self._failed:
            self._fail(name, f"died: {_ending(process.exitcode)}")

    def _take(self, name: str, kind: str, content: Any) -> None:
        if not self._failed:
            self.deadline = time.monotonic() + self.timeout_s
        if kind == "ready":
            self._ready.add(name)
            if len(self._ready) == len(roles.ROLES):
                self._pipes["producer"].send("go")
        elif kind == "progress":
            self.progress[name] = content
            self.latest_ns[name].extend(content.latencies_ns)
        elif kind == "done":
            self.reports[name] = content
        else:
            self._fail(name, f"failed:\n\n{content.rstrip()}")

    def _fail(self, name: str, text: str) -> None:
        if not self._failed:
            self.deadline = min(self.deadline, time.monotonic() + GRACE_S)
        self._failed[name] = f"{name} (pid {self._processes[name].pid}) {text}"

    def _failures(self) -> str:
        """All failures, less those that only say that the producer was lost."""
        causes = [text for text in self._failed.values() if "gpuring.errors.PeerLost" not in text]
        return "\n".join(causes or self._failed.values())

    def _whereabouts(self) -> str:
        parts = []
        for name in roles.ROLES:
            if name in self.reports:
                parts.append(f"{name}: done")
            elif name not in self._ready:
                parts.append(f"{name}: has not joined yet")
            else:
                frames = self.progress[name].frames if name in self.progress else 0
                parts.append(f"{name}: at frame {frames}")
        return "; ".join(parts)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        # Five processes on two cores need no thread pools; children read these when NumPy loads.
        kept = {key: os.environ.get(key) for key in ONE_THREAD}
        os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
        try:
            for name in roles.ROLES:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=roles.enter, args=(name, self._job, theirs), name=name, daemon=True
                )
                self._pipes[name], self._processes[name] = ours, process
                process.start()
                theirs.close()
        finally:
            for key, value in kept.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value

    def _end(self) -> None:
        for process in self._processes.values():
            if process.pid is not None and process.is_alive() and process.name not in self.reports:
                process.kill()
        for process in self._processes.values():
            if process.pid is not None:
                process.join(5.0)  # one that has reported only has to leave the ring
                if process.is_alive():
                    process.kill()
                    process.join()
        for pipe in self._pipes.values():
            pipe.close()


def _ending(exitcode: int | None) -> str:
    if exitcode is None:
        return "without a word"
    return f"killed by signal {-exitcode}" if exitcode < 0 else f"exit code {exitcode}"

"""What the demo hears from its processes while they run, and whose failure it was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from ..measure.crew import Crew, Part, RoleFailed, speaking
from . import roles
from .records import Job, Progress, Report

TICK_S = 0.125
GRACE_S = 0.5
"""How long others may speak after a failure: who dies takes others along and may speak last."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Five processes on two cores need no thread pools."""


class CrewError(Exception):
    """A process died, or all were silent; the text has the child's traceback if there is one."""


@contextlib.contextmanager
def started(job: Job, timeout_s: float) -> Iterator[Hearing]:
    """The processes named in `roles.ROLES`.  Leaving the `with` block ends whoever still runs."""
    with Crew(ONE_THREAD) as crew:
        parts = {name: crew.start(roles.enter, name, job) for name in roles.ROLES}
        yield Hearing(parts, timeout_s)


class Hearing:
    """All that the processes have said so far."""

    def __init__(self, parts: dict[str, Part], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.reports: dict[str, Report] = {}
        self.progress: dict[str, Progress] = {}
        self.latest_ns: dict[str, list[int]] = {name: [] for name in roles.ROLES}
        """Latencies so far, by process."""
        self._parts = parts
        self._failed: dict[str, str] = {}
        self._ready: set[str] = set()

    def listen(self, tick: Callable[[], None]) -> dict[str, Report]:
        """Until every process has reported: hears them, and calls `tick` every TICK_S.

        CrewError if one dies, or if all of them are silent for `timeout_s`.
        """
        next_tick = time.monotonic()
        while waited := [n for n in roles.ROLES if n not in self.reports and n not in self._failed]:
            now = time.monotonic()
            if now >= self.deadline:
                if self._failed:
                    break
                raise CrewError(f"no progress for {self.timeout_s:g} s: {self._whereabouts()}")
            if now >= next_tick:
                tick()
                next_tick = now + TICK_S
            by_part = {self._parts[name]: name for name in waited}
            for part in speaking(by_part, max(0.0, min(next_tick, self.deadline) - now)):
                self._hear(by_part[part], part)
        tick()
        if self._failed:
            raise CrewError(self._failures())
        return self.reports

    def _hear(self, name: str, part: Part) -> None:
        """Takes in the next thing that `name` has said, or that it has failed."""
        try:
            ended, said = part.next()
        except RoleFailed as failed:
            if not self._failed:
                self.deadline = min(self.deadline, time.monotonic() + GRACE_S)
            self._failed[name] = f"{name} (pid {part.pid}) {failed.why}"
            return
        if not self._failed:
            self.deadline = time.monotonic() + self.timeout_s
        if ended:
            self.reports[name] = said
        elif isinstance(said, Progress):
            self.progress[name] = said
            self.latest_ns[name].extend(said.latencies_ns)
        else:
            self._ready.add(name)
            if len(self._ready) == len(roles.ROLES):
                self._parts["producer"].send("go")

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

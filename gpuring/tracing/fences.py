"""When the GPU was done with what peers have promised.  The fence words of a ring tell.

With sync "timeline" the GPU itself stores a fence word, so a look finds what is done by then.  With
sync "event" a process stores it when it has asked the event, which may be long after.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from gpuring import native
from gpuring.native import Tracer

LOOK_S = 0.0002
"""The time between two looks at the words.  The end of a slice may be wrong by as much."""


@dataclass(frozen=True)
class Step:
    """A fence word had reached `value` at `seen_ns`, and not yet at `before_ns`."""

    value: int
    before_ns: int
    seen_ns: int


class Fences:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._raw, self._looked_ns = b"", 0
        self._steps: dict[int, list[Step]] = {}
        """By the place of the word."""
        self.look()

    def look(self) -> None:
        """Raises OSError."""
        now, raw = native.now_ns(), self._tracer.fences()
        if raw != self._raw:
            words = np.frombuffer(raw, np.uint64)
            before = np.frombuffer(self._raw or bytes(len(raw)), np.uint64)
            seen_ns = native.now_ns()
            for at in np.flatnonzero(words != before).tolist():
                step = Step(int(words[at]), self._looked_ns, seen_ns)
                self._steps.setdefault(at, []).append(step)
        self._raw, self._looked_ns = raw, now

    def reached(self, number: int, index: int, value: int) -> Step | None:
        """Since when that peer's work on that slot is known to be done.  None: it was not."""
        steps = self._steps.get(index * self._tracer.peers + number, [])
        k = bisect_left(steps, value, key=lambda step: step.value)
        return steps[k] if k < len(steps) else None

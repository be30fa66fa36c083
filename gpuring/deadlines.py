"""When a time is over: a number on the clock of time.monotonic, and infinity for never.

Compiled modules have the same on the clock of their own (native/clock.pyx).
"""

from __future__ import annotations

import time

from gpuring.native import seconds


def deadline_of(timeout: float | None, what: str = "timeout") -> float:
    """The deadline of a time that a call may take.  None is for ever.  Raises TypeError and
    ValueError, which name the argument `what`."""
    return time.monotonic() + seconds(timeout, what)


def left_s(deadline: float) -> float:
    """How many seconds are left until a deadline, and 0 behind it."""
    return max(0.0, deadline - time.monotonic())

"""What a trace says of its host, and of the clocks of others.  join.py reads it.

The trace has it as instants and arguments, so a person who looks at the trace sees it, too.
"""

from __future__ import annotations

import socket

from gpuring.printable import printable
from gpuring.tracing.collector import TracedRing
from gpuring.tracing.tracks import Args, Picture, Track

BEGINS = "the trace begins"
"""An instant of each ring: its host, name and epoch."""
CLOCK = "clock of the near host"
"""An instant of each ring that a bridge fills, for each measurement: how far that clock is ahead,
and the epoch of the ring there."""
ARRIVES = "arrives"
"""A slice for each frame that came from a ring that is not in this trace."""


def tell(picture: Picture, track: Track, ring: TracedRing) -> None:
    its: Args = {"host": socket.gethostname(), "ring": ring.name}
    its["epoch"] = ring.header.epoch.hex()
    picture.instant(track, BEGINS, ring.begun_ns, its)
    if ring.near is None:
        return
    host, name, epoch = ring.near
    for clock in ring.clocks:
        at = max(clock.time_ns, ring.begun_ns)
        measured: Args = {"near host": printable(host), "near ring": printable(name)}
        measured |= {"near epoch": epoch, "ahead_ns": clock.ahead_ns, "error_ns": clock.error_ns}
        picture.instant(track, CLOCK, at, measured | {"measured_ns": clock.time_ns})

"""Where a frame comes from that a bridge has brought from a ring of another host."""

from __future__ import annotations

import time
from typing import NamedTuple


class Origin(NamedTuple):
    """Where a frame comes from.  `slot.origin` makes it.

    If the frame came over several hosts, `seq`, `host` and `ring` are those of the last one before
    this host, and `time_ns` is of the first.
    """

    seq: int
    """Its sequence in the ring that the bridge has read."""
    host: str
    """The host of that ring, as the bridge names it."""
    ring: str
    """The name of that ring."""
    time_ns: int
    """When the frame was first published: CLOCK_REALTIME of that host in nanoseconds, as its
    `time.time_ns()`."""

    @property
    def age(self) -> float:
        """Seconds from the first publication until now.

        It compares the clocks of two hosts, so it is wrong by as much as these differ, and may be
        negative.  Hosts with NTP mostly differ by milliseconds, and hosts with PTP by microseconds.
        """
        return (time.time_ns() - self.time_ns) / 1e9

"""What a bridge is doing: the records that users see, and the counts that workers keep for them."""

from __future__ import annotations

from dataclasses import dataclass

LABEL, LABEL_OF_SUPERVISOR = "bridge", "bridge's supervisor"
"""What people see of the worker and of the supervisor in a ring."""


@dataclass
class Counts:
    """What a worker has done for one importer.  `LinkStats` says what each is."""

    frames: int = 0
    nbytes: int = 0
    lost: int = 0
    sessions: int = 0


@dataclass(frozen=True)
class LinkStats:
    """One importer, as this side of the bridge sees it."""

    name: str
    """ "host/ring" of the importer."""
    policy: str
    """ "lossless", "lossy" or "latest"."""
    connected: bool
    """Whether the two sides are connected, and agree on an engine."""
    engine: str
    """What carries the frames: "zmq" or "nixl", on the far side with the reason."""
    frames: int
    """How many frames were sent, or published on the far side.  Frames that were sent again count
    again.  A new worker begins with 0."""
    nbytes: int
    """The bytes of these frames."""
    lost: int
    """How many sequences of the near ring were lost before them."""
    sessions: int
    """How often the two have connected."""
    credits: int
    """How many slots of the far ring are claimed for frames that have not come."""
    lag: int
    """How many frames were acquired and not acknowledged.  0 on the far side."""
    blocked: str
    """Who keeps the far ring from taking more.  Empty: nobody."""
    round_trip_s: float | None = None
    """The shortest round trip to the other host of the last seconds.  None on the near side, which
    measures none, and as long as there was none."""
    ahead_s: float | None = None
    """How far CLOCK_MONOTONIC of the near host is ahead of that of the far one, give or take half
    of the round trip.  None as above."""


@dataclass(frozen=True)
class BridgeStats:
    """One side of a bridge."""

    title: str
    """What it does."""
    pid: int
    """The worker's process id.  0: it is being started."""
    restarts: int
    """How many workers have died."""
    links: tuple[LinkStats, ...]
    """The importers of an exporter; of an importer the one that it is."""

"""What the demo's processes tell the parent: plain data, pickled through pipes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays
from .clip import Clip

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Job:
    """What every process is told at its start."""

    ring: str
    clip: Clip
    loops: int
    fps: float | None
    """Frames published per second; None: as fast as the lossless readers allow."""
    arrays: str
    """Whose arrays the consumers compute with: "numpy", "cupy" or "torch"."""


@dataclass(frozen=True)
class Progress:
    """Since the start, and the latencies since the last message."""

    frames: int
    lost: int
    latencies_ns: list[int]


@dataclass(frozen=True)
class Picture:
    """A thumbnail that a consumer made of what it saw in the ring."""

    seq: int
    image: NDArray[np.uint8]


@dataclass(frozen=True)
class Report:
    """Everything one process saw, frame by frame in its own order; all arrays have one length.

    The producer's report has no latencies, losses or values.
    """

    name: str
    pid: int
    seq: Ints
    pts: Ints
    published_ns: Ints
    """CLOCK_MONOTONIC at publish."""
    latency_ns: Ints
    """Publish to acquired, on the host's clock."""
    lost: Ints
    """Sequences that this reader was made to skip just before each frame."""
    values: Words
    """One row of results a frame."""
    pictures: list[Picture] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return len(self.seq)

    @property
    def frames_per_s(self) -> float:
        """Mean from the first frame to the last."""
        at = self.published_ns + self.latency_ns
        return (len(at) - 1) / (int(at[-1] - at[0]) * 1e-9) if len(at) > 1 else 0.0


class Album:
    """Keeps thumbnails, evenly spread, however many frames come: full, it drops every other one."""

    def __init__(self, limit: int = 96) -> None:
        self.limit = limit
        self.stride = 1
        self.seen = 0
        self.kept: list[tuple[int, Any]] = []

    def wants(self) -> bool:
        """Whether the next frame is to be added; call once a frame."""
        self.seen += 1
        return (self.seen - 1) % self.stride == 0

    def add(self, seq: int, image: Any) -> None:
        """Keeps `image`, which may live on a GPU, until `pictures`."""
        if len(self.kept) == self.limit:
            del self.kept[1::2]
            self.stride *= 2
        self.kept.append((seq, image))

    def pictures(self, kind: Arrays) -> list[Picture]:
        return [Picture(seq, kind.to_host(image)) for seq, image in self.kept]


class Book:
    """One process's frames, written down as they come."""

    def __init__(self) -> None:
        self.seq: list[int] = []
        self.pts: list[int] = []
        self.published_ns: list[int] = []
        self.latency_ns: list[int] = []
        self.lost: list[int] = []
        self.values: list[Any] = []
        self.lost_sum = 0

    def note(self, seq: int, pts: int, published_ns: int, age_s: float, lost: int) -> None:
        """One acquired frame.  Take `age_s` from the slot before anything else is done with it."""
        self.seq.append(seq)
        self.pts.append(pts)
        self.published_ns.append(published_ns)
        self.latency_ns.append(round(age_s * 1e9))
        self.lost.append(lost)
        self.lost_sum += lost

    def report(self, name: str, pid: int, kind: Arrays, album: Album | None = None) -> Report:
        """The book as arrays.  Waits for the GPU, if results live there."""
        values = np.zeros((len(self.seq), 0))
        if self.values:
            values = kind.to_host(kind.concatenate(self.values)).reshape(len(self.seq), -1)
        return Report(
            name=name,
            pid=pid,
            seq=np.array(self.seq, np.int64),
            pts=np.array(self.pts, np.int64),
            published_ns=np.array(self.published_ns, np.int64),
            latency_ns=np.array(self.latency_ns, np.int64),
            lost=np.array(self.lost, np.int64),
            values=values.astype(np.uint64),
            pictures=album.pictures(kind) if album else [],
        )


@dataclass(frozen=True)
class Outcome:
    """A run as a whole, for the pictures and the JSON file."""

    clip: Clip
    memory: str
    sync: str
    gate: str
    slots: int
    fps: float | None
    producer: Report
    analyser: Report
    edges: tuple[Report, Report]
    viewer: Report
    max_lag: dict[str, int]
    """By subscription, as sampled by the parent."""

    @property
    def consumers(self) -> tuple[Report, Report, Report, Report]:
        """In the order in which they are shown."""
        return self.analyser, *self.edges, self.viewer

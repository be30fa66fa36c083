"""What a time line is made of: slices, instants and counters, each on a track.

No slice ends before it begins, and those of one track are nested or apart, as Perfetto needs it: a
track is given away only when nothing is open there.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field

Args = dict[str, str | int]


@dataclass(eq=False)
class Track:
    """A row of the picture.  `pid`, `tid`: it is that of a process, or of a thread of it."""

    name: str
    parent: Track | None = None
    pid: int = 0
    tid: int = 0
    is_counter: bool = False

    @property
    def of_process(self) -> int:
        """The pid of the process that it is in.  0: of none."""
        return self.pid or (self.parent.of_process if self.parent is not None else 0)


@dataclass(eq=False)
class Slice:
    track: Track
    name: str
    begin_ns: int
    begun: int
    """What began at the same time is put in this order."""
    kind: str
    """What Perfetto calls a category: "writes", "reads", "waits" (somebody is in the way), "idle"
    (it waits for the next frame), "call", "own", "gpu", or "hop"."""
    end_ns: int = -1
    ended: int = -1
    args: Args = field(default_factory=dict)
    flows_out: list[int] = field(default_factory=list)
    flows_in: list[int] = field(default_factory=list)
    """An arrow goes from the end of the slice that has its number in flows_out to the other."""


@dataclass(eq=False)
class Instant:
    track: Track
    name: str
    time_ns: int
    order: int
    args: Args = field(default_factory=dict)


@dataclass(eq=False)
class Count:
    track: Track
    time_ns: int
    order: int
    value: int


class Lanes:
    """Tracks of one name, as many as there are slices at the same time."""

    def __init__(self, name: str, parent: Track) -> None:
        self._name, self._parent = name, parent
        self._lanes: list[tuple[Track, Slice | None]] = []

    def free(self, at: int) -> int:
        for k, (_, last) in enumerate(self._lanes):
            if last is None or 0 <= last.end_ns <= at:
                return k
        self._lanes.append((Track(self._name, self._parent), None))
        return len(self._lanes) - 1

    def track(self, lane: int) -> Track:
        return self._lanes[lane][0]

    def take(self, lane: int, it: Slice) -> None:
        self._lanes[lane] = self._lanes[lane][0], it


class Picture:
    """All of a time line.  It is filled in the order of time."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.instants: list[Instant] = []
        self.counts: list[Count] = []
        self._order, self._flows = itertools.count(1), itertools.count(1)
        self._tracks: dict[Hashable, Track] = {}
        self._lanes: dict[Hashable, Lanes] = {}
        self._values: dict[Track, int] = {}

    def track(self, key: Hashable, name: str, parent: Track | None = None) -> Track:
        if key not in self._tracks:
            self._tracks[key] = Track(name, parent)
        return self._tracks[key]

    def process(self, pid: int) -> Track:
        if ("process", pid) not in self._tracks:
            self._tracks["process", pid] = Track("", None, pid)
        return self._tracks["process", pid]

    def thread(self, pid: int, tid: int) -> Track:
        key = "thread", pid, tid
        if key not in self._tracks:
            self._tracks[key] = Track("", self.process(pid), pid, tid)
        return self._tracks[key]

    def tracks(self) -> list[Track]:
        """All that have a slice, an instant or a count, and their parents."""
        used: dict[Track, None] = {}

        def use(track: Track) -> None:
            if track in used:
                return
            if track.parent is not None:
                use(track.parent)
            used[track] = None

        for every in (self.slices, self.instants, self.counts):
            for each in every:
                use(each.track)
        return list(used)

    def begin(self, track: Track, name: str, at: int, kind: str, args: Args | None = None) -> Slice:
        it = Slice(track, name, at, next(self._order), kind, args=args or {})
        self.slices.append(it)
        return it

    def begin_in_lane(
        self, key: Hashable, name: str, parent: Track, what: str, at: int, kind: str, args: Args
    ) -> Slice:
        """A slice on the first track of this key that has nothing open."""
        if key not in self._lanes:
            self._lanes[key] = Lanes(name, parent)
        lanes = self._lanes[key]
        lane = lanes.free(at)
        it = self.begin(lanes.track(lane), what, at, kind, args)
        lanes.take(lane, it)
        return it

    def end(self, it: Slice, at: int) -> None:
        it.end_ns, it.ended = max(at, it.begin_ns), next(self._order)

    def instant(self, track: Track, name: str, at: int, args: Args | None = None) -> None:
        self.instants.append(Instant(track, name, at, next(self._order), args or {}))

    def count(self, key: Hashable, name: str, parent: Track, at: int, value: int) -> None:
        """A value that stays until the next one."""
        track = self.track(key, name, parent)
        track.is_counter = True
        if self._values.get(track) != value:
            self._values[track] = value
            self.counts.append(Count(track, at, next(self._order), value))

    def arrow(self, start: Slice, to: Slice) -> None:
        if start is to or start.begin_ns > to.begin_ns:
            return
        number = next(self._flows)
        start.flows_out.append(number)
        to.flows_in.append(number)

"""Turns the tracing of rings on, and collects the events of their peers.

No peer waits for the collector.  A peer overwrites its old events, and those that were not
collected by then are counted.  If this process is killed, the peers stop by themselves
(core/trace.h).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from gpuring import native, slot_layout
from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import RingError
from gpuring.native import File, Header, Missing, Tracer
from gpuring.native.tracer import EVENT_NBYTES, TRACE_EVENTS, TRACE_NS
from gpuring.registry import directory, segment, survey
from gpuring.registry.stats import Clock
from gpuring.tracing import fences
from gpuring.tracing.fences import Fences
from gpuring.tracing.who import Known, threads_of

Events = npt.NDArray[np.uint64]
"""One row an event: turn, time_ns, what, who, and four words that depend on its kind."""

POLL_S = 0.01
"""The time between two collections of events.  A peer's table holds 4096."""
LOOK_S = 0.1
"""The time between two looks at headers, for names of peers and for rings that were replaced."""
_RESTART_S = 1.0
"""For how long a ring that was there is waited for, because it may be about to be replaced."""
_WORDS = EVENT_NBYTES // 8


@dataclass
class TracedRing:
    """One ring while it is traced, and what was collected of it.  Raises Missing, OSError."""

    name: str
    file: File
    tracer: Tracer
    header: Header
    begun_ns: int
    fences: Fences | None
    """The fences of a ring whose slots a GPU uses."""
    title: str
    """Its name, and whether it has taken the place of another ring of the trace."""
    known: Known = field(default_factory=Known)
    parts: dict[int, list[Events]] = field(default_factory=dict)
    """By peer number, in the order of their turns."""
    gaps: int = 0
    """How often it was off meanwhile, because this process was stopped."""
    clocks: list[Clock] = field(default_factory=list)
    """What a bridge that fills it has measured of the near host's clock, one after the other."""

    @property
    def missed(self) -> int:
        return sum(self.tracer.missed(number) for number in range(self.tracer.peers))

    @property
    def events(self) -> int:
        return sum(len(part) for parts in self.parts.values() for part in parts)

    def collect(self) -> bool:
        """Whether more may be there already."""
        more = False
        for number in range(self.tracer.peers):
            if raw := self.tracer.read(number):
                events: Events = np.frombuffer(raw, np.uint64).reshape(-1, _WORDS)
                self.parts.setdefault(number, []).append(events)
                more |= len(events) > TRACE_EVENTS // 4
        return more

    @property
    def near(self) -> tuple[str, str, str] | None:
        """Host, name and epoch of the ring that a bridge brings its frames from."""
        origin, epoch = slot_layout.origin(self.header.spec), self.header.link()[0]
        return (origin["host"], origin["ring"], epoch.hex()) if origin and epoch else None

    def look(self) -> None:
        self.header = Header.read(self.file.fd)
        self.known.look(self.header)
        clock = survey.clock(self.header)
        if clock is not None and clock not in self.clocks[-1:]:
            self.clocks.append(clock)


def _begin(name: str, before: int = 0) -> TracedRing:
    """`before`: how many rings of that name are traced already.  Raises Missing, RingError,
    OSError."""
    file = directory.open_to_trace(name)
    try:
        tracer, header = Tracer(file.fd), Header.read(file.fd)
        title = name
        if before:
            title += ", made again" + (f" ({before} times)" if before > 1 else "")
        seen = None if header.sync == "host" else Fences(tracer)
        ring = TracedRing(name, file, tracer, header, native.now_ns(), seen, title)
        ring.look()
    except native.Damaged as error:
        raise Missing(f"the ring that has its name is about to go: {error}") from None
    except BlockingIOError:
        raise RingError(f"ring {name!r} is being traced by another process already") from None
    return ring


class Collector:
    """Traces the rings of these names, those that take their place later, and the rings of answers
    of those that are services.  `names` empty: all rings of this host that may be traced.

    Raises RingNotFound, RingIncompatible, PermissionError, RingError, OSError.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.rings: list[TracedRing] = []
        self.trouble: dict[str, str] = {}
        """Why rings could not be traced, by their names."""
        self.threads: dict[tuple[int, int], str] = {}
        """What threads are called, by pid and thread id."""
        self._asked: set[int] = set()
        for name in names:
            directory.look(segment.check_name(name))  # or say that it is not there
            begin = partial(_begin, name)
            self.rings.append(directory.when_there(name, deadline_of(_RESTART_S), begin))
        self._find()
        self.ended_ns = native.now_ns()

    def run(self, deadline: float, ended: Callable[[], bool]) -> None:
        """Collects until the deadline, on the clock of time.monotonic, or until `ended`."""
        looked = extended = time.monotonic()
        while left_s(deadline) and not ended():
            now = time.monotonic()
            if now - extended >= TRACE_NS / 1e9 / 8:
                extended = now
                for ring in self.rings:
                    ring.gaps += not ring.tracer.go_on()
            self._look_at_fences()
            more = [ring.collect() for ring in self.rings]
            if now - looked >= LOOK_S:
                looked = now
                self._look()
            if not any(more):
                self._rest(min(deadline, now + POLL_S))
        self.ended_ns = native.now_ns()

    def _rest(self, until: float) -> None:
        """Looks at fences only, until that time on the clock of time.monotonic."""
        while left := left_s(until):
            on_gpu = self._look_at_fences()
            time.sleep(min(left, fences.LOOK_S) if on_gpu else left)

    def _look_at_fences(self) -> bool:
        """Returns whether there are any."""
        on_gpu = [ring.fences for ring in self.rings if ring.fences is not None]
        for each in on_gpu:
            each.look()
        return bool(on_gpu)

    def end(self) -> None:
        """Turns it off, and collects the rest.  May be called twice."""
        for ring in self.rings:
            if ring.fences is not None:
                ring.fences.look()
            ring.tracer.off()
        for ring in self.rings:
            while ring.collect():
                pass
        self._asked.clear()  # there may be more threads by now
        for ring in self.rings:
            self._look_at(ring)

    def _look_at(self, ring: TracedRing) -> None:
        with contextlib.suppress(native.Damaged):  # it was removed: what was seen before holds
            ring.look()
        for pid in ring.known.here - self._asked:
            self._asked.add(pid)
            self.threads |= {(pid, tid): name for tid, name in threads_of(pid)}

    def _look(self) -> None:
        for ring in self.rings:
            self._look_at(ring)
        self._find()

    def _find(self) -> None:
        traced = {ring.name: ring.file.fd for ring in self.rings}
        times = Counter(ring.name for ring in self.rings)
        for name in self._wanted():
            try:
                if name in traced and not segment.is_replaced(name, traced[name]):
                    continue
                self.rings.append(_begin(name, times[name]))
                self.trouble.pop(name, None)
            except (Missing, FileNotFoundError):
                continue
            except (RingError, OSError) as error:
                self.trouble[name] = str(error)

    def _wanted(self) -> Iterator[str]:
        if not self.names:
            yield from segment.names()
            return
        for name in segment.names():
            of = segment.ANSWERS.fullmatch(name)
            if name in self.names or (of and of[1] in self.names):
                yield name

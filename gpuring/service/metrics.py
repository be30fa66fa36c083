"""What only an engine knows of its calls: how long they waited, in which batches they were taken,
and for how long they were worked on."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_SECONDS = (*(m * 10.0**e for e in range(-5, 1) for m in (1, 2.5, 5)), 10.0)
_SIZES = tuple(2.0**e for e in range(11))
_MANY_CLIENTS = 256
"""From so many on, clients that have left are forgotten."""


@dataclass(frozen=True)
class Histogram:
    """How often values of some size were seen."""

    bounds: tuple[float, ...]
    """The largest value of each bucket but the last one, which takes all larger ones."""
    counts: tuple[int, ...]
    """How many values each bucket has."""
    total: float
    """The sum of all values."""

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


@dataclass(frozen=True)
class ClientMetrics:
    """What an engine did for one client."""

    calls: int
    """How many calls of this client it has taken."""
    queue_s: float
    """The sum of the seconds that these calls had waited."""
    compute_s: float
    """Their share of `Metrics.compute_s`, in seconds.  All calls of a batch have the same share."""


@dataclass(frozen=True)
class Metrics:
    """What an engine has measured.  Times are in seconds."""

    batch_size: Histogram
    """How many calls each batch had."""
    queue_s: Histogram
    """How long each call had waited: from when it was sent until the engine had its batch."""
    compute_s: Histogram
    """How long each batch took: from when the engine had it until its `with` block ended.  A GPU
    may still be at work then."""
    clients: Mapping[int, ClientMetrics]
    """By `call.client`.  Clients that have left may be missing."""


class _Tally:
    """A histogram that grows."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


@dataclass
class _Client:
    calls: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0


@dataclass
class Measures:
    """What an engine writes down of its batches.  Another thread may read it."""

    _sizes: _Tally = field(default_factory=lambda: _Tally(_SIZES))
    _queues: _Tally = field(default_factory=lambda: _Tally(_SECONDS))
    _computes: _Tally = field(default_factory=lambda: _Tally(_SECONDS))
    _clients: dict[int, _Client] = field(default_factory=dict)

    def took(self, waits: Collection[tuple[int, float]], present: Collection[int]) -> None:
        """Counts a batch: of each call the client, and the seconds that it had waited.  `present`
        are the clients that are there."""
        self._sizes.add(len(waits))
        for number, queue_s in waits:
            self._queues.add(queue_s)
            client = self._clients.setdefault(number, _Client())
            client.calls += 1
            client.queue_s += queue_s
        if len(self._clients) >= _MANY_CLIENTS:
            for number in self._clients.keys() - present:
                self._clients.pop(number)

    def ended(self, numbers: Collection[int], compute_s: float) -> None:
        """Counts the end of a batch: of each call the client, and the seconds since it was had."""
        self._computes.add(compute_s)
        for number in numbers:
            self._clients.setdefault(number, _Client()).compute_s += compute_s / len(numbers)

    def read(self) -> Metrics:
        clients = {
            number: ClientMetrics(one.calls, one.queue_s, one.compute_s)
            for number, one in list(self._clients.items())
        }
        return Metrics(self._sizes.read(), self._queues.read(), self._computes.read(), clients)

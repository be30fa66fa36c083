"""An engine's own figures for Prometheus, to be served by the engine.

    from prometheus_client import REGISTRY, start_http_server
    from gpuring.service.prometheus import EngineCollector

    REGISTRY.register(EngineCollector(server))
    start_http_server(9751)

An engine of several services gives all of its servers to one collector.  It needs
`pip install 'gpuring[tools]'`.  `gpuring metrics` serves what the headers of services have, for all
processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuring.service.metrics import Histogram
from gpuring.service.server import Server

_ENDS = ("answered", "failed", "expired", "cancelled", "dropped", "undelivered")
"""Each call that an engine has had has one of these ends (Counts)."""


class EngineCollector(Collector):
    """The metrics of one or several engines of this process, made anew for each scrape."""

    def __init__(self, *servers: Server) -> None:
        """`servers`: the engines.  They measure from now on.  Raises TypeError."""
        self._servers = servers
        for server in servers:
            if not isinstance(server, Server):
                raise TypeError(f"figures are those of what serve() returned, not {server!r}")
            server.metrics()

    def describe(self) -> list[Metric]:
        """Nothing is known before a scrape; without this, registering would be one."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What a scrape gets."""
        size = _histogram("gpuring_batch_size", "Calls of a batch.")
        queue = _histogram("gpuring_queue_seconds", "From the request of a call to its batch.")
        compute = _histogram("gpuring_compute_seconds", "From a batch to the end of its block.")
        ends = _counter("gpuring_calls_total", "Calls by what became of them.", "end")
        redelivered = _counter(
            "gpuring_calls_redelivered_total", "Calls that another engine had when it died."
        )
        filled = _counter(
            "gpuring_fill_seconds_total", "For how long batches were waited for to fill."
        )
        calls = _counter("gpuring_client_calls_total", "Calls taken of a client.", "client")
        waited = _counter(
            "gpuring_client_queue_seconds_total", "For how long they waited.", "client"
        )
        worked = _counter(
            "gpuring_client_compute_seconds_total", "Their share of compute_seconds.", "client"
        )
        for server in self._servers:
            seen, name = server.metrics(), server.name
            for family, histogram in (
                (size, seen.batch_size), (queue, seen.queue_s), (compute, seen.compute_s),
            ):  # fmt: skip
                family.add_metric([name], _buckets(histogram), histogram.total)
            for end in _ENDS:
                ends.add_metric([name, end], getattr(server.counts, end))
            redelivered.add_metric([name], server.counts.redelivered)
            filled.add_metric([name], server.counts.waited_s)
            for number, client in seen.clients.items():
                labels = [name, str(number)]
                calls.add_metric(labels, client.calls)
                waited.add_metric(labels, client.queue_s)
                worked.add_metric(labels, client.compute_s)
        yield from (size, queue, compute, ends, redelivered, filled, calls, waited, worked)


def _histogram(name: str, documentation: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, documentation, labels=("service",))


def _counter(name: str, documentation: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, documentation, labels=("service", *labels))


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus wants them: each bucket counts the values of those before as well."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))

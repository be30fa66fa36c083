"""The same figures for OpenTelemetry: sent by OTLP over HTTP, instead of being fetched.

collector.py alone has the figures, their names and their meanings.  A metric of Prometheus becomes
a gauge or a sum, and keeps its name and labels, so that one set of alerts and dashboards fits both
ways.  OpenTelemetry adds `_total` and the like again.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gpuring import __version__

_REFUSED = re.compile(r"\[Errno -?\d+\] (\w[\w ]+)")
_BASE = {"seconds": "s", "bytes": "By"}
_COUNTED = ("frames", "slots", "sequences", "deaths", "rings", "peers", "members")


class OtlpExporter:
    """Sends what a collector finds to a receiver of OTLP."""

    def __init__(
        self,
        collector: Collector,
        address: str | None = None,
        failing: Callable[[str], object] = lambda why: None,
    ) -> None:
        """`address`: that of the receiver, such as http://localhost:4318.  None is that of the
        environment (OTEL_EXPORTER_OTLP_ENDPOINT and the like), or else http://localhost:4318.
        `failing` is told why each time that a try fails, before the next one."""
        self._collector = collector
        named = os.environ.get(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT)
        base = os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT)
        self.address = address or named or base or "http://localhost:4318"
        endpoint = address and f"{address.rstrip('/')}/v1/metrics"
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        self._told = _Told(failing)
        self._resource = _resource()
        self._begun_ns = time.time_ns()

    def send(self) -> str | None:
        """Looks at all rings and sends what it finds.  Returns None, or why nobody has taken it.

        Tries again for 10 s, or for as long as OTEL_EXPORTER_OTLP_TIMEOUT says."""
        scope = ScopeMetrics(InstrumentationScope("gpuring", __version__), self._look(), "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        self._told.lines.clear()
        if self._exporter.export(data) is MetricExportResult.SUCCESS:
            return None
        return self._told.why()

    def _look(self) -> list[Metric]:
        families = list(self._collector.collect())
        now_ns = time.time_ns()
        return [self._metric(each, now_ns) for each in families if each.samples]

    def _metric(self, family: Family, now_ns: int) -> Metric:
        points = [
            NumberDataPoint(sample.labels, self._begun_ns, now_ns, float(sample.value))
            for sample in family.samples
        ]
        counter = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        data = counter if family.type == "counter" else Gauge(points)
        return Metric(family.name, family.documentation, unit(family.name), data)


class _Told(logging.Handler):
    """Keeps what the exporter logs, which would be several lines for each try."""

    def __init__(self, failing: Callable[[str], object]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._failing = failing
        logger = logging.getLogger("opentelemetry.exporter")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().rstrip("."))
        self._failing(self.why())

    def why(self) -> str:
        """Why it failed: in the words of the system, if that refused, or else in its last line."""
        refused = [found[1] for line in self.lines if (found := _REFUSED.search(line))]
        return ["it does not say why", *self.lines[-1:], *refused][-1]


def unit(name: str) -> str:
    """The unit that a metric of this name has, as OpenTelemetry writes it.  Empty: it has none."""
    for word in reversed(name.split("_")):
        if word in _BASE:
            return _BASE[word]
        if word in _COUNTED:
            return f"{{{word[:-1]}}}"
    return ""


def _resource() -> Resource:
    """Who sends: this host, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
    host = socket.gethostname()
    ours = {
        "service.name": "gpuring",
        "service.version": __version__,
        "service.instance.id": host,  # Prometheus makes the label `instance` of it
        "host.name": host,
    }
    return Resource.create().merge(Resource(ours)).merge(OTELResourceDetector().detect())

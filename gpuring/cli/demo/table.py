"""The table of consumers, live while the demo runs and once more at its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpuring.cli.text import Table, columns, table
from gpuring.printable import counted
from gpuring.registry.stats import RingStats

from ..measure.figures import Distribution
from .crew import Hearing
from .records import Ints, Outcome

RATE_WINDOW_S = 1.0
RECENT = 4096
"""Percentiles on the live table are of this many latest frames."""
KINDS = {
    "analyser": ("analyser", "lossless"),
    "edges 1": ("edges", "lossless, shared"),
    "edges 2": ("edges", "lossless, shared"),
    "viewer": ("viewer", "lossy, newest"),
}
"""By process: subscription and delivery policy."""


class LiveTable:
    """Shows `crew` at work on `console`; without `live` it only keeps the books."""

    def __init__(self, console: Console, crew: Hearing, *, live: bool) -> None:
        self.crew = crew
        self.max_lag = {subscription: 0 for subscription, _ in KINDS.values()}
        self._history: dict[str, deque[tuple[float, int]]] = {
            name: deque(maxlen=64) for name in ("producer", *KINDS)
        }
        self._least: dict[str, int] = {}
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> LiveTable:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, stats: RingStats) -> None:
        """One look at the ring and at what the processes have said."""
        lag = {subscription.name: subscription.lag for subscription in stats.subscriptions}
        for name, frames in lag.items():
            self.max_lag[name] = max(self.max_lag.get(name, 0), frames)
        if self._live is None:
            return
        title = (
            f"{stats.name} · {counted(stats.slots, 'slot')} · frame {stats.cursor - stats.slots}"
        )
        rows: list[tuple[str, ...]] = [
            ("producer", "", *self._pace("producer"), "", "", "", ""),
        ]
        for name, (subscription, policy) in KINDS.items():
            progress = self.crew.progress.get(name)
            row = (name, policy, *self._pace(name), str(lag.get(subscription, "")))
            lost = str(progress.lost) if progress else ""
            rows.append((*row, lost, *percentiles(self.crew.latest_ns[name][-RECENT:])))
        shown = laid("lag", rows, self._console.width, self._least)
        lines = (title, "dim"), (shown.head, "bold"), *((row, "") for row in shown.rows)
        notes = ((note, "dim") for note in shown.note())
        self._live.update(Text("\n").join(Text(*line) for line in (*lines, *notes)), refresh=True)

    def _pace(self, name: str) -> tuple[str, str]:
        """Frames so far, and frames per second lately."""
        report, progress = self.crew.reports.get(name), self.crew.progress.get(name)
        if report is not None:
            return str(report.frames), f"{report.frames_per_s:.0f}"
        if progress is None:
            return "", ""
        now, history = time.monotonic(), self._history[name]
        history.append((now, progress.frames))
        while len(history) > 2 and history[1][0] < now - RATE_WINDOW_S:
            history.popleft()
        seconds = history[-1][0] - history[0][0]
        rate = f"{(progress.frames - history[0][1]) / seconds:.0f}" if seconds else ""
        return str(progress.frames), rate


def final(outcome: Outcome) -> Table:
    producer = outcome.producer
    rows: list[tuple[str, ...]] = [
        ("producer", "", str(producer.frames), f"{producer.frames_per_s:.0f}", "", "", "", "")
    ]
    for report in outcome.consumers:
        subscription, policy = KINDS[report.name]
        pace = str(report.frames), f"{report.frames_per_s:.0f}"
        lag, lost = str(outcome.max_lag[subscription]), str(report.lost.sum())
        rows.append((report.name, policy, *pace, lag, lost, *percentiles(report.latency_ns)))
    return laid("max lag", rows, columns())


def laid(
    lag: str,
    rows: Sequence[tuple[str, ...]],
    width: int | None,
    least: dict[str, int] | None = None,
) -> Table:
    """least: as `text.table` has it."""
    right = ("frames", "1/s", lag, "lost", "p50", "p99")
    head, drop = ("process", "policy", *right), ("1/s", lag, "frames")
    return table(head, rows, right=right, drop=drop, width=width, least=least)


def percentiles(latencies_ns: Sequence[int] | Ints) -> tuple[str, str]:
    """p50 and p99 with a unit; empty without data."""
    if not len(latencies_ns):
        return "", ""
    values = Distribution.of(latencies_ns)
    return duration(values.p50), duration(values.p(99))


def duration(ns: float) -> str:
    """Three figures and a unit that suits: 12.3 µs, 4.56 ms."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            value = ns / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{ns:.0f} ns"

"""The table of consumers, live while the demo runs and once more at its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gpuring.registry.stats import RingStats

from .crew import Hearing
from .records import Outcome

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
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> LiveTable:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, stats: RingStats) -> None:
        """One look at the ring and at what the processes have said."""
        lag = {subscription.name: subscription.lag for subscription in stats.subscriptions}
        for name, frames in lag.items():
            self.max_lag[name] = max(self.max_lag.get(name, 0), frames)
        if self._live is None:
            return
        title = f"{stats.name} · {stats.slots} slots · frame {stats.cursor - stats.slots}"
        rows: list[tuple[str, ...]] = [
            ("producer", "", *self._pace("producer"), "", "", "", ""),
        ]
        for name, (subscription, policy) in KINDS.items():
            progress = self.crew.progress.get(name)
            row = (name, policy, *self._pace(name), str(lag.get(subscription, "")))
            lost = str(progress.lost) if progress else ""
            rows.append((*row, lost, *percentiles(self.crew.latest_ns[name][-RECENT:])))
        self._live.update(fitted(self._console, title, "lag", rows), refresh=True)

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


def final(outcome: Outcome, console: Console) -> Table:
    """The whole run."""
    producer = outcome.producer
    rows: list[tuple[str, ...]] = [
        ("producer", "", str(producer.frames), f"{producer.frames_per_s:.0f}", "", "", "", "")
    ]
    for report in outcome.consumers:
        subscription, policy = KINDS[report.name]
        pace = str(report.frames), f"{report.frames_per_s:.0f}"
        lag, lost = str(outcome.max_lag[subscription]), str(report.lost.sum())
        rows.append((report.name, policy, *pace, lag, lost, *percentiles(report.latency_ns)))
    return fitted(console, None, "max lag", rows)


def fitted(console: Console, title: str | None, lag: str, rows: Sequence[tuple[str, ...]]) -> Table:
    """The rows as a table, without columns for which the console has no room.  Its caption says
    which those are."""
    headings = ("process", "policy", "frames", "1/s", lag, "lost", "p50", "p99")
    roomy, left_out = console.options.update(max_width=1000), list[str]()
    for heading in ("1/s", lag, "frames", ""):
        table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        table.title_style = table.caption_style = "dim"
        shown = [k for k, each in enumerate(headings) if each not in left_out]
        for k in shown:
            style = "cyan" if k == 0 else None
            table.add_column(
                headings[k], style=style, justify="left" if k < 2 else "right", no_wrap=True
            )
        for row in rows:
            table.add_row(*(row[k] for k in shown))
        if console.measure(table, options=roomy).maximum <= console.width:
            break
        left_out.append(heading)
    if any(left_out):
        table.caption = f"(not shown, for lack of room: {', '.join(filter(None, left_out))})"
    return table


def percentiles(latencies_ns: object) -> tuple[str, str]:
    """p50 and p99 with a unit; empty without data."""
    values = np.asarray(latencies_ns, np.int64)
    if not values.size:
        return "", ""
    p50, p99 = np.percentile(values, (50, 99))
    return duration(p50), duration(p99)


def duration(ns: float) -> str:
    """Three figures and a unit that suits: 12.3 µs, 4.56 ms."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            value = ns / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{ns:.0f} ns"

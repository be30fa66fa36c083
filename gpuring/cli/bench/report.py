"""The report, made from the figures alone: a self-contained HTML file, and lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from . import plots
from .figures import Figure
from .targets import Verdict, judge, one_more_consumer_us

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-bottom: .2rem; }
table { border-collapse: collapse; font-size: .85rem; margin: .6rem 0; }
th, td { text-align: left; padding: .15rem .7rem .15rem 0; border-bottom: 1px solid #ddd;
         vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.met { color: #1c7a3d; } .missed { color: #b3261e; font-weight: 600; } .none { color: #888; }
img { max-width: 100%; } figure { margin: 1rem 0; } figcaption { color: #555; font-size: .85rem; }
.failed { background: #fde8e6; padding: .6rem 1rem; border-left: 4px solid #b3261e; }
"""

READING = """
<p>Every figure is the median of one run's distribution; p1 and p99, and the bands from p10 to p90,
say how far to trust it. Only figures of this page may be divided by each other. Before each clock
ran, frames were written and checked as wholes; in runs with kernels every single frame's first 4
KiB were checked as well.</p>
<p><b>What flatters gpuring here:</b> processes do nothing but hand frames over; kernels are tiny;
all processes spin and have a core; caches are warm; "nobody waiting" bursts have producer and
consumer in one process. <b>What flatters the others:</b> peers that copy are measured at 4 KiB as
well, where a copy costs nothing. <b>Not shown:</b> several GPUs, real models, a machine short of
cores, memory pressure, days of running (see the soak tests).</p>
<p>Without MPS the kernels of two processes never run together: each hand-over costs a context
switch of the GPU, shared by the frames in flight. With MPS it does not, but a client that is
killed with GPU work pending takes every other client along.</p>
"""


# ---- a terminal ---------------------------------------------------------------------------------


def line(figure: Figure) -> str:
    """One figure."""
    head = f"{figure.group:<11} {figure.program:<12} {figure.name}, {_setting(figure)}"
    if figure.values is None:
        return f"{head}: skipped: {figure.skipped}"
    values = figure.values
    return f"{head}: {_n(values.p50)} {figure.unit} ({_n(values.p(1))} … {_n(values.p(99))})"


def verdict(figures: Iterable[Figure]) -> str:
    """The targets that could be measured, a line each."""
    judged = [each for each in judge(figures) if each.met is not None]
    return "\n".join(
        f"{each.word:<8} {each.name}: {_n(each.value)} ({each.goal}; {each.basis})"
        for each in judged
    )


# ---- the page -----------------------------------------------------------------------------------


def html(machine: Mapping[str, Any], figures: Iterable[Figure], seconds: float) -> str:
    """The whole page."""
    kept = list(figures)
    drawn = plots.available()
    why = "" if drawn else "<p>Plots are left out: <code>pip install 'gpuring[bench]'</code>.</p>"
    sections = [
        f"<h1>gpuring bench</h1>{_failures(kept)}{_machine(machine, seconds)}{why}",
        f"<h2>Targets</h2>{_targets(judge(kept))}",
        f"<h2>How to read this</h2>{READING}",
    ]
    for title, parts, table in (
        ("Throughput", (plots.throughput,), ("throughput",)),
        ("Latency", (plots.latency,), ("latency",)),
        ("Host time", (plots.verbs, plots.host_cost), ("transitions",)),
        ("Waiting and recovery", (), ("waiting", "recovery")),
        ("Beside what people use today", (plots.peers,), ()),
    ):
        body = "".join(_plot(each) for part in parts if drawn for each in part(kept))
        if title == "Host time":
            body += _slopes(kept)
        own = [f for f in kept if f.group in table and f.values is not None]
        small = not parts
        if own:
            listed = _figures(own)
            body += listed if small else _folded(f"all {len(own)} figures", listed)
        if body:
            sections.append(f"<h2>{title}</h2>{body}")
    skipped = [f for f in kept if f.values is None]
    if skipped:
        sections.append(f"<h2>Skipped</h2>{_skipped(skipped)}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gpuring bench</title>'
        f"<style>{STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _failures(figures: list[Figure]) -> str:
    failed = [f for f in figures if f.failed]
    if not failed:
        return ""
    rows = "".join(f"<li>{escape(line(f))}</li>" for f in failed)
    return (
        f'<div class="failed"><b>Wrong data crossed: this run has failed.</b><ul>{rows}</ul></div>'
    )


def _machine(machine: Mapping[str, Any], seconds: float) -> str:
    rows = {**machine, "took": f"{seconds:.0f} s"}
    return _table(
        (), [(escape(key), escape(_plain(value))) for key, value in rows.items() if value != []]
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, list):
        return "; ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value)


def _targets(judged: Iterable[Verdict]) -> str:
    kinds = {True: "met", False: "missed", None: "none"}
    rows = [
        (
            escape(each.name),
            escape(each.goal),
            "" if each.value is None else _n(each.value),
            f'<span class="{kinds[each.met]}">{each.word}</span>',
            escape(each.basis),
        )
        for each in judged
    ]
    return _table(("target", "goal", "here", "", "computed from"), rows)


def _slopes(figures: list[Figure]) -> str:
    rows = []
    for sync in ("host", "timeline", "event"):
        for mps in (None,) if sync == "host" else (False, True):
            where = {"sync": sync} if mps is None else {"sync": sync, "mps": mps}
            slope = [one_more_consumer_us(figures, loaded=on, **where) for on in (False, True)]
            if slope != [None, None]:
                label = sync if mps is None else f"{sync}, MPS {'on' if mps else 'off'}"
                rows.append((label, *("" if us is None else f"{us:.3f}" for us in slope)))
    if not rows:
        return ""
    head = ("", "alone, µs", "beside live consumers, µs")
    return f"<h3>One more lossless consumer adds to the producer</h3>{_table(head, rows)}"


def _figures(figures: list[Figure]) -> str:
    head = ("what", "program", "setting", "unit", "p1", "p50", "p99", "p99.9", "n", "verified")
    rows = []
    for f in figures:
        assert f.values is not None
        numbers = [_n(f.values.p(quantile)) for quantile in (1, 50, 99, 99.9)]
        words = [escape(word) for word in (f.name, f.program, _setting(f), f.unit)]
        rows.append((*words, *numbers, str(f.values.n), escape(f.verified)))
    return _table(head, rows, numeric=(4, 5, 6, 7, 8))


def _skipped(figures: list[Figure]) -> str:
    rows = [
        (escape(f.group), escape(f.program), f"{escape(f.name)} {escape(_setting(f))}",
         escape(f.skipped))
        for f in figures
    ]  # fmt: skip
    return _table(("group", "program", "what", "why"), rows)


def _plot(plot: plots.Plot) -> str:
    caption = f"<figcaption>{escape(plot.caption)}</figcaption>" if plot.caption else ""
    title = escape(plot.title)
    return f'<h3>{title}</h3><figure><img alt="{title}" src="{plot.svg}">{caption}</figure>'


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _table(
    head: Iterable[str], rows: Iterable[tuple[str, ...]], numeric: tuple[int, ...] = ()
) -> str:
    cells = "".join(f"<th>{each}</th>" for each in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="n">{each}</td>' if at in numeric else f"<td>{each}</td>"
            for at, each in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{cells}</tr>' if cells else ''}{body}</table>"


def _setting(figure: Figure) -> str:
    return " ".join(
        f"{key}={ ({True: 'yes', False: 'no'}[value] if isinstance(value, bool) else value) }"
        for key, value in figure.setting.items()
    )


def _n(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

"""The report, made from the figures alone: a self-contained HTML file, and lines for a terminal."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from gpuring.cli.bench.summary import (
    GPU,
    HOST,
    WIDTH,
    Headline,
    baselines,
    busy,
    measured_where,
    rows,
    shown,
)
from gpuring.cli.bench.summary import verdict as verdict_of
from gpuring.cli.measure.figures import BEYOND, Figure, line, number, setting
from gpuring.cli.measure.stored import Run

from . import plots
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

READING = f"""
<p>A figure is the median of one run's distribution. A percentile is given if at least {BEYOND}
values lie beyond it: p90 needs {10 * BEYOND}, p99 needs {100 * BEYOND:,} and p99.9 needs {
    1000
    * BEYOND:,}. Figures of this page may be divided by each other; figures of different runs may
not. Frames were written and checked as wholes before each clock ran. In runs with kernels the
first 4 KiB of every single frame were checked as well.</p>
<p><b>What flatters gpuring here:</b> processes do nothing but hand frames over. The kernels are
tiny. Caches are warm. The host time of the verbs is taken with producer and consumer in one
process. <b>What flatters the others:</b> rivals that copy are measured at 4 KiB as well, where
a copy costs nothing. <b>Not shown:</b> several GPUs, real models, a machine short of cores,
memory pressure, days of running (see the soak tests).</p>
<p>Without MPS the kernels of two processes never run together. Each hand-over costs a context
switch of the GPU, which the frames in flight share. With MPS it does not, but a client that is
killed with GPU work pending takes every other client with it.</p>
"""


# ---- a terminal ---------------------------------------------------------------------------------


def verdict(figures: Iterable[Figure]) -> str:
    """How many targets were met, and which were not."""
    judged = [each for each in judge(figures) if each.met is not None]
    missed = [each for each in judged if not each.met]
    if not judged:
        return "No target could be computed from what was measured."
    lines = [f"{len(judged) - len(missed)} of {len(judged)} targets met."]
    for each in missed:
        said = f"NOT met: {each.name}: {number(each.value)} ({each.goal}; {each.basis})"
        lines += textwrap.wrap(said, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


# ---- the page -----------------------------------------------------------------------------------


def write(run: Run, folder: Path) -> Path:
    """Writes report.html, and its plots as files of their own, which the page does not need."""
    drawn = _drawn(run.figures)
    for plot in (plot for _, found in drawn for plot in found):
        (folder / f"{plot.name}.svg").write_bytes(plot.svg)
    page = folder / "report.html"
    page.write_text(html(run, dict(drawn)))
    return page


SECTIONS = (
    ("Throughput", (plots.throughput,), ("throughput",)),
    ("Latency", (plots.latency,), ("latency",)),
    ("Host time", (plots.verbs,), ("transitions",)),
    ("Waiting and recovery", (), ("waiting", "recovery")),
    ("Beside what people use today", (plots.rivals,), ()),
)


def _drawn(figures: list[Figure]) -> list[tuple[str, list[plots.Plot]]]:
    if not plots.available():
        return []
    return [(title, [p for part in parts for p in part(figures)]) for title, parts, _ in SECTIONS]


def html(run: Run, drawn: Mapping[str, Iterable[plots.Plot]]) -> str:
    """The whole page.  `drawn` has the plots of each section, and none without matplotlib."""
    kept = run.figures
    why = "" if drawn else "<p>Plots are left out: <code>pip install 'gpuring[bench]'</code>.</p>"
    judged = judge(kept)
    sections = [
        f"<h1>What a hand-over costs</h1>{_failures(kept)}{_headlines(kept)}{_busy(run)}{why}",
        f"<h2>Machine</h2>{_machine(run.machine, run.seconds)}",
    ]
    if any(each.met is not None for each in judged):
        sections.append(f"<h2>Targets</h2>{_targets(judged)}")
    sections.append(f"<h2>How to read this</h2>{READING}")
    for title, parts, table in SECTIONS:
        body = "".join(_plot(each) for each in drawn.get(title, ()))
        if title == "Host time":
            body += _slopes(kept)
        own = [f for f in kept if f.group in table and f.values is not None]
        if own:
            listed = _figures(own)
            body += _folded(f"all {len(own)} figures", listed) if parts else listed
        if body:
            sections.append(f"<h2>{title}</h2>{body}")
    skipped = [f for f in kept if f.values is None]
    if skipped:
        sections.append(_folded(f"{len(skipped)} figures were not measured", _skipped(skipped)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>gpuring benchmarks</title><style>{STYLE}</style></head>"
        f"<body>{''.join(sections)}</body></html>\n"
    )


def _headlines(figures: list[Figure]) -> str:
    """Three figures of each kind of ring beside its baseline, and a verdict."""
    said = []
    for where in measured_where(figures):
        headlines = HOST if where.mps is None else on_gpu(figures)
        found = rows(figures, where, headlines)
        if not found:
            continue
        kinds = {True: "met", False: "missed", None: "none"}
        head, cells = shown(found)
        listed = [
            (*map(escape, each[:4]), *(_marked(kinds[row.good], word) for word in each[4:]))
            for row, each in zip(found, cells, strict=True)
        ]
        means = "; ".join(baselines(found, headlines))
        said.append(
            f"<h3>On {escape(str(where))}: {verdict_of(found)}</h3>"
            f"{_table(head, listed, numeric=(1, 2, 3))}"
            + (f"<p class='none'>The baselines: {escape(means)}.</p>" if means else "")
        )
    return "".join(said)


def _busy(run: Run) -> str:
    return "".join(f"<p>{escape(each)}</p>" for each in busy(run.machine))


def on_gpu(figures: list[Figure]) -> tuple[Headline, ...]:
    """Compares with the baseline in C where that was measured, because it is two processes, too."""
    if not any(f.program == "floor" and f.values is not None for f in figures):
        return GPU
    means = "the leanest ring in C and CUDA (floor.cu)"
    latency, rate, host = (
        replace(each, program="floor", means=means, baseline_figure="") for each in GPU
    )
    return (
        replace(latency, bound=1.3, baseline_setting={"gate": "stream"}),
        replace(rate, bound=0.8, baseline_setting=rate.setting),
        replace(host, bound=1.5, baseline_setting=host.setting),
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
    listed = [
        (
            escape(each.name),
            escape(each.goal),
            "" if each.value is None else number(each.value),
            _marked(kinds[each.met], each.word),
            escape(each.basis),
        )
        for each in judged
        if each.met is not None
    ]
    hidden = sum(each.met is None for each in judged)
    more = (
        f"<p class='none'>{hidden} more need figures that were not measured.</p>" if hidden else ""
    )
    return _table(("target", "goal", "here", "", "computed from"), listed) + more


def _marked(kind: str, word: str) -> str:
    return f'<span class="{kind}">{escape(word)}</span>'


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
        numbers = [number(f.values.given(quantile)) for quantile in (1, 50, 99, 99.9)]
        words = [escape(word) for word in (f.name, f.program, setting(f), f.unit)]
        rows.append((*words, *numbers, str(f.values.n), escape(f.verified)))
    return _table(head, rows, numeric=(4, 5, 6, 7, 8))


def _skipped(figures: list[Figure]) -> str:
    rows = [
        (escape(f.group), escape(f.program), f"{escape(f.name)} {escape(setting(f))}",
         escape(f.skipped))
        for f in figures
    ]  # fmt: skip
    return _table(("group", "program", "what", "why"), rows)


def _plot(plot: plots.Plot) -> str:
    caption = f"<figcaption>{escape(plot.caption)}</figcaption>" if plot.caption else ""
    title = escape(plot.title)
    source = "data:image/svg+xml;base64," + base64.b64encode(plot.svg).decode()
    return f'<h3>{title}</h3><figure><img alt="{title}" src="{source}">{caption}</figure>'


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

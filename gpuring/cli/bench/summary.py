"""What a run says on a terminal: three figures, each with its baseline, and a verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..measure.figures import BEYOND, Figure, Value, select
from ..measure.settings import FRAME_NBYTES, SLOTS
from ..measure.stored import Run
from ..text import table
from .baselines import ALONE, PIPE, PIPES, WORD
from .handover import VERBS

WIDTH = 80


RATE: dict[str, Value] = {
    "slots": SLOTS, "nbytes": FRAME_NBYTES, "consumers": 1, "lossless": True, "members": 1,
    "producers": 1, "batch": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Headline:
    """One of the three: a figure of the ring, and one of its baseline."""

    name: str
    group: str
    figure: str
    setting: Mapping[str, Value]
    program: str
    """The baseline..."""
    means: str
    """... in words ..."""
    bound: float
    """... and up to which ratio to that the ring is called good; from which one, if at_least."""
    at_least: bool = False
    tail: bool = False
    """Whether p99 is shown, too."""
    baseline_figure: str = ""
    """If it has another name."""
    baseline_setting: Mapping[str, Value] = field(default_factory=dict)


HOST = (
    Headline(
        "one-way latency", "latency", "one-way", {"kernel": False},
        WORD, "a word in shared memory that both processes watch", 10, tail=True,
    ),
    Headline(
        "throughput", "throughput", "frames/s", {**RATE, "kernel": False},
        PIPES, "slot numbers through two pipes, 8 in flight", 1, at_least=True,
    ),
    Headline(
        "wake-up", "waiting", "wake-up", {},
        PIPE, "a reader asleep at a pipe until something is written", 2, tail=True,
    ),
)  # fmt: skip
GPU = (
    Headline(
        "one-way latency", "latency", "one-way", {"kernel": True, "busy": False},
        WORD, "the same kernels, and a word in shared memory that both watch", 1.5, tail=True,
    ),
    Headline(
        "throughput", "throughput", "frames/s", {**RATE, "kernel": True},
        ALONE, "the same kernels on one stream of one process", 0.5, at_least=True,
    ),
    Headline(
        "host time", "transitions", "host time per frame", {"kernel": False, "side": "producer"},
        "cuda-bindings", "one kernel launch, beside claim and publish together", 1,
        baseline_figure="kernel launch",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Where:
    """Which rings a headline is of."""

    sync: str
    mps: bool | None
    """None in host memory."""

    @property
    def setting(self) -> dict[str, Value]:
        return {"sync": self.sync} if self.mps is None else {"sync": self.sync, "mps": self.mps}

    def __str__(self) -> str:
        if self.mps is None:
            return "host memory"
        return f"a GPU (sync={self.sync}, MPS {'on' if self.mps else 'off'})"


def measured_where(figures: Iterable[Figure]) -> list[Where]:
    found = {
        Where(str(f.setting["sync"]), bool(f.setting["mps"]) if "mps" in f.setting else None): None
        for f in figures
        if f.program == "gpuring" and f.group == "throughput" and f.values is not None
    }
    return list(found)


@dataclass(frozen=True)
class Row:
    """A percentile of a headline, of the ring and of its baseline."""

    headline: str
    label: str
    ours: str
    theirs: str
    ratio: float | None
    """None if the baseline was not measured."""
    good: bool | None
    bound: str

    @property
    def cells(self) -> tuple[str, ...]:
        if self.ratio is None:
            return (self.label, self.ours, "", "", "")
        word = f"{'good' if self.good else 'NOT good'} ({self.bound})"
        return (self.label, self.ours, self.theirs, f"{three(self.ratio)} ×", word)


def shown(rows: Iterable[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and cells; without the columns that would be empty."""
    kept = list(rows)
    head = ("", "this ring", "baseline", "ratio", "verdict")
    columns = len(head) if any(row.good is not None for row in kept) else 2
    return head[:columns], [row.cells[:columns] for row in kept]


def verdict(rows: Iterable[Row]) -> str:
    judged = [row.good for row in rows]
    good, bad, unknown = (judged.count(each) for each in (True, False, None))
    if not good and not bad:
        return "not compared"
    if not bad and not unknown:
        return "all good"
    counts = (good, "good"), (bad, "NOT good"), (unknown, "not compared")
    return ", ".join(f"{n} {word}" for n, word in counts if n)


def text(run: Run, gpu: tuple[Headline, ...] = GPU) -> str:
    """The whole summary, no line of it wider than 80 columns.  gpu: headlines of rings on GPUs."""
    parts = [_machine(run.machine, run.seconds), ""]
    for where in measured_where(run.figures):
        parts += [*_place(where, run.figures, HOST if where.mps is None else gpu), ""]
    return "\n".join([*parts, *_wrap(_notes(run))])


def rows(figures: Iterable[Figure], where: Where, headlines: Iterable[Headline]) -> list[Row]:
    """A row for each headline that was measured."""
    found, kept = [], list(figures)
    for headline in headlines:
        ours = select(kept, headline.group, headline.figure, "gpuring", **where.setting,
                      **headline.setting)  # fmt: skip
        name = headline.baseline_figure or headline.figure
        theirs = [
            figure
            for figure in select(kept, headline.group, name, headline.program)
            if all(
                figure.setting.get(key, value) == value
                for key, value in {**where.setting, **headline.baseline_setting}.items()
            )
        ]
        if ours:
            found += list(_rows(headline, ours[0], theirs[0] if theirs else None))
    return found


def _rows(headline: Headline, ours: Figure, theirs: Figure | None) -> Iterator[Row]:
    for quantile in (50, 99) if headline.tail else (50,):
        assert ours.values is not None
        mine = ours.values.given(quantile)
        if mine is None:
            continue
        label = f"{headline.name} p{quantile}" if headline.tail else headline.name
        bound = f"{'≥' if headline.at_least else '≤'} {headline.bound:g} ×"
        said = quantity(mine, ours.unit)
        other = theirs.values.given(quantile) if theirs and theirs.values else None
        if other is None or theirs is None:
            yield Row(headline.name, label, said, "", None, None, bound)
            continue
        exact = mine * _SCALE[ours.unit] / (other * _SCALE[theirs.unit])
        ratio = float(f"{exact:.3g}")  # judged as it is shown: 10 × is not above 10 ×
        good = ratio >= headline.bound if headline.at_least else ratio <= headline.bound
        yield Row(headline.name, label, said, quantity(other, theirs.unit), ratio, good, bound)


_SCALE = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "frames/s": 1.0}


def quantity(value: float, unit: str) -> str:
    """1234 ns -> "1.23 µs"; 2950123 frames/s -> "2,950,000/s"."""
    if unit == "frames/s":
        return f"{three(value)}/s"
    us = value * _SCALE[unit]
    if us >= 1e3:
        return f"{three(us / 1e3)} ms"
    return f"{three(us)} µs" if us >= 1 else f"{three(us * 1e3)} ns"


def three(value: float) -> str:
    """Three digits count; 12345 -> "12,300", 0.01234 -> "0.0123"."""
    if abs(value) < 99.95:
        return f"{value:.3g}"
    return f"{round(value, 3 - len(f'{abs(value):.0f}')):,.0f}"


# ---- the parts ----------------------------------------------------------------------------------


def _machine(card: Mapping[str, Any], seconds: float) -> str:
    gpus = [str(gpu.get("name")) for gpu in card.get("gpus", ())]
    words = [
        f"gpuring {card.get('gpuring', '?')}", str(card.get("cpu", "?")),
        f"{card.get('cores', '?')} cores", *gpus, f"Python {card.get('python', '?')}",
        f"{seconds:.0f} s",
    ]  # fmt: skip
    return "\n".join(_wrap([", ".join(words)]))


def _place(where: Where, figures: list[Figure], headlines: Iterable[Headline]) -> list[str]:
    found = rows(figures, where, headlines)
    head, cells = shown(found)
    listed = str(table(head, cells, right=head[1:4])).splitlines()
    notes = [f"  {each}" for each in baselines(found, headlines)]
    extra = list(_more(where, figures))
    bad = {row.headline for row in found if row.good is False}
    if where.mps is False and bad - {"host time"}:
        extra.append(WITHOUT_MPS)
    return [
        f"On {where}: {verdict(found)}",
        "",
        *(f"  {line}" for line in listed),
        "",
        *(["The baselines:", *notes] if notes else []),
        *_wrap(extra),
    ]


def baselines(rows: Iterable[Row], headlines: Iterable[Headline]) -> list[str]:
    """What they are, in words: for each headline that could be compared, or for all of them."""
    names = {row.headline for row in rows if row.good is not None}
    said = {each.name: each.means for each in headlines if each.name in names}
    if len(said) > 1 and len(set(said.values())) == 1:
        return [next(iter(said.values()))]
    return [f"{name}: {means}" for name, means in said.items()]


WITHOUT_MPS = (
    "Without MPS the kernels of two processes never run together. The GPU switches between them "
    "for each hand-over, and no library can change that. nvidia-cuda-mps-control -d starts MPS; "
    "read first in docs/performance.md what it costs."
)


def _more(where: Where, figures: list[Figure]) -> Iterator[str]:
    """What is worth a line, and no headline."""
    verbs = {
        verb: select(figures, "transitions", verb, "gpuring", **where.setting) for verb in VERBS
    }
    if all(verbs.values()):
        each = ", ".join(f"{verb} {_median(found[0])}" for verb, found in verbs.items())
        yield f"Host time of the verbs when nobody waits: {each}."
    on_gpu = where.mps is not None
    rate = select(
        figures, "throughput", "frames/s", "gpuring", **where.setting, **RATE, kernel=not on_gpu
    )
    if rate:
        how = "not touched" if on_gpu else "written and compared, 4 KiB of each"
        yield f"Throughput of frames that are {how}: {_median(rate[0])}."


def _median(figure: Figure) -> str:
    assert figure.values is not None
    return quantity(figure.values.p50, figure.unit)


def _notes(run: Run) -> Iterator[str]:
    headlines = {(each.group, each.figure) for each in (*HOST, *GPU)}
    programs = {"gpuring", *(each.program for each in (*HOST, *GPU))}
    said: dict[str, None] = {}
    for figure in run.figures:
        if figure.failed:
            said[f"WRONG DATA: {figure.name} ({figure.program}): {figure.skipped}."] = None
        elif figure.name == "on a GPU":
            said[f"No GPU was measured: {figure.skipped}."] = None
        elif (
            figure.skipped
            and figure.program in programs
            and (figure.group, figure.name) in headlines
        ):
            said[f"Not measured: {figure.name} ({figure.program}): {figure.skipped}."] = None
    yield from said
    if run.failed:
        yield "Frames arrived damaged. Do not trust rings on this machine; please report it."
    yield from busy(run.machine)
    yield (
        f"Medians, except p99. A percentile is given if at least {BEYOND} samples lie beyond it: "
        f"p99 needs {100 * BEYOND:,}. Frames were checked before and while the clock ran."
    )


def busy(card: Mapping[str, Any]) -> Iterator[str]:
    """Says so if others used more than half of the machine."""
    load, cores = card.get("load"), card.get("cores")
    if load and cores and load > 0.5 * cores:
        yield (
            f"The machine was busy before the run: load {load:g} on {cores} cores. The figures of "
            "the ring and of the baselines include waiting for a core."
        )


def _wrap(paragraphs: Iterable[str]) -> list[str]:
    fill = textwrap.TextWrapper(WIDTH, break_on_hyphens=False)
    return [line for each in paragraphs for line in fill.wrap(each)]

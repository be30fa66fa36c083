"""The report's plots, by matplotlib, as SVG.  Each takes all figures and gives nothing where those
that it shows were not measured.  Axes begin at zero or say that they are logarithmic."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuring.cli.bench.baselines import ALONE, PIPE, PIPES, WORD
from gpuring.cli.measure.figures import Figure, Value
from gpuring.cli.measure.settings import FRAME_NBYTES, SLOTS
from gpuring.cli.text import nbytes

COLOURS = {"host": "#2a7f62", "timeline": "#1f5fa8", "event": "#c8641b", "": "#777777"}
SIZE = 9
"""Of all words but titles and the names of axes."""
BESIDE: dict[str, Any] = {
    "fontsize": SIZE, "handlelength": 4, "frameon": False,
    "loc": "upper left", "bbox_to_anchor": (1, 1),
}  # fmt: skip
"""A legend that covers no line."""
BASELINES = (WORD, PIPES, PIPE, ALONE)
BASE: dict[str, Value] = {
    "kernel": True, "slots": SLOTS, "nbytes": FRAME_NBYTES, "consumers": 1, "lossless": True,
    "members": 1, "producers": 1, "batch": 1, "gate": "stream", "busy": False,
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A picture and the words beside it."""

    name: str
    """The name of its file."""
    title: str
    caption: str
    svg: bytes


def available() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


BAND = "The band holds the middle half of the stretches of a run."


def throughput(figures: list[Figure]) -> Iterator[Plot]:
    for key, title, caption in (
        (
            "nbytes",
            "Frames/s against the size of a frame",
            "Frames are handed over, not copied: a flat line is what is claimed. 4 KiB of each are "
            "written and checked.",
        ),
        ("slots", "Frames/s against slots", "Slots are frames in flight."),
        (
            "consumers",
            "Frames/s against consumers that each see every frame",
            "Solid: lossless, the producer waits for the slowest. Dotted: lossy, it passes them.",
        ),
    ):
        lossy = (True, False) if key == "consumers" else (True,)
        plot = _lines(figures, "frames/s", key, title, f"{caption} {BAND}".strip(), lossy)
        if plot:
            yield plot


def verbs(figures: list[Figure]) -> Iterator[Plot]:
    panels = _panels([f for f in figures if f.name in VERBS and f.program in ("gpuring", "core")])
    if not panels:
        return
    bars: list[dict[str, dict[str, float]]] = []
    for _, found in panels:
        bars.append({})
        for f in found:
            bars[-1].setdefault(_label(f), {})[f.name] = _p(f) / 1e3
    canvas, axes = _canvas([0.7 + 0.35 * len(panel) for panel in bars], sharex=True)
    for (title, _), panel, axis in zip(panels, bars, axes, strict=True):
        left = dict.fromkeys(panel, 0.0)
        for verb, colour in VERBS.items():
            widths = [panel[bar].get(verb, 0.0) for bar in panel]
            axis.barh(list(panel), widths, left=list(left.values()), color=colour, label=verb)
            for bar, width in zip(panel, widths, strict=True):
                left[bar] += width
        axis.invert_yaxis()
        axis.set_title(title)
    axes[-1].set_xlabel("µs of host time a frame, median, nobody waiting")
    axes[0].legend(fontsize=SIZE)
    caption = "A frame's four verbs, one after the other. No kernels; no wait is in it."
    yield Plot("verbs", "What the verbs cost", caption, _svg(canvas))


VERBS = {"claim": "#1f5fa8", "publish": "#7fb0e0", "acquire": "#c8641b", "release": "#f0b183"}
"""Each with its colour."""


def latency(figures: list[Figure]) -> Iterator[Plot]:
    ours = [
        f
        for f in figures
        if f.name == "round trip"
        and f.program in ("gpuring", "floor")
        and f.setting.get("kernel", True)
    ]
    panels = _panels(ours)
    if not panels:
        return
    canvas, axes = _canvas([0.9 + 0.26 * len(rows) for _, rows in panels], sharex=True)
    for (title, rows), axis in zip(panels, axes, strict=True):
        for at, f in enumerate(rows):
            assert f.values is not None
            colour = COLOURS[str(f.setting.get("sync", ""))]
            given = {q: f.values.given(q) for q in (1, 50, 99, 99.9)}
            reach = [value for value in given.values() if value is not None]
            axis.plot([min(reach), max(reach)], [at, at], color=colour, alpha=0.4)
            for quantile, marker in ((50, "o"), (99, "|"), (99.9, "x")):
                if given[quantile] is not None:
                    axis.plot(given[quantile], at, marker, color=colour)
        axis.set_yticks(range(len(rows)), map(_label, rows))
        axis.set_ylim(len(rows) - 0.4, -0.6)  # the first one on top
        axis.set(title=title, xscale="log")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.grid(axis="x", which="both", alpha=0.2)
    axes[-1].set_xlabel("µs there and back (logarithmic axis)")
    caption = (
        "Dot: median. Bar: p99. Cross: p99.9. The line begins at p1. Where there are too few "
        "rounds for one of them, it is left out."
    )
    yield Plot("round-trip", "Latency: round trip", caption, _svg(canvas))


def rivals(figures: list[Figure]) -> Iterator[Plot]:
    """A panel for each kind of memory, and for MPS off and on: each has an axis of its own."""
    for name, unit, better in (
        ("frames/s", "frames/s", "more is better"),
        ("round trip", "µs", "less is better"),
    ):
        panels = []
        for memory, mps in (("host", None), ("cuda", False), ("cuda", True)):
            chosen = [f for f in figures if f.name == name and _comparable(f, memory, mps)]
            if any(f.program not in ("gpuring", "floor", *BASELINES) for f in chosen):
                panels.append((memory, mps, chosen))
        if not panels:
            continue
        heights = [0.9 + 0.26 * len(chosen) for *_, chosen in panels]
        canvas, axes = _canvas(heights)
        for (_, mps, chosen), axis in zip(panels, axes, strict=True):
            values = [_p(f) for f in chosen]
            colours = [COLOURS["timeline"] if f.program == "gpuring" else "#aaaaaa" for f in chosen]
            axis.barh(range(len(chosen)), values, color=colours)
            axis.set_yticks(range(len(chosen)), map(_label, chosen))
            axis.invert_yaxis()
            for at, value in enumerate(values):
                said = f" {value:,.0f}" if value >= 1000 else f" {value:.3g}"
                axis.text(value, at, said, va="center", fontsize=SIZE)
            where = "host memory" if mps is None else f"GPU, MPS {'on' if mps else 'off'}"
            axis.set(title=where, xlabel=f"{unit}, median: {better}", xlim=(0, 1.15 * max(values)))
            axis.xaxis.set_major_formatter("{x:,.0f}")
        slug = "rate" if name == "frames/s" else name.replace(" ", "-")
        yield Plot(
            f"rivals-{slug}", f"Beside what people use today: {name} ({better})", "", _svg(canvas)
        )


def _comparable(f: Figure, memory: str, mps: bool | None) -> bool:
    """Figures that can be compared: 4 KiB frames with the work on both sides, 8 in flight, one
    consumer, and nothing else running."""
    of = f.setting.get("memory") or ("host" if f.setting.get("sync") == "host" else "cuda")
    return (
        f.values is not None
        and of == memory
        and (mps is None or f.setting.get("mps") is mps)
        and f.program not in BASELINES
        and _says(f, {**BASE, "gate": f.setting.get("gate", "stream")})
    )


# ---- pieces -------------------------------------------------------------------------------------


def _lines(
    figures: list[Figure], name: str, key: str, title: str, caption: str, lossless: Iterable[bool]
) -> Plot | None:
    panels = []
    for label, chosen in _panels([f for f in figures if f.name == name]):
        series = []
        for program, sync, is_lossless in (
            (program, sync, is_lossless)
            for program in ("gpuring", "floor")
            for sync in ("host", "timeline", "event")
            for is_lossless in lossless
        ):
            gate = {} if sync != "host" else {"gate": None}
            wanted = {**BASE, "lossless": is_lossless, **gate}
            del wanted[key]
            points = sorted(
                (int(f.setting[key]), _p(f), *_middle_half(f))
                for f in chosen
                if f.program == program
                and f.setting.get("sync") == sync
                and key in f.setting
                and _says(f, wanted)
            )
            if len(points) > 1:
                series.append((program, sync, is_lossless, points))
        if series:
            panels.append((label, series))
    if not panels:
        return None
    canvas, axes = _canvas([2.6] * len(panels))
    for (label, series), axis in zip(panels, axes, strict=True):
        for program, sync, is_lossless, points in series:
            style = "--" if program == "floor" else "-" if is_lossless else ":"
            words = f"{_named(program)}, {sync}{'' if is_lossless else ', lossy'}"
            x, median, low, high = zip(*points, strict=True)
            colour = COLOURS[sync]
            axis.plot(x, median, f"{style}o", color=colour, label=words, ms=3, lw=1.2)
            axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        ticks = sorted({point[0] for *_, points in series for point in points})
        most = max(point[3] for *_, points in series for point in points)
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [nbytes(x) if key == "nbytes" else str(x) for x in ticks])
        axis.set(title=label, xlabel=_AXES[key], ylabel=name)
        axis.set_ylim(0, 1.1 * most)  # from 0, so that noise does not look like a trend
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.grid(alpha=0.3)
        axis.legend(**BESIDE)
    return Plot(key if key != "nbytes" else "size", title, caption, _svg(canvas))


_AXES = {
    "nbytes": "bytes a frame (logarithmic axis)",
    "slots": "slots (logarithmic axis)",
    "consumers": "consumers (logarithmic axis)",
}


def _says(figure: Figure, wanted: dict[str, Any]) -> bool:
    """Whether a figure's setting agrees with what is wanted, in all keys that both have."""
    return all(
        value is None or figure.setting.get(key, value) == value for key, value in wanted.items()
    )


def _panels(figures: list[Figure]) -> list[tuple[str, list[Figure]]]:
    found = [f for f in figures if f.values is not None]
    parts: tuple[tuple[str, Callable[[Figure], bool]], ...] = (
        ("host memory", lambda f: f.setting.get("sync") == "host"),
        ("GPU, MPS off", lambda f: f.setting.get("mps") is False),
        ("GPU, MPS on", lambda f: f.setting.get("mps") is True),
    )
    return [(label, part) for label, test in parts if (part := [f for f in found if test(f)])]


def _middle_half(figure: Figure) -> tuple[float, float]:
    """Where the middle half of the values begins and ends.  With too few values both are the
    median."""
    assert figure.values is not None
    low, high = figure.values.given(25), figure.values.given(75)
    return (low or _p(figure), high or _p(figure))


def _p(figure: Figure, quantile: float = 50) -> float:
    assert figure.values is not None
    return figure.values.p(quantile)


def _named(program: str) -> str:
    """The name of a program on pages."""
    return {"floor": "baseline in C", "core": "C core"}.get(program, program)


def _label(figure: Figure) -> str:
    said = figure.setting
    words = [_named(figure.program)]
    if said.get("sync") not in (None, "host"):
        words.append(str(said["sync"]))
    if "gate" in said:
        words.append(f"gate {said['gate']}")
    if said.get("busy"):
        words.append("busy GPU")
    return ", ".join(words)


def _canvas(heights: list[float], **shared: Any) -> tuple[Any, Any]:
    """Panels below each other, as wide as a page, so that their words can be read."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(h_pad=0.12)  # or a title would touch the axis above it
    canvas = Canvas(figsize=(7.5, sum(heights)), layout=layout)
    rows = len(heights)
    axes = canvas.subplots(rows, 1, squeeze=False, height_ratios=heights, **shared)[:, 0]
    for axis in axes:
        axis.tick_params(labelsize=SIZE)
    return canvas, axes


def _svg(canvas: Any) -> bytes:
    from matplotlib import rc_context

    into = io.BytesIO()
    with rc_context({"svg.hashsalt": "gpuring"}):  # the same figures give the same file
        canvas.savefig(into, format="svg", metadata={"Date": None})
    return into.getvalue()

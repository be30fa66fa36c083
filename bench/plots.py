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
    found = [f for f in figures if f.name in VERBS and f.program in ("gpuring", "core")]
    bars: dict[str, dict[str, float]] = {}
    for f in found:
        if f.values is not None:
            bars.setdefault(_label(f), {})[f.name] = _p(f) / 1e3
    if not bars:
        return
    canvas, (axis,) = _canvas(1, height=0.6 + 0.35 * len(bars))
    left = dict.fromkeys(bars, 0.0)
    for verb, colour in zip(VERBS, ("#1f5fa8", "#7fb0e0", "#c8641b", "#f0b183"), strict=True):
        widths = [bars[bar].get(verb, 0.0) for bar in bars]
        axis.barh(list(bars), widths, left=[left[bar] for bar in bars], color=colour, label=verb)
        for bar, width in zip(bars, widths, strict=True):
            left[bar] += width
    axis.invert_yaxis()
    axis.set_xlabel("µs of host time a frame, median, nobody waiting")
    axis.legend(fontsize=7)
    caption = "A frame's four verbs, one after the other. No kernels; no wait is in it."
    yield Plot("verbs", "What the verbs cost", caption, _svg(canvas))


VERBS = ("claim", "publish", "acquire", "release")


def latency(figures: list[Figure]) -> Iterator[Plot]:
    ours = [
        f
        for f in figures
        if f.name == "round trip"
        and f.program in ("gpuring", "floor")
        and f.setting.get("kernel", True)
    ]
    rows = [(_label(f), f) for f in ours if f.values is not None]
    if not rows:
        return
    canvas, (axis,) = _canvas(1, height=0.8 + 0.28 * len(rows))
    for at, (_, f) in enumerate(rows):
        assert f.values is not None
        colour = COLOURS[str(f.setting.get("sync", ""))]
        given = {q: f.values.given(q) for q in (1, 50, 99, 99.9)}
        reach = [value for value in given.values() if value is not None]
        axis.plot([min(reach), max(reach)], [at, at], color=colour, alpha=0.4)
        for quantile, marker in ((50, "o"), (99, "|"), (99.9, "x")):
            if given[quantile] is not None:
                axis.plot(given[quantile], at, marker, color=colour)
    axis.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=7)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="µs (logarithmic axis)")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.grid(axis="x", which="both", alpha=0.2)
    caption = (
        "Dot: median. Bar: p99. Cross: p99.9. The line begins at p1. Where there are too few "
        "rounds for one of them, it is left out."
    )
    yield Plot("round-trip", "Latency: round trip", caption, _svg(canvas))


def rivals(figures: list[Figure]) -> Iterator[Plot]:
    """A panel for each kind of memory, and for MPS off and on: each has an axis of its own."""
    for name, unit in (("frames/s", "frames/s"), ("round trip", "µs")):
        panels = []
        for memory, mps in (("host", None), ("cuda", False), ("cuda", True)):
            chosen = [f for f in figures if f.name == name and _comparable(f, memory, mps)]
            if any(f.program not in ("gpuring", "floor", *BASELINES) for f in chosen):
                panels.append((memory, mps, chosen))
        if not panels:
            continue
        heights = [0.9 + 0.26 * len(chosen) for *_, chosen in panels]
        canvas, axes = _stacked(heights)
        for (_, mps, chosen), axis in zip(panels, axes, strict=True):
            values = [_p(f) for f in chosen]
            colours = [COLOURS["timeline"] if f.program == "gpuring" else "#aaaaaa" for f in chosen]
            axis.barh(range(len(chosen)), values, color=colours)
            labels = [_label(f, program=True) for f in chosen]
            axis.set_yticks(range(len(chosen)), labels, fontsize=7)
            axis.invert_yaxis()
            for at, value in enumerate(values):
                said = f" {value:,.0f}" if value >= 1000 else f" {value:.3g}"
                axis.text(value, at, said, va="center", fontsize=7)
            where = "host memory" if mps is None else f"GPU, MPS {'on' if mps else 'off'}"
            axis.set(title=where, xlabel=f"{unit}, median", xlim=(0, 1.15 * max(values)))
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.tick_params(axis="x", labelsize=7)
        slug = "rate" if name == "frames/s" else name.replace(" ", "-")
        better = "more is better" if name == "frames/s" else "less is better"
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
    for label, chosen in _panels(figures, name):
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
    canvas, axes = _canvas(len(panels))
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
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, handlelength=4)
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


def _panels(figures: list[Figure], name: str) -> list[tuple[str, list[Figure]]]:
    found = [f for f in figures if f.name == name and f.values is not None]
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
    return "baseline in C" if program == "floor" else program


def _label(figure: Figure, *, program: bool = False) -> str:
    said = figure.setting
    words = [_named(figure.program)] if program or figure.program != "gpuring" else []
    if said.get("sync"):
        words.append(str(said["sync"]))
    if "gate" in said:
        words.append(f"{said['gate']} gate")
    if "mps" in said:
        words.append(f"MPS {'on' if said['mps'] else 'off'}")
    if said.get("busy"):
        words.append("busy GPU")
    return ", ".join(words)


def _canvas(panels: int, height: float = 3.2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(3.3 * panels if panels > 1 else 7.5, height), layout="constrained")
    return canvas, canvas.subplots(1, panels, squeeze=False)[0]


def _stacked(heights: list[float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(h_pad=0.12)  # or a title would touch the axis above it
    canvas = Canvas(figsize=(7.5, sum(heights)), layout=layout)
    return canvas, canvas.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]


def _svg(canvas: Any) -> bytes:
    from matplotlib import rc_context

    into = io.BytesIO()
    with rc_context({"svg.hashsalt": "gpuring"}):  # the same figures give the same file
        canvas.savefig(into, format="svg", metadata={"Date": None})
    return into.getvalue()

"""The two PNG files: a contact sheet of what was seen, and a plot of how long it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gpuring.printable import counted

from .arithmetic import FRAME_COLUMNS
from .records import Outcome, Picture
from .table import KINDS, duration, percentiles
from .verdict import Verdict

COLOURS = {
    "analyser": (59, 110, 235),
    "edges 1": (245, 158, 11),
    "edges 2": (20, 184, 166),
    "viewer": (219, 64, 130),
}
PASS, FAIL = (34, 160, 90), (210, 50, 50)

COLUMNS, ROWS = 4, 2
TILE, GAP, CAPTION = 400, 18, 30
PAPER, INK, FAINT = (19, 21, 26), (236, 238, 242), (140, 147, 160)


def contact_sheet(path: Path, outcome: Outcome, verdict: Verdict) -> None:
    """Frames as the viewer saw them, each above the edge map of the same sequence."""
    seen = _spread(outcome.viewer.pictures, COLUMNS * ROWS)
    width, height = TILE, max(1, round(TILE * outcome.clip.height / outcome.clip.width))
    columns = max(1, min(COLUMNS, len(seen)))
    rows = max(1, -(-len(seen) // columns))
    cell_width, cell_height = width + GAP, 2 * (height + CAPTION) + GAP
    head, foot = 112, 36 if outcome.clip.credit else 8
    canvas_width = max(columns * cell_width + GAP, 900)
    sheet = Image.new("RGB", (canvas_width, head + rows * cell_height + foot), PAPER)
    draw = ImageDraw.Draw(sheet)

    draw.text((GAP, 16), "gpuring demo", INK, _font(34, bold=True))
    draw.text((GAP, 66), _subtitle(outcome), FAINT, _font(18))
    text, colour = ("PASS", PASS) if verdict.passed else ("FAIL", FAIL)
    badge = _font(24, bold=True)
    badge_width = int(draw.textlength(text, badge)) + 32
    box = (canvas_width - GAP - badge_width, 16, canvas_width - GAP, 58)
    draw.rounded_rectangle(box, 8, colour)
    draw.text(((box[0] + box[2]) // 2, (box[1] + box[3]) // 2), text, INK, badge, anchor="mm")

    edge_maps = [(worker.name, picture) for worker in outcome.edges for picture in worker.pictures]
    number = {int(seq): at for at, seq in enumerate(outcome.producer.seq)}
    lost = dict(zip(outcome.viewer.seq.tolist(), outcome.viewer.lost.tolist(), strict=True))
    pts = dict(zip(outcome.viewer.seq.tolist(), outcome.viewer.pts.tolist(), strict=True))
    for place, picture in enumerate(seen):
        x = GAP + place % columns * cell_width
        y = head + place // columns * cell_height
        sheet.paste(_tile(picture.image, width, height), (x, y))
        seconds = pts[picture.seq] * outcome.clip.seconds_per_pts
        frame = f"frame {number.get(picture.seq, -1) + 1} · {seconds:.2f} s"
        _caption(draw, x, y + height, width, "viewer", picture.seq, frame, lost[picture.seq])
        if edge_maps:
            y += height + CAPTION
            worker, nearest = min(edge_maps, key=lambda entry: abs(entry[1].seq - picture.seq))
            sheet.paste(_tile(_tinted(nearest.image, COLOURS[worker]), width, height), (x, y))
            _caption(draw, x, y + height, width, worker, nearest.seq, "edge map", 0)
    if outcome.clip.credit:
        draw.text((GAP, sheet.height - 34), outcome.clip.credit, FAINT, _font(15))
    sheet.save(path, optimize=True)


def _caption(
    draw: ImageDraw.ImageDraw,
    x: int,
    y: int,
    width: int,
    who: str,
    seq: int,
    what: str,
    lost: int,
) -> None:
    font = _font(15)
    draw.ellipse((x + 1, y + 8, x + 11, y + 18), COLOURS[who])
    draw.text((x + 18, y + 4), f"{who} · seq {seq} · {what}", INK, font)
    if lost:
        draw.text((x + width, y + 4), f"{lost} lost", FAINT, font, anchor="ra")


def _subtitle(outcome: Outcome) -> str:
    clip = outcome.clip
    return (
        f"{clip.path.name} · {clip.width} × {clip.height} · {outcome.producer.frames} frames "
        f"through {counted(outcome.slots, 'slot')} · memory {outcome.memory} · sync {outcome.sync}"
    )


def _spread(pictures: list[Picture], count: int) -> list[Picture]:
    """At most `count` pictures, evenly from the first sequence to the last."""
    if len(pictures) <= count:
        return pictures
    seqs = np.array([picture.seq for picture in pictures])
    marks = np.linspace(seqs[0], seqs[-1], count)
    return [pictures[at] for at in sorted({int(np.abs(seqs - mark).argmin()) for mark in marks})]


def _tile(image: NDArray[np.uint8], width: int, height: int) -> Image.Image:
    return Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)


def _tinted(edges: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Grey levels as paper, colour, white; weak edges are lifted, since shrinking dims lines."""
    level = (np.arange(256) / 255) ** 0.55
    stops = np.array([PAPER, colour, (255, 255, 255)], float)
    ramp = np.stack([np.interp(level, (0, 0.75, 1), stops[:, c]) for c in range(3)], axis=1)
    tinted: NDArray[np.uint8] = ramp.round().astype(np.uint8)[edges]
    return tinted


def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib brings along."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / name), size)


def latency_plot(path: Path, outcome: Outcome) -> None:
    """Publish to acquired, each frame and as a distribution; who saw what; what was measured."""
    figure = Figure(figsize=(13, 8.6), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        3,
        2,
        width_ratios=(2.3, 1),
        height_ratios=(3, 0.9, 1.2),
        left=0.075,
        right=0.98,
        top=0.865,
        bottom=0.07,
        hspace=0.16,
        wspace=0.12,
    )
    figure.text(0.075, 0.95, "From publish to acquired", size=18, weight="bold")
    figure.text(0.075, 0.915, _subtitle(outcome), size=11, color="0.4")

    scatter = figure.add_subplot(grid[0, 0])
    spread = figure.add_subplot(grid[0, 1], sharey=scatter)
    raster = figure.add_subplot(grid[1, 0], sharex=scatter)
    film = figure.add_subplot(grid[2, 0], sharex=scatter)
    _latencies(scatter, spread, outcome)
    _who_saw_what(raster, outcome)
    _measured(film, outcome)
    _legend(figure.add_subplot(grid[1:, 1]), outcome)
    for axes in (scatter, raster):
        axes.tick_params(labelbottom=False)
    for axes in (scatter, spread, raster, film):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path)


def _rgb(name: str) -> tuple[float, float, float]:
    red, green, blue = COLOURS[name]
    return red / 255, green / 255, blue / 255


def _numbers(outcome: Outcome, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Frame numbers from 1, in published order."""
    numbers: NDArray[np.int64] = np.searchsorted(outcome.producer.seq, seqs) + 1
    return numbers


def _latencies(scatter: Axes, spread: Axes, outcome: Outcome) -> None:
    for report in outcome.consumers:
        if not report.frames:
            continue
        us = np.maximum(report.latency_ns, 1) / 1e3
        style: dict[str, Any] = {"color": _rgb(report.name), "label": report.name}
        size = 14 if report.frames < 2000 else 3
        at = _numbers(outcome, report.seq)
        scatter.scatter(at, us, s=size, alpha=0.85, linewidths=0, **style)
        spread.step(
            np.arange(1, report.frames + 1) / report.frames * 100, np.sort(us), lw=2, **style
        )
    scatter.set_yscale("log")
    scatter.set_ylabel("latency")
    scatter.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    scatter.yaxis.set_major_formatter(FuncFormatter(lambda us, _: _short(us)))
    scatter.yaxis.set_minor_formatter(NullFormatter())  # a narrow range would label them 4 × 10²
    scatter.set_title("each frame", loc="left", size=11, color="0.3")
    spread.set_title(
        "percent of frames that took at most this long", loc="left", size=11, color="0.3"
    )
    spread.set_xlim(0, 100)
    spread.set_xticks((0, 50, 100))
    spread.tick_params(labelleft=False)
    for axes in (scatter, spread):
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
    spread.grid(axis="x", color="0.9")


def _short(us: float) -> str:
    """A tick's label: round numbers, so without the decimals of `duration`."""
    return f"{us / 1e6:g} s" if us >= 1e6 else f"{us / 1e3:g} ms" if us >= 1e3 else f"{us:g} µs"


def _who_saw_what(axes: Axes, outcome: Outcome) -> None:
    frames = max(1, outcome.producer.frames)
    lines = [_numbers(outcome, report.seq) for report in outcome.consumers]
    axes.eventplot(
        lines,
        colors=[_rgb(report.name) for report in outcome.consumers],
        lineoffsets=range(len(lines)),
        linelengths=0.72,
        linewidths=float(np.clip(600 / frames, 0.4, 4)),
    )
    axes.set_yticks(range(len(lines)), [report.name for report in outcome.consumers])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.text(0, 1.03, "who saw which frame", transform=axes.transAxes, size=11, color="0.3")


def _measured(axes: Axes, outcome: Outcome) -> None:
    report = outcome.analyser
    if report.frames:
        values = dict(zip(FRAME_COLUMNS, report.values.T.astype(float), strict=True))
        at = _numbers(outcome, report.seq)
        pixels = outcome.clip.width * outcome.clip.height
        light = (0.299 * values["red"] + 0.587 * values["green"] + 0.114 * values["blue"]) / pixels
        motion = values["motion"] / pixels
        axes.fill_between(at, motion, color=_rgb("analyser"), alpha=0.35, lw=0)
        axes.set_ylim(0, max(1.0, float(motion.max())) * 1.25)
        other = axes.twinx()
        other.plot(at, light, color="0.25", lw=1.8)
        middle, reach = float(light.mean()), max(10.0, float(np.ptp(light)) * 0.8)
        other.set_ylim(middle - reach, middle + reach)
        other.set_ylabel("brightness", color="0.25")
        other.spines["top"].set_visible(False)
    axes.set_ylabel("motion", color=_rgb("analyser"))
    axes.set_xlim(0, outcome.producer.frames + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("frame, as published")
    text = "what the analyser measured, in grey levels of 255"
    axes.text(0, 1.03, text, transform=axes.transAxes, size=11, color="0.3")


def _legend(axes: Axes, outcome: Outcome) -> None:
    axes.axis("off")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    y = 0.83
    for heading, x in (("p50", 0.58), ("p99", 0.79), ("max", 1.0)):
        axes.text(x, 0.93, heading, size=10, va="center", ha="right", color="0.4")
    for report in outcome.consumers:
        axes.scatter([0.02], [y], s=70, color=_rgb(report.name), clip_on=False)
        axes.text(0.07, y, report.name, size=11, weight="bold", va="center")
        axes.text(0.07, y - 0.065, KINDS[report.name][1], size=9, va="center", color="0.4")
        figures = (*percentiles(report.latency_ns), duration(int(report.latency_ns.max(initial=0))))
        for figure, x in zip(figures, (0.58, 0.79, 1.0), strict=True):
            axes.text(x, y, figure if report.frames else "", size=10, va="center", ha="right")
        y -= 0.17
    axes.text(0, y + 0.03, _reading(outcome), size=9.5, va="top", color="0.4", linespacing=1.5)


def _reading(outcome: Outcome) -> str:
    if outcome.fps:
        return f"The producer published {outcome.fps:g} frames/s."
    return (
        "The producer published flat out: it waits for\n"
        "the slowest reader that sees every frame, and\n"
        "frames queue in the ring. Without --flat-out\n"
        "the figures show the hand-over alone."
    )

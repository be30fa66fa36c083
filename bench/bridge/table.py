"""A run as the table that docs/bridge.md shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuring.cli.measure.figures import Figure
from gpuring.cli.text import nbytes

RATIOS = ("CPU beside its engine alone", "frames/s beside its engine alone")


def _place(figure: Figure) -> str:
    """The first cells of a row: the length of a frame, and of the link and the ring if the link is
    long."""
    length = nbytes(int(figure.setting["nbytes"]))
    trip_ms, slots = figure.setting.get("round trip, ms"), figure.setting.get("slots")
    places = [length, f"{trip_ms:g} ms" if trip_ms else "", f"{slots} slots" if slots else ""]
    return ", ".join(place for place in places if place)


def text(figures: Iterable[Figure]) -> str:
    """Medians of the rounds: a table, and sentences about the rest."""
    found = [figure for figure in figures if figure.values is not None]
    places = list(dict.fromkeys(_place(f) for f in found if "nbytes" in f.setting))
    programs = list(dict.fromkeys(f.program for f in found))
    rows = [
        "| frames of | carrier | GB/s | CPU near + far, ms a frame | one way, paced p50 / p99, ms "
        "| one way, saturated p50 / p99, ms |",
        "|---|---|---|---|---|---|",
    ]
    for place in places:
        for program in programs:
            cells = _cells(found, program, place)
            if cells:
                rows.append(f"| {place} | {program} | {' | '.join(cells)} |")
    return "\n".join([*rows, *_others(found)])


def _others(figures: list[Figure]) -> Iterator[str]:
    """The figures that are not in the table, as sentences."""
    for figure in figures:
        values = figure.values
        assert values
        if figure.name in RATIOS:
            yield f"{figure.program}, {_place(figure)}: {figure.name} × {values.p50:.2f}."
        elif "nbytes" not in figure.setting:
            where = "".join(f", {key} {value}" for key, value in figure.setting.items())
            p99 = values.given(99)
            tail = "" if p99 is None else f", p99 {p99:.4g}"
            told = f" ({figure.verified})" if figure.verified else ""
            value = f"{values.p50:.4g} {figure.unit}{tail}{told}"
            yield f"{figure.program}{where}: {figure.name} {value}."


def _cells(figures: list[Figure], program: str, place: str) -> list[str]:
    of = {
        figure.name: figure.values
        for figure in figures
        if figure.program == program and "nbytes" in figure.setting and _place(figure) == place
    }
    if not of:
        return []
    near, far = of["CPU near"], of["CPU far"]
    rate = of["throughput"]
    assert near
    assert far
    assert rate
    cells = [f"{rate.p50:.2f}", f"{near.p50 / 1e3:.2f} + {far.p50 / 1e3:.2f}"]
    for name in ("paced", "saturated"):
        times = of[f"one way, {name}"]
        assert times
        p99 = times.given(99)
        cells.append(f"{times.p50 / 1e3:.2f} / {'–' if p99 is None else f'{p99 / 1e3:.2f}'}")
    return cells

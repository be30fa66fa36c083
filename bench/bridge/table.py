"""A run as lines, and as the table that docs/bridge.md shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuring.cli.measure.figures import Figure


def line(figure: Figure) -> str:
    where = str(figure.setting.get("victim", figure.setting.get("beside", "")))
    if "nbytes" in figure.setting:
        where = _place(figure)
    head = f"{figure.program:14}{where:>22}  {figure.name:34}"
    if figure.values is None:
        return f"{head}{figure.skipped}"
    p99 = figure.values.given(99)
    more = "" if p99 is None else f", p99 {p99:.4g}"
    spread = f" ({figure.values.p(0):.3g} to {figure.values.p(100):.3g}{more})"
    return f"{head}{figure.values.p50:10.4g} {figure.unit}{spread}"


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


RATIOS = ("CPU beside its engine alone", "frames/s beside its engine alone")


def _place(figure: Figure) -> str:
    """What is measured there: the length of a frame, and of the link and the ring if it is long."""
    length = size(int(figure.setting["nbytes"]))
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
    """What is not in the table, as sentences."""
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

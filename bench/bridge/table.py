"""A run as lines, and as the table that docs/bridge.md shows."""

from __future__ import annotations

from collections.abc import Iterable

from gpuring.cli.bench.figures import Figure


def line(figure: Figure) -> str:
    where = str(figure.setting.get("victim", ""))
    if "nbytes" in figure.setting:
        where = size(int(figure.setting["nbytes"]))
    head = f"{figure.program:14}{where:>9}  {figure.name:28}"
    if figure.values is None:
        return f"{head}{figure.skipped}"
    p99 = figure.values.given(99)
    more = "" if p99 is None else f", p99 {p99:.4g}"
    spread = f" ({figure.values.p(0):.3g} to {figure.values.p(100):.3g}{more})"
    return f"{head}{figure.values.p50:10.4g} {figure.unit}{spread}"


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def text(figures: Iterable[Figure]) -> str:
    """Medians of the rounds."""
    found = [figure for figure in figures if figure.values is not None]
    sizes = sorted({int(f.setting["nbytes"]) for f in found if "nbytes" in f.setting})
    programs = list(dict.fromkeys(f.program for f in found))
    rows = [
        "| frames of | carrier | GB/s | CPU near + far, ms a frame | one way, paced p50 / p99, ms "
        "| one way, saturated p50 / p99, ms |",
        "|---|---|---|---|---|---|",
    ]
    for nbytes in sizes:
        for program in programs:
            cells = _cells(found, program, nbytes)
            if cells:
                rows.append(f"| {size(nbytes)} | {program} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cells(figures: list[Figure], program: str, nbytes: int) -> list[str]:
    of = {
        figure.name: figure.values
        for figure in figures
        if figure.program == program and figure.setting.get("nbytes") == nbytes
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

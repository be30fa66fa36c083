"""What a benchmark reports: figures, each a distribution with the setting it was measured in.

A name has the same meaning and unit in every program, so figures of one run that differ in
`program` alone may be divided by each other. Figures of different runs may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
"""Percentiles that a distribution keeps; 50 is the figure, the others say how far to trust it."""

BEYOND = 10
"""How many samples must lie beyond a percentile before it is given: p90 needs 100 samples, p99
needs 1,000 and p99.9 needs 10,000."""

Value = str | int | float | bool

VERIFICATION_FAILED = "verification failed"
"""How `Figure.skipped` begins where wrong data crossed: such a run has failed as a whole."""


@dataclass(frozen=True)
class Distribution:
    """A sample, reduced to its percentiles."""

    n: int
    percentiles: tuple[float, ...]
    """At QUANTILES."""

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Distribution:
        sample = np.asarray(values, float)
        if not sample.size:
            raise ValueError("a distribution needs at least one value")
        found = np.percentile(sample, QUANTILES)
        return cls(sample.size, tuple(float(f"{value:.6g}") for value in found))

    def p(self, quantile: float) -> float:
        """As computed, from however few samples."""
        return self.percentiles[QUANTILES.index(quantile)]

    def given(self, quantile: float) -> float | None:
        """None where fewer than BEYOND samples lie beyond it.  The median is always given."""
        beyond = round(self.n * min(quantile, 100 - quantile) / 100, 6)
        return self.p(quantile) if quantile == 50 or beyond >= BEYOND else None

    @property
    def p50(self) -> float:
        return self.p(50)


@dataclass(frozen=True)
class Figure:
    """One measured figure, or the reason why there is none."""

    group: str
    """The section of the report: "transitions", "throughput", "latency", …"""
    name: str
    """What was measured: "frames/s", "round trip", "host time per frame", …"""
    program: str
    """Who was measured: "gpuring", "floor", or a peer's name."""
    unit: str
    """"frames/s", "µs", "ns", "ms", "% of a core"."""
    setting: Mapping[str, Value] = field(default_factory=dict)
    """All that distinguishes it from others of its name: sync, gate, slots, nbytes, consumers, …"""
    values: Distribution | None = None
    verified: str = ""
    """How it was made sure, before the clock ran, that right data crossed."""
    skipped: str = ""
    """Why there are no values."""

    @property
    def failed(self) -> bool:
        """Whether wrong data crossed."""
        return self.skipped.startswith(VERIFICATION_FAILED)

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Figure:
        values = stored.get("values")
        if values is not None:
            values = Distribution(values["n"], tuple(values["percentiles"]))
        return cls(**{"unit": "", **stored, "values": values})


def select(
    figures: Iterable[Figure], group: str, name: str, program: str | None = None, **setting: Value
) -> list[Figure]:
    """Figures with values that agree with everything given."""
    return [
        figure
        for figure in figures
        if figure.group == group
        and figure.name == name
        and figure.values is not None
        and program in (None, figure.program)
        and all(figure.setting.get(key) == value for key, value in setting.items())
    ]


def line(figure: Figure) -> str:
    """One figure, for a terminal."""
    what = ", ".join(filter(None, (figure.name, setting(figure))))
    head = f"{figure.group:<11} {figure.program:<12} {what}"
    values = figure.values
    if values is None:
        return f"{head}: skipped: {figure.skipped}"
    said = [
        f"p{quantile:g} {number(each)}"
        for quantile in (1, 25, 75, 99)
        if (each := values.given(quantile)) is not None
    ]
    beside = ", ".join(said) if said else f"{number(values.p(0))} to {number(values.p(100))}"
    return f"{head}: {number(values.p50)} {figure.unit} ({beside}; n={values.n})"


def setting(figure: Figure) -> str:
    """sync=host kernel=yes …"""
    return " ".join(
        f"{key}={ ({True: 'yes', False: 'no'}[value] if isinstance(value, bool) else value) }"
        for key, value in figure.setting.items()
    )


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

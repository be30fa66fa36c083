"""The report, made from the figures alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .figures import Figure


def line(figure: Figure) -> str:
    """One figure for a terminal."""
    setting = " ".join(f"{key}={_short(value)}" for key, value in figure.setting.items())
    head = f"{figure.group:<11} {figure.program:<13} {figure.name} [{setting}]"
    if figure.values is None:
        return f"{head}: skipped: {figure.skipped}"
    values = figure.values
    return (
        f"{head}: {values.p50:,.6g} {figure.unit} (p1 {values.p(1):,.5g}, p99 {values.p(99):,.5g})"
    )


def _short(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def html(machine: Mapping[str, Any], figures: Iterable[Figure], seconds: float) -> str:
    return "<pre>" + "\n".join(map(line, figures)) + "</pre>"


def verdict(figures: Iterable[Figure]) -> str:
    return ""

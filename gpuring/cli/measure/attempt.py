"""A benchmark that fails leaves a figure that says why, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from .crew import RoleFailed
from .figures import VERIFICATION_FAILED, Figure
from .settings import remove_rings


class Wrong(Exception):
    """Wrong data crossed, or frames are missing: nothing measured with it may be reported."""


def attempt(blank: Figure, measure: Callable[[], Iterable[Figure]]) -> Iterator[Figure]:
    """What `measure` found, all of it or nothing; if it fails, `blank` with the reason."""
    try:
        found = list(measure())
    except Wrong as wrong:
        found = [replace(blank, skipped=f"{VERIFICATION_FAILED}: {wrong}")]
    except RoleFailed as failed:
        found = [replace(blank, skipped=failed.last_line)]
    except OSError as failed:
        found = [replace(blank, skipped=str(failed))]
    if any(figure.skipped for figure in found):
        remove_rings()
    yield from found


def expect_right(wrong: int) -> None:
    if wrong:
        raise Wrong(f"{wrong} words differ from what was written")

"""A whole run: the machine, the figures and how long it took, in a JSON file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trouble import CommandError
from .card import machine_card
from .figures import Figure, line
from .signals import terminable


@dataclass
class Run:
    machine: dict[str, Any]
    """The machine card."""
    figures: list[Figure]
    seconds: float
    interrupted: bool = False

    @property
    def failed(self) -> list[Figure]:
        """The figures for which wrong data crossed."""
        return [figure for figure in self.figures if figure.failed]

    @property
    def status(self) -> int:
        """An exit status."""
        return 1 if self.failed else 130 if self.interrupted else 0

    def save(self, path: Path) -> None:
        card = {**self.machine, "interrupted": True} if self.interrupted else self.machine
        figures = [figure.as_json() for figure in self.figures]
        write(path, {"machine": card, "seconds": self.seconds, "figures": figures})


def write(path: Path, results: Any) -> None:
    """As JSON."""
    path.write_text(json.dumps(results, indent=1) + "\n")


def measured(found: Iterable[Figure], asked: Sequence[str], say: Callable[[Figure], object]) -> Run:
    """Takes every figure as it comes; after Ctrl-C or SIGTERM, what there was until then.

    asked: the options, for the machine card.
    """
    started = time.monotonic()
    run = Run({**machine_card(), "asked for": " ".join(asked)}, [], 0)
    try:
        with terminable():
            for figure in found:
                run.figures.append(figure)
                say(figure)
    except KeyboardInterrupt:
        run.interrupted = True
    run.seconds = round(time.monotonic() - started, 1)
    return run


def run(found: Iterable[Figure], asked: Sequence[str], path: Path | None) -> Run:
    """Prints every figure as it comes, and has all of them in --json `path`."""
    if path:
        must_be_writable(path, "--json")
    done = measured(found, asked, lambda figure: print(line(figure), flush=True))
    if path:
        done.save(path)
    return done


def load(path: Path) -> Run:
    """Raises CommandError, which speaks of --from."""
    try:
        stored = json.loads(path.read_text())
        figures = [Figure.from_json(each) for each in stored["figures"]]
        return Run(dict(stored["machine"]), figures, float(stored["seconds"]))
    except OSError as error:
        raise CommandError(f"--from {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"--from {path}: this file has no results of a benchmark") from None


def must_be_writable(path: Path, option: str) -> None:
    """Raises CommandError before anything was measured, and not after."""
    try:
        path.open("a").close()
    except OSError as error:
        raise CommandError(f"{option} {path}: {error.strerror}") from None

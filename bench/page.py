"""Writes the pages whose figures come from bench/results.

    python -m bench.page        writes docs/performance.md, its pictures, and parts of other pages

bench/pages has a template for each page, in the language of Jinja.  bench/pages/parts has those of
parts, which stand in a page between `<!-- figures: NAME -->` and `<!-- end of figures -->`.
`bench("round trip", mps=True)` in a template is the figure "round trip" of
bench/results/bench.json, and any other file of that folder has its name in the same way.  Where a
setting is left out, that of 4 KiB frames in 8 slots is meant, with one kernel on each side.  `/`
makes a ratio of two figures.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from gpuring.cli.bench import summary
from gpuring.cli.measure import stored
from gpuring.cli.measure.figures import Figure, Value, line, number
from gpuring.cli.trouble import CommandError

from . import plots, targets

HERE = Path(__file__).resolve().parent
RESULTS, TEMPLATES, DOCS = HERE / "results", HERE / "pages", HERE.parent / "docs"
WRITTEN_BY = "<!-- `python -m bench.page` writes this page from bench/pages and bench/results -->"
WIDTH = 100
PART = re.compile(r"(<!-- figures: (\w+) -->).*?(<!-- end of figures -->)", re.S)
IN_US = {"ns": 1e-3, "µs": 1.0, "ms": 1e3}


@dataclass(frozen=True)
class Amount:
    """A number as a page shows it."""

    value: float
    """Times are in µs."""
    unit: str = ""

    def __str__(self) -> str:
        if self.unit == "µs":
            return summary.quantity(self.value, self.unit)
        shown = summary.three(self.value)
        return f"{shown} %" if self.unit.startswith("%") else shown

    def __sub__(self, other: Amount) -> Amount:
        assert self.unit == other.unit, f"{self.unit} and {other.unit} have no difference"
        return Amount(self.value - other.value, self.unit)

    def __truediv__(self, other: Amount) -> Amount:
        assert self.unit == other.unit, f"{self.unit} and {other.unit} have no ratio"
        return Amount(self.value / other.value)


class Results:
    """The figures of one file."""

    def __init__(self, run: stored.Run) -> None:
        self.run = run

    @property
    def machine(self) -> dict[str, Any]:
        return self.run.machine

    def __call__(
        self, name: str, program: str = "gpuring", p: float = 50, **setting: Value
    ) -> Amount:
        """A percentile of the figure with this setting.  Raises LookupError if there is none, or
        more than one, and names those or all of that name."""
        found = list(self._find(name, program, p, setting))
        if len(found) != 1:
            asked = " ".join([name, program, *(f"{key}={said}" for key, said in setting.items())])
            others = [each for each in self.run.figures if each.name == name]
            raise LookupError(
                "\n  ".join([f"{len(found)} figures are {asked}", *map(line, found or others)])
            )
        return _amount(found[0], p)

    def has(self, name: str, program: str = "gpuring", p: float = 50, **setting: Value) -> bool:
        """Whether the figure was measured, and often enough for this percentile."""
        return any(self._find(name, program, p, setting))

    def each(self, name: str, *free: str, **setting: Value) -> list[Amount]:
        """The medians of all figures of the ring that differ in the settings `free` alone."""
        return [_amount(figure) for figure in self._find(name, "gpuring", 50, setting, free)]

    def against(self, program: str, name: str, *free: str, **setting: Value) -> list[Amount]:
        """The same medians, divided by those of a program."""
        theirs = list(self._find(name, program, 50, setting, free))
        return [
            _amount(ours) / _amount(other)
            for ours in self._find(name, "gpuring", 50, setting, free)
            for other in theirs
            if all(ours.setting.get(key) == other.setting.get(key) for key in free)
        ]

    def _find(
        self,
        name: str,
        program: str,
        p: float,
        setting: Mapping[str, Value],
        free: tuple[str, ...] = (),
    ) -> Iterator[Figure]:
        """The figures with this setting, whose keys they must have.  A key that neither `setting`
        nor `free` names has its usual value, or is not in a figure's setting at all."""
        group = targets.GROUPS.get(name)
        usual = {key: each for key, each in plots.BASE.items() if key not in (*setting, *free)}
        for figure in self.run.figures:
            if (
                (figure.name, figure.program) == (name, program)
                and group in (None, figure.group)
                and figure.values is not None
                and figure.values.given(p) is not None
                and all(figure.setting.get(key) == each for key, each in setting.items())
                and all(figure.setting.get(key, each) == each for key, each in usual.items())
            ):
                yield figure

    @property
    def targets(self) -> list[targets.Verdict]:
        """The targets that could be computed."""
        return [each for each in targets.judge(self.run.figures) if each.met is not None]

    def summary(self, *syncs: str) -> str:
        """The lines of `gpuring bench` for rings of these synchronisers, made from stored
        figures."""
        figures = [
            figure
            for figure in self.run.figures
            if figure.setting.get("sync", syncs[0]) in syncs and not figure.setting.get("mps")
        ]
        return summary.text(stored.Run(self.machine, figures, self.run.seconds))


def _amount(figure: Figure, p: float = 50) -> Amount:
    assert figure.values is not None
    scale = IN_US.get(figure.unit)
    value = figure.values.p(p)
    return Amount(value, figure.unit) if scale is None else Amount(value * scale, "µs")


def span(amounts: Iterable[Amount]) -> str:
    """ "1.2 to 3.4" """
    found = sorted(amounts, key=lambda each: each.value)
    ends = dict.fromkeys((str(found[0]), str(found[-1])))
    return " to ".join(ends)


def text(template: str, results: Path = RESULTS, templates: Path = TEMPLATES) -> str:
    """The text that a template makes of the results."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals.update(_results(results), span=span, number=number)
    return filled(environment.get_template(template).render())


def filled(markdown: str) -> str:
    """Breaks the lines of paragraphs and lists anew, because figures have changed their lengths."""
    lines: list[str] = []
    block: list[str] = []
    in_code = False
    for each in markdown.splitlines():
        in_code ^= each.startswith("```")
        is_text = bool(each) and not in_code and not each.startswith(("```", "|", "#", "!", "<!"))
        if not is_text or each.startswith("* "):
            lines += _broken(block)
            block = []
        if is_text:
            block.append(each.strip())
        else:
            lines.append(each)
    return "\n".join([*lines, *_broken(block), ""])


def _broken(block: list[str]) -> list[str]:
    indent = "  " if block and block[0].startswith("* ") else ""
    return textwrap.wrap(
        " ".join(block), WIDTH, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def with_parts(page: str) -> str:
    """A page with its parts as the results make them."""

    def part(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        return f"{begin}\n\n{text(f'parts/{name}.md').strip()}\n\n{end}"

    return PART.sub(part, page)


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that is made from results, wholly or in part, and what it should be."""
    for path in sorted(DOCS.glob("*.md")):
        if (TEMPLATES / path.name).exists():
            yield path, filled(f"{WRITTEN_BY}\n\n{text(path.name)}")
        elif PART.search(path.read_text()):
            yield path, with_parts(path.read_text())


def _results(folder: Path) -> dict[str, Any]:
    """The results with figures of benchmarks, by the names of their files."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = Results(stored.load(path))
        except CommandError:  # such as a log of a soak test
            continue
    return found


def pictures(figures: list[Figure]) -> Iterator[plots.Plot]:
    for draw in (plots.throughput, plots.verbs, plots.latency, plots.rivals):
        yield from draw(figures)


def write() -> None:
    """Writes all pages, and the pictures."""
    for path, written in pages():
        path.write_text(written)
        print(path)
    for plot in pictures(stored.load(RESULTS / "bench.json").figures):
        picture = DOCS / "performance" / f"{plot.name}.svg"
        picture.write_bytes(plot.svg)
        print(picture)


def main() -> int:
    argparse.ArgumentParser(
        "python -m bench.page", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()  # fmt: skip
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a page promises: its sentences and table rows, and the mark behind each of them.

A mark is a comment that readers of the rendered page do not see.  It says what holds the sentence:

    A sentence. <!-- test_death.py::test_one, gpu/test_gpu_death.py::test_another -->
    | a row | of a table <!-- test_death.py::test_one --> |
    A figure. <!-- measured: recovery-h200.json -->
    What follows: <!-- no promise: introduces -->

Sentences are those of paragraphs and of list items.  Headings, the first row of a table and code
are none.  A mark stands on the line of its sentence: a line that begins with a comment would end
the paragraph.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import TESTS

RESULTS = TESTS.parent / "bench" / "results"

NO_PROMISE: dict[str, tuple[str, Callable[[str], bool]]] = {
    "introduces": ("says what follows, up to a colon", lambda text: text.endswith(":")),
    "points": ("says what another page has", lambda text: "](" in text),
    "defines": ("says what a word means", lambda text: bool(re.search(r"[*`]", text))),
    "advises": ("says what the reader may do about it", lambda _: True),
    "platform": ("says what Linux, CUDA or its driver does", lambda _: True),
}
"""The reasons for which a sentence needs no test, and what such a sentence looks like."""

COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_BOLD = re.compile(r"\*\*[^*]+\*\*")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"""[.!?]["'”)*_]*(?=\s+["“(\[*_A-Z0-9]|\s*$)""")
_ITEM = re.compile(r"\s*([*+-]|\d+[.)]) ")
_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_FENCE = re.compile(r"\s*(```|~~~)")


@dataclass(frozen=True)
class Unit:
    """A sentence or a row."""

    line: int
    text: str
    mark: str | None


@dataclass(frozen=True)
class Page:
    units: list[Unit]
    stray: list[str]
    """Comments that stand behind no sentence, and where."""


# ---- pages -------------------------------------------------------------------------------------


def section(text: str, heading: str) -> str:
    """The page with every line outside of this section empty, so that line numbers stay."""
    kept, inside = [], False
    for line in text.split("\n"):
        if re.match(r"#+ ", line):
            inside = line.strip("# ") == heading
        kept.append(line if inside else "")
    return "\n".join(kept)


def read(text: str) -> Page:
    """The page's units with their marks."""
    page = Page([], [])
    for line, block in _blocks(text, page.stray):
        if block.startswith("|"):
            _read_row(page, line, block)
        else:
            _read_sentences(page, line, block)
    return page


def _blocks(text: str, stray: list[str]) -> Iterator[tuple[int, str]]:
    """(line, text) of each paragraph, list item and row of a table."""
    begun, block, fence, rows = 0, list[str](), "", 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        edge = _FENCE.match(line)
        table = line.lstrip().startswith("|") and not fence
        plain = not (fence or edge or table or re.match(r"#+ ", line)) and bool(line.strip())
        begins = plain and _ITEM.match(line)
        if block and (begins or not plain):
            yield begun, "\n".join(block)
            block = []
        rows = rows + 1 if table else 0
        if edge and fence in ("", edge[1]):
            fence = "" if fence else edge[1]
        if table and rows > 2:
            yield number, line.strip()
        elif plain and not COMMENT.match(line.strip()):
            begun = begun if block else number
            block.append(line[begins.end() if begins else 0 :].strip())
        elif COMMENT.search(line):
            stray.append(f"line {number}: behind no sentence: {line.strip()}")


def _read_row(page: Page, line: int, row: str) -> None:
    marks = [found[1].strip() for found in COMMENT.finditer(row)]
    if marks and (len(marks) > 1 or not re.search(r"-->\s*\|$", row)):
        page.stray.append(f"line {line}: a row has one mark, at the end of its last cell")
    text = COMMENT.sub("", row).strip()
    page.units.append(Unit(line, text, marks[-1] if marks else None))


def _read_sentences(page: Page, line: int, block: str) -> None:
    at = 0
    for found in [*COMMENT.finditer(block), None]:
        text, until = block[at : found.start() if found else None], found.start() if found else 0
        sentences = list(_sentences(text))
        for offset, sentence in sentences[: -1 if found else None]:
            page.units.append(Unit(line + block.count("\n", 0, at + offset), sentence, None))
        if found is None:
            break
        here = line + block.count("\n", 0, until)
        behind = block[found.end() :]
        if not sentences:
            page.stray.append(f"line {here}: behind no sentence: {found[0]}")
        elif "\n" in found[0] or text[sentences[-1][0] :].endswith("\n"):
            page.stray.append(f"line {here}: not on the line of its sentence: {found[0]}")
        elif behind.strip() and not _END.search(_masked(sentences[-1][1])):
            page.stray.append(f"line {here}: in the middle of a sentence: {found[0]}")
        else:
            page.units.append(Unit(here, sentences[-1][1], found[1].strip()))
        at = found.end()


def _masked(text: str) -> str:
    """With no full stop that stands in code."""
    return _CODE.sub(lambda code: "X" * len(code[0]), text)


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """(where it begins, the sentence).  A heading in bold belongs to the sentence behind it."""
    at = 0
    for end in [*(found.end() for found in _END.finditer(_masked(text))), len(text)]:
        sentence = text[at:end]
        if _BOLD.fullmatch(sentence.strip()) and text[end:].strip():
            continue
        if sentence.strip():
            yield at + len(sentence) - len(sentence.lstrip()), sentence.strip()
        at = end


# ---- marks -------------------------------------------------------------------------------------


@cache
def known_tests(folder: Path) -> frozenset[str]:
    """`file::function` of every test.  No two files have one name."""
    return frozenset(
        f"{path.name}::{name}"
        for path in folder.rglob("test_*.py")
        for name in _tests_in(ast.parse(path.read_text()).body)
    )


def _tests_in(body: list[ast.stmt]) -> Iterator[str]:
    """As pytest collects them: those of the module and of its classes."""
    for each in body:
        name = getattr(each, "name", "")
        if isinstance(each, ast.ClassDef) and name.startswith("Test"):
            yield from _tests_in(each.body)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and name.startswith("test"):
            yield name


def wrong_with(unit: Unit, tests: Iterable[str], results: Path = RESULTS) -> str:
    """Why the unit's mark does not hold it; "" if it does."""
    if unit.mark is None:
        return "has no mark"
    kind, colon, rest = (part.strip() for part in unit.mark.partition(": "))
    if not colon:
        missing = {name.strip() for name in unit.mark.split(",")} - set(tests)
        return f"there is no test {', '.join(sorted(missing))}" if missing else ""
    if kind == "measured":
        return _wrong_with_figures(unit.text, results / rest)
    if kind != "no promise" or rest not in NO_PROMISE:
        return f"{unit.mark!r} is no mark; reasons for no promise are {', '.join(NO_PROMISE)}"
    meaning, fits = NO_PROMISE[rest]
    return "" if fits(unit.text) else f"is marked {rest!r}, which {meaning}"


def _wrong_with_figures(text: str, file: Path) -> str:
    """Each time that the unit names, in ms, is in the results, rounded as it is written."""
    if not file.is_file():
        return f"there are no results {file.name}"
    there = set(_times_ms(json.loads(file.read_text()), 0)) if file.suffix == ".json" else set()
    for said in re.findall(r"(\d+(?:\.\d+)?) ms", text):
        digits = len(said.partition(".")[2])
        if not any(round(time, digits) == float(said) for time in there):
            return f"{file.name} has no {said} ms"
    return ""


def _times_ms(value: object, unit: float) -> Iterator[float]:
    """The numbers under keys that end in a unit of time."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _times_ms(each, _UNITS_MS.get(key.rpartition("_")[2], unit))
    elif isinstance(value, list):
        for each in value:
            yield from _times_ms(each, unit)
    elif isinstance(value, int | float):
        yield value * unit

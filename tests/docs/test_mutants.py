"""What the documents name is there: tests, files of tests, and the code that a mutant changes.

In a name and in code `…` stands for what is left out.  In place of a file it is the one named
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT, TESTS

LISTS = sorted(TESTS.glob("MUTANTS*.md"))
PAGES = [*LISTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
THERE = {
    path.stem.removeprefix("test_"): re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)
    for path in TESTS.rglob("test_*.py")
}


@pytest.mark.parametrize("page", LISTS, ids=lambda page: page.name)
def test_every_test_that_a_mutant_names_is_there(page):
    file, named, wrong = "", 0, []
    table = re.findall(r"^\|.*", page.read_text(), re.MULTILINE)
    for of, name in re.findall(r"([\w/]+|…)::([\w…]+)", "\n".join(table)):
        file, named = (file if of == "…" else Path(of).name), named + 1
        if not any(fnmatchcase(test, name.replace("…", "*")) for test in THERE.get(file, ())):
            wrong.append(f"{file}::{name}")
    assert named > 50
    assert not wrong


def test_no_two_files_of_tests_have_one_name():
    """Mutants and promises name a test by its file, wherever that lies."""
    found = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(found) == len(set(found))


# ---- the code that a mutant changes ------------------------------------------------------------


def rows(page: str) -> Iterator[list[str]]:
    """The cells of each row of the tables, without their heads."""
    for line in re.findall(r"^\|.*\|$", page, re.MULTILINE):
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] not in ("mutant", "---"):
            yield cells


@cache
def source(files: str) -> str:
    """The text of the files that a row names, with single spaces."""
    texts = []
    for name in files.split(", "):
        found = [*(ROOT / "gpuring").rglob(name)] or [*TESTS.rglob(name)]
        assert len(found) == 1, f"{len(found)} files are called {name}"
        texts.append(found[0].read_text())
    return re.sub(r"\s+", " ", " ".join(texts))


def not_there(cells: list[str]) -> list[str]:
    """What the row quotes and its files do not have."""
    quotes, text = re.findall(r"`([^`]+)`", cells[2]), source(cells[1])
    if not quotes:
        return [f"{cells} quotes nothing"]
    return [
        f"{cells[0]}, {cells[1]}: {quote}"
        for quote in quotes
        if not re.search(".{1,200}?".join(map(re.escape, quote.split("…"))), text)
    ]


def test_each_mutant_quotes_code_that_is_there_and_names_a_test():
    found = list(rows((TESTS / "MUTANTS.md").read_text()))
    assert not [wrong for cells in found for wrong in not_there(cells)]
    assert not [cells for cells in found if len(cells) == 5 and "::" not in cells[4]]
    assert len(found) > 200


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("| a | claim.c | `gate(ring, …)` in claim | removed | x |", []),
        (
            "| a | claim.c, bell.c | `a \\|\\| b`; `gr_ring_bell(` | … | x |",
            ["a, claim.c, bell.c: a || b"],
        ),
        (
            "| a | claim.c | `gate(ring, … no such end` | removed | x |",
            ["a, claim.c: gate(ring, … no such end"],
        ),
        (
            "| a | claim.c | the gate | removed | x |",
            ["['a', 'claim.c', 'the gate', 'removed', 'x'] quotes nothing"],
        ),
    ],
)
def test_code_that_is_not_there_is_found(line, wrong):
    (cells,) = rows(
        f"| mutant | file | the line | changed to | caught by |\n|---|---|---|---|---|\n{line}\n"
    )
    assert not_there(cells) == wrong


@pytest.mark.parametrize("name", ["no_such.c", "host.py"])
def test_a_file_that_is_not_there_or_is_not_the_only_one_is_found(name):
    with pytest.raises(AssertionError, match=f"files are called {name}"):
        source(name)


# ---- files -------------------------------------------------------------------------------------


def test_every_file_of_tests_that_a_page_names_is_there():
    wrong = {
        f"{page.name}: {path}"
        for page in PAGES
        for path in re.findall(r"\btests/[\w./*-]*[\w*]", page.read_text())
        if not any(ROOT.glob(path))
    }
    assert not wrong

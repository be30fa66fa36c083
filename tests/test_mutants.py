"""What the documents name is there: each `file::test` of the lists of mutants, each file of tests.

In a name `…` stands for what was left out; for a file it is the one named before.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LISTS = sorted(TESTS.glob("MUTANTS*.md"))
PAGES = [*LISTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
THERE = {
    path.stem.removeprefix("test_"): re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)
    for path in TESTS.rglob("test_*.py")
}


@pytest.mark.parametrize("page", LISTS, ids=lambda page: page.name)
def test_every_test_that_a_mutant_names_is_there(page):
    file, named, wrong = "", 0, []
    rows = re.findall(r"^\|.*", page.read_text(), re.MULTILINE)
    for of, name in re.findall(r"([\w/]+|…)::([\w…]+)", "\n".join(rows)):
        file, named = (file if of == "…" else Path(of).name), named + 1
        if not any(fnmatchcase(test, name.replace("…", "*")) for test in THERE.get(file, ())):
            wrong.append(f"{file}::{name}")
    assert named > 50
    assert not wrong


def test_every_file_of_tests_that_a_page_names_is_there():
    wrong = {
        f"{page.name}: {path}"
        for page in PAGES
        for path in re.findall(r"\btests/[\w./*-]*[\w*]", page.read_text())
        if not any(ROOT.glob(path))
    }
    assert not wrong

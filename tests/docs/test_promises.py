"""Each sentence of the pages that promise something is quoted by the tests that hold it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.promises import PAGES, Quotation, held, promised, quotations, quoted_in, read

RESULTS = ROOT / "bench" / "results"
UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@pytest.fixture(scope="module")
def everything() -> list[Quotation]:
    return list(quotations())


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_is_quoted_and_every_quotation_is_there(page, everything):
    wrong = held(promised(page), (each for each in everything if each.page == page)).wrong
    assert not wrong, "\n".join(["", *wrong])


def test_quotations_are_of_these_pages(everything):
    assert {each.page for each in everything} == {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_text_alone(page):
    assert "<!--" not in PAGES[page].read_text()


def test_figures_are_those_of_the_results(everything):
    for quotation in everything:
        kind, _, file = quotation.by.partition("measured: ")
        if not kind:
            assert not_in(RESULTS / file, quotation.text) == []


def not_in(results: Path, text: str) -> list[str]:
    """The times in ms that the text names and that are not among the results, rounded in the same
    way."""
    there = list(times_ms(json.loads(results.read_text())))
    return [
        said
        for said in re.findall(r"(\d+(?:\.\d+)?) ms", text)
        if not any(round(time, len(said.partition(".")[2])) == float(said) for time in there)
    ]


def times_ms(value: object, unit: float = 0) -> Iterator[float]:
    """The numbers under keys that end in a unit of time."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from times_ms(each, UNITS_MS.get(key.rpartition("_")[2], unit))
    elif isinstance(value, list):
        for each in value:
            yield from times_ms(each, unit)
    elif isinstance(value, int | float):
        yield value * unit


# ---- the checks fail where they should -----------------------------------------------------------

TEXT = """
# A heading

One of
two lines. **Two.** Version 3.10 is `code. Not` three.

* Four. Five:
  ```
  No sentence.
  ```
    1. Six (below five).

![No sentence. None.](a.svg)

| no | row |
|---|---|
| a row. Really | yes |
| another | yes |
"""
ALL = ["One of two lines. **Two.** Version 3.10 is `code. Not` three.", "Four. Five:"]
ALL += ["Six (below five).", "a row. Really | yes", "another"]


def wrong(text: str, *quoted: str) -> list[str]:
    return held(read(text), (Quotation("test_it", "", each) for each in quoted)).wrong


def test_what_is_quoted_is_held():
    assert wrong(TEXT, *ALL) == []


def test_what_nobody_quotes_is_named():
    found = [each.text for each in read(TEXT)]
    assert len(found) == 7
    for sentence in found:
        quoted = (each.strip("| ") for each in found if each != sentence)
        assert wrong(TEXT, *quoted) == [f"neither a test nor no_promise.toml quotes: {sentence}"]


@pytest.mark.parametrize(
    ("quotation", "why"),
    [
        ("Two.", "is not there: Two."),  # its heading in bold belongs to it
        ("Four. Four and a half.", "is not there: Four and a half."),
        ("four.", "is not there: four."),
        ("One of", "is not there: One of"),
        ("really | yes", "is not there: really | yes"),
        ("No sentence.", "is not there: No sentence."),
        ("no | row", "is not there: no | row"),
        ("yes", "2 rows have: yes"),
    ],
)
def test_who_quotes_what_is_not_there_is_named(quotation, why):
    (found,) = wrong(TEXT, *ALL, quotation)
    assert found.startswith("test_it quotes what ")
    assert found.endswith(why)


def test_who_quotes_a_sentence_that_was_changed_is_named(everything):
    """The sentence is changed in a copy of a page.  The new sentence has no test then."""
    there, then = "is always told.", "is seldom told."
    copy = [each._replace(text=each.text.replace(there, then)) for each in promised("failure.md")]
    found = held(copy, (each for each in everything if each.page == "failure.md")).wrong
    test = "tests/kill/test_device_kill.py::test_whoever_dies_wherever_streams_go_on"
    assert any(each.startswith(test) and each.endswith(there) for each in found)
    assert found[-1].endswith(f"quotes: A reader of a torn frame {then}")


def test_quotations_are_those_of_tests_that_pytest_collects():
    mark = '@promise("a.md", "One. " "Two.", "Three.")\n'
    source = "".join(
        f"{mark}{each}: pass\n"
        for each in ("def test_one()", "async def test_two()", "def helper()", "class Tests")
    )
    assert list(quoted_in(source, "test_a.py")) == [
        Quotation(f"test_a.py::{test}", "a.md", text)
        for test in ("test_one", "test_two")
        for text in ("One. Two.", "Three.")
    ]


def test_figures_that_the_results_do_not_have_are_found(tmp_path):
    results = tmp_path / "some.json"
    results.write_text('[{"p50_ms": [4.25, "5"], "rounds": 50, "wait_us": {"max": 61700}}]')
    assert not_in(results, "4.2 ms, 4.25 ms, 62 ms, and 7 s") == []
    assert not_in(results, "5 ms, 50 ms, 4.26 ms") == ["5", "50", "4.26"]

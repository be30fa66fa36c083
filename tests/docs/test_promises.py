"""Each sentence of the pages that promise something names the tests that hold it (promises.py)."""

from __future__ import annotations

import re

import pytest

from tests import ROOT
from tests.docs.promises import COMMENT, TESTS, Page, Unit, known_tests, read, section, wrong_with

FAILURE, SERVICES, README = "docs/failure.md", "docs/services.md", "README.md"

UNPROMISED = {FAILURE: 31, SERVICES: 13, README: 6}
"""How many sentences are marked `no promise`.  Whoever adds one changes the number, and is seen."""


def page(name: str) -> str:
    text = (ROOT / name).read_text()
    return section(text, "Limits") if name == README else text


@pytest.mark.parametrize("name", UNPROMISED)
def test_every_sentence_is_held(name):
    found, tests = read(page(name)), known_tests(TESTS)
    wrong = [
        f"{name}:{unit.line}: {why}: {unit.text}"
        for unit in found.units
        if (why := wrong_with(unit, tests))
    ]
    assert not found.stray + wrong, "\n".join(["", *found.stray, *wrong])
    assert len(found.units) > 10
    unpromised = [unit for unit in found.units if (unit.mark or "").startswith("no promise")]
    assert len(unpromised) == UNPROMISED[name]


def test_nothing_else_of_the_readme_is_marked():
    outside = set((ROOT / README).read_text().split("\n")) - set(page(README).split("\n"))
    assert not [line for line in outside if "<!--" in line and "--8<--" not in line]


# ---- the checker fails where it should ---------------------------------------------------------

TESTS_THERE = frozenset({"test_a.py::test_x", "test_b.py::test_y"})
A = "<!-- test_a.py::test_x -->"


def verdict(text: str, results=TESTS) -> list[str]:
    found = read(text)
    return found.stray + [
        why for each in found.units if (why := wrong_with(each, TESTS_THERE, results))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"# A heading.\n\nOne. {A}\nTwo. {A}",
        f"One `e.g. this. That` is code. {A}",
        f"**A heading.** A sentence. {A}",
        f"Version 3.10 or 0.5 s. {A} **Bold.** {A} `code` too. {A}",
        f"* An item\n  of two lines. {A}\n* Another. {A}\n    * One below. {A}",
        "Both. <!-- test_b.py::test_y, test_a.py::test_x -->",
        f"| head | er |\n|---|---|\n| a row. Really | yes {A} |",
        "```\nNo promise.\n```",
        "A list: <!-- no promise: introduces -->",
        "See [there](x.md). <!-- no promise: points -->",
    ],
)
def test_what_is_held_is_left_alone(text):
    assert verdict(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("One.", "has no mark"),
        (f"One. Two. {A}", "has no mark"),
        (f"**One.** Two. Three. {A}", "has no mark"),
        ("**One.**", "has no mark"),
        (f"One. {A} Two.", "has no mark"),
        (f"One. {A}\n`Two` and so on.", "has no mark"),
        (f"* One. {A}\n* Two.", "has no mark"),
        ("Three:\n\n* One.", "has no mark"),
        ("| h |\n|---|\n| row |", "has no mark"),
        (f"| h |\n|---|\n| row {A} |\n| row |", "has no mark"),
        ("One. <!-- test_a.py::test_z -->", "no test test_a.py::test_z"),
        ("One. <!-- test_b.py::test_x -->", "no test test_b.py"),
        ("One. <!-- test_a.py::test_x test_b -->", "no test"),
        ("One. <!-- trust me -->", "no test trust me"),
        (f"# Heading {A}", "behind no sentence"),
        (f"{A}\n\nOne. {A}", "behind no sentence"),
        (f"One. {A} {A}", "behind no sentence"),
        (f"One. {A}\n{A}\nTwo. {A}", "behind no sentence"),
        (f"```\nOne. {A}\n```", "behind no sentence"),
        (f"| h {A} |\n|---|\n| row {A} |", "behind no sentence"),
        (f"| h | h |\n|---|---|\n| row {A} | more |", "at the end of its last cell"),
        (f"One {A} and two. {A}", "in the middle of a sentence"),
        ("One. <!-- test_a.py::test_x,\ntest_a.py::test_x -->", "not on the line"),
        ("One. <!-- no promise: obvious -->", "reasons for no promise are"),
        ("One. <!-- no promise: -->", "no test no promise"),
        ("A list. <!-- no promise: introduces -->", "up to a colon"),
        ("See there. <!-- no promise: points -->", "another page"),
        ("A word. <!-- no promise: defines -->", "what a word means"),
        ("5 ms. <!-- measured: none.json -->", "no results none.json"),
        ("5 ms. <!-- measured: some.json -->", "some.json has no 5 ms"),
        ("50 ms. <!-- measured: some.json -->", "some.json has no 50 ms"),  # of another unit
        ("4.26 ms. <!-- measured: some.json -->", "some.json has no 4.26 ms"),
    ],
)
def test_what_is_not_held_is_found(text, why, tmp_path):
    (tmp_path / "some.json").write_text('[{"p50_ms": [4.25, "5"], "rounds": 50, "max_us": 50}]')
    assert any(why in each for each in verdict(text, tmp_path)), verdict(text, tmp_path)


def test_figures_are_held_to_the_results_as_rounded(tmp_path):
    (tmp_path / "some.json").write_text('[{"p50_ms": 4.25, "wait_us": {"max": 61700}}]')
    assert verdict("4.2 ms, 62 ms. <!-- measured: some.json -->", tmp_path) == []


def test_tests_are_those_that_pytest_collects(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "test_a.py").write_text(
        "def test_one(): pass\n"
        "async def test_two(): pass\n"
        "class TestIt:\n    def test_three(self): pass\n"
        "class Helper:\n    def test_four(self): pass\n"
        "def make():\n    def test_five(): pass\n"
        "# def test_six(): pass\n"
    )
    (tmp_path / "helper.py").write_text("def test_seven(): pass\n")
    assert known_tests(tmp_path) == {f"test_a.py::test_{n}" for n in ("one", "two", "three")}


def test_a_line_is_where_its_sentence_is():
    found = read(f"# H\n\nOne. {A}\nTwo,\nstill two. {A}\n\n| h |\n|---|\n| row |")
    assert found == Page(
        [Unit(3, "One.", A[5:-4]), Unit(5, "Two,\nstill two.", A[5:-4]), Unit(9, "| row |", None)],
        [],
    )


def test_one_section_is_a_page():
    assert section("# A\na\n## B\nb\n## C\nc", "B") == "\n\n## B\nb\n\n"


# ---- readers do not see it ---------------------------------------------------------------------


def as_github(text: str) -> str:
    markdown_it = pytest.importorskip("markdown_it")
    return str(markdown_it.MarkdownIt("commonmark").enable("table").render(text))


def as_the_site(text: str) -> str:
    markdown = pytest.importorskip("markdown")
    return str(markdown.markdown(text, extensions=["tables", "fenced_code"]))


def without_comments(text: str) -> str:
    return re.sub(r"\s*" + COMMENT.pattern, "", text)


@pytest.mark.parametrize("shown", [as_github, as_the_site])
@pytest.mark.parametrize("name", UNPROMISED)
def test_the_marks_change_nothing_that_is_shown(name, shown):
    assert without_comments(shown(page(name))) == shown(without_comments(page(name)))


@pytest.mark.parametrize("shown", [as_github, as_the_site])
def test_a_mark_that_is_shown_or_ends_a_paragraph_is_seen(shown):
    for text in (f"```\nOne. {A}\n```", f"One.\n{A}\nTwo."):
        assert without_comments(shown(text)) != shown(without_comments(text))

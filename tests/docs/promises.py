"""Who holds what the pages promise: their sentences and table rows, and the tests that quote them.

A test quotes with `@promise("failure.md", "A reader of a torn frame is always told.")`.  What it
quotes is one or more whole sentences, or cells of one row with the bars between them.  Sentences
that no test holds are quoted in no_promise.toml, with the reason.

Sentences are those of paragraphs and of list items.  Headings, the first row of a table, code and
pictures do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests import ROOT, TESTS

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it
    import tomli as tomllib

PAGES = {
    "limits.md": ROOT / "docs" / "limits.md",
    "failure.md": ROOT / "docs" / "failure.md",
    "services.md": ROOT / "docs" / "services.md",
    "parts.md": ROOT / "docs" / "parts.md",
    "trust.md": ROOT / "docs" / "trust.md",
    "abi.md": ROOT / "docs" / "abi.md",
    "architecture.md": ROOT / "docs" / "architecture.md",
    "containers.md": ROOT / "docs" / "containers.md",
    "streams.md": ROOT / "docs" / "streams.md",
}
SECTIONS = {
    "limits.md": "Limits",
    "abi.md": "Stability",
    "architecture.md": "When a death is noticed",
    "containers.md": "Who is cleared when it dies",
    "streams.md": "Which calls wait for a GPU",
}
"""Of these pages only one section."""

_BOLD = re.compile(r"\*\*[^*]+\*\*")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"""[.!?]["'”)*_]*(?=\s+["“(\[*_A-Z0-9]|\s*$)""")
_FENCED = re.compile(r"^ *(```|~~~).*?^ *\1$", re.M | re.S)
_HEAD = re.compile(r"^\|.*\n\|[-:| ]+$", re.M)
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)$", re.M)
_HEADING = re.compile(r"^(#+ .*)$", re.M)
_ITEM = re.compile(r"(?:[*+-]|\d+[.)]) ")
_BLOCK = re.compile(rf"\n(?=\s*\n|\s*{_ITEM.pattern}|\|)")


class Sentence(NamedTuple):
    """A sentence, or a row of a table, in one line."""

    text: str
    heading: str


class Quotation(NamedTuple):
    by: str
    """`tests/…/test_file.py::test`, or the reason why no test holds what is quoted."""

    page: str
    text: str


# ---- pages -------------------------------------------------------------------------------------


def promised(page: str) -> list[Sentence]:
    found = read(PAGES[page].read_text())
    return [each for each in found if SECTIONS.get(page, each.heading) == each.heading]


def read(text: str) -> Iterator[Sentence]:
    heading = ""
    for none in (_FENCED, _PICTURE, _HEAD):
        text = none.sub("\n", text)
    text = _HEADING.sub(r"\n\1\n", text)
    for block in map(str.split, _BLOCK.split(text)):
        line = " ".join(block)
        if line.startswith("#"):
            heading = line.strip("# ")
        elif line.startswith("|"):
            yield Sentence(line, heading)
        else:
            begins = _ITEM.match(line)
            text = line[begins.end() :] if begins else line
            yield from (Sentence(each, heading) for each in sentences(text))


def sentences(line: str) -> Iterator[str]:
    """The sentences of a page.  A heading in bold belongs to the sentence behind it.  A full stop
    in code ends no sentence."""
    at, masked = 0, _CODE.sub(lambda code: "X" * len(code[0]), line)
    for end in [*(found.end() for found in _END.finditer(masked)), len(line)]:
        sentence = line[at:end].strip()
        if sentence and not (_BOLD.fullmatch(sentence) and line[end:].strip()):
            yield sentence
            at = end


# ---- quotations --------------------------------------------------------------------------------


def quotations() -> Iterator[Quotation]:
    """The quotations in the tests, and those in no_promise.toml."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if "@promise(" in (source := path.read_text()):
            yield from quoted_in(source, str(path.relative_to(ROOT)))
    for reason, pages in tomllib.loads((TESTS / "docs" / "no_promise.toml").read_text()).items():
        for page, lines in pages.items():
            for text in re.split(r"\n(?! )", lines.strip()):
                yield Quotation(reason, page, " ".join(text.split()))


def quoted_in(source: str, path: str) -> Iterator[Quotation]:
    """What the tests of a file quote.  The file is not imported, because some need a GPU for
    that."""
    for test in ast.parse(source).body:
        if getattr(test, "name", "").startswith("test"):
            for mark in test.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "promise":
                    page, *texts = map(ast.literal_eval, mark.args)
                    yield from (Quotation(f"{path}::{test.name}", page, text) for text in texts)


class Held(NamedTuple):
    by: dict[str, list[str]]
    """Who quotes each sentence."""

    wrong: list[str]
    """Quotations of what is not there, and sentences that nobody quotes."""


def held(promises: Iterable[Sentence], quoted: Iterable[Quotation]) -> Held:
    by: dict[str, list[str]] = {each.text: [] for each in promises}
    wrong = []
    for quotation in quoted:
        rows = [text for text in by if f"| {quotation.text} |" in text]
        if len(rows) > 1:
            wrong.append(f"{quotation.by} quotes what {len(rows)} rows have: {quotation.text}")
            continue
        texts = rows or list(sentences(quotation.text))
        if missing := [text for text in texts if text not in by]:
            wrong.append(f"{quotation.by} quotes what is not there: {' '.join(missing)}")
        for text in texts:
            by.get(text, []).append(quotation.by)
    wrong += [f"neither a test nor no_promise.toml quotes: {text}" for text in by if not by[text]]
    return Held(by, wrong)

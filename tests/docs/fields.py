"""The table of fields in docs/protocol.md, made from gpuring/native/core/layout.h.

    python -m tests.docs.fields    writes it into the page

The header's comments have the words, and the compiled core says where each field lies.  The head of
layout.h says how such a comment is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuring import native
from tests import ROOT

PAGE = ROOT / "docs" / "protocol.md"
HEADER = ROOT / "gpuring" / "native" / "core" / "layout.h"
TABLES = ("head", "death", "link", "sub", "peer", "slot", "take", "tear")

_HEAD = """\
| table | field | offset | size | writer | meaning |
|---|---|---:|---:|---|---|
"""
_STRUCT = re.compile(r"(/\*(?:(?!\*/).)*\*/\n)?struct gr_(\w+) \{\n(.*?)\n\};", re.DOTALL)
_PIECE = re.compile(
    r"\s*(?:/\*(?P<comment>.*?)\*/"
    r"|(?:alignas\(\w+\) )?(?:struct )?\w+ (?P<name>\w+)(?:\[\w+\])?;(?: */\*(?P<behind>.*?)\*/)?)",
    re.DOTALL,
)


def described(header: str) -> dict[tuple[str, str], tuple[str, str]]:
    """The writer and the meaning of each field of a table."""
    found = {}
    for before, struct, body in _STRUCT.findall(header):
        table = struct.removesuffix("_entry")
        if table in TABLES:
            for name, writer, meaning in _fields(body, _parts(before)[1]):
                found[table, name] = writer, meaning
    return found


def _fields(body: str, writer: str) -> Iterator[tuple[str, str, str]]:
    """(name, writer, meaning) of the fields of a struct."""
    said, end = "", 0
    for piece in _PIECE.finditer(body):
        assert piece.start() == end, f"layout.h: {body[end : piece.start()]!r} is no field"
        end = piece.end()
        if piece["comment"]:
            meaning, own = _parts(piece["comment"])
            said, writer = piece["comment"] if meaning else "", writer if meaning else own
        else:
            meaning, own = _parts(piece["behind"] or said)
            yield piece["name"], own or writer, meaning
            said = ""


def _parts(comment: str) -> tuple[str, str]:
    """What a comment says before "Writer:", and after it."""
    text = " ".join(re.sub(r"^\s*\*? ?|/\*|\*/", " ", comment, flags=re.MULTILINE).split())
    meaning, _, writer = text.partition("Writer: ")
    return meaning.rstrip(" ."), writer.rstrip(" .")


def table() -> str:
    """The table as the page has it."""
    texts = described(HEADER.read_text())
    rows = []
    for of in TABLES:
        mine = [field for field in native.layout_fields() if field[0] == of]
        for _, name, offset, nbytes in sorted(mine, key=lambda field: field[2]):
            writer, meaning = texts[of, name]
            shown = meaning.replace("|", "&#124;")
            rows.append(f"| {of} | {name} | {offset} | {nbytes} | {writer} | {shown} |\n")
    return _HEAD + "".join(rows)


def page() -> str:
    """docs/protocol.md with the table as it should be."""
    before, head, behind = PAGE.read_text().partition(_HEAD)
    assert head, f"{PAGE} has no such table"
    return before + table() + re.sub(r"\A(\|.*\n)*", "", behind)


if __name__ == "__main__":
    PAGE.write_text(page())

"""The table of fields in docs/abi.md and the layout version, from gpuring/native/core/layout.h.

`python -m tests.docs.fields` writes them into the page.
"""

from __future__ import annotations

import re

from tests import ROOT
from tests.helpers.layout import FIELDS, HEADER, TABLES

PAGE = ROOT / "docs" / "abi.md"

_HEAD = """\
| table | field | offset | size | writer | meaning |
|---|---|---:|---:|---|---|
"""


def table() -> str:
    """The table as the page has it."""
    rows = []
    for of in TABLES:
        for name, field in ((name, field) for (its, name), field in FIELDS.items() if its == of):
            shown = field.meaning.replace("|", "&#124;")
            place = f"{field.offset} | {field.nbytes}"
            rows.append(f"| {of} | {name} | {place} | {field.writer} | {shown} |\n")
    return _HEAD + "".join(rows)


def page() -> str:
    """docs/abi.md with the table and the version as they should be."""
    version = re.search(r"GR_VERSION = (\d+)", HEADER.read_text())
    assert version
    text = re.sub(r"^VERSION = \d+$", f"VERSION = {version[1]}", PAGE.read_text(), flags=re.M)
    before, head, behind = text.partition(_HEAD)
    assert head, f"{PAGE} has no such table"
    return before + table() + re.sub(r"\A(\|.*\n)*", "", behind)


if __name__ == "__main__":
    PAGE.write_text(page())

"""The short labels of comments (H1, G12, edge D), and what docs/holes.md says of each."""

from __future__ import annotations

import re
from pathlib import Path

from tests import ROOT

PAGE = ROOT / "docs" / "holes.md"
LABEL = re.compile(r"\b(?:[ACDEGHMT]\d{1,2}|[Ee]dge [A-Z])\b")
NO_LABELS = {"C11", "M8"}  # the language; NumPy's code for dates
USERS = (
    *("gpuring/native/core/*.[ch]", "gpuring/native/device/*.[ch]", "gpuring/**/*.py"),
    *("gpuring/*.pyx", "gpuring/*.pxi"),
    *("tests/**/*.py", "tests/**/*.[ch]", "tests/*.md", "*.md", "docs/**/*.md"),
)


def used() -> dict[str, set[str]]:
    """Each label, and the files in which it is used."""
    found: dict[str, set[str]] = {}
    for pattern in USERS:
        for path in ROOT.glob(pattern):
            if path not in (PAGE, Path(__file__)):
                for label in LABEL.findall(path.read_text()):
                    found.setdefault(label.replace("Edge", "edge"), set()).add(path.name)
    return {label: files for label, files in found.items() if label not in NO_LABELS}


def explained() -> dict[str, str]:
    """Each entry of the page: its label, and its text."""
    entries = re.findall(
        r"^\* \*\*(edge [A-Z]|\w+): (.*?)(?=^\* \*\*|^#|\Z)", PAGE.read_text(), re.M | re.S
    )
    assert len(entries) == len(dict(entries))
    return dict(entries)

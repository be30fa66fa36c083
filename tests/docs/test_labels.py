"""A page explains each short label that a comment has (H1, G12, edge D)."""

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


def test_every_label_is_explained():
    unexplained = {label: files for label, files in used().items() if label not in explained()}
    assert not unexplained
    assert len(used()) > 40


def test_every_explanation_is_of_a_label_that_is_used():
    assert not set(explained()) - set(used())


def test_every_explanation_names_a_file_that_is_there():
    """The explanation says what prevents the hole now, and where."""
    for label, text in explained().items():
        files = re.findall(r"`((?:core|device|docs|tests)/[\w./-]+)`", text)
        assert files, f"{label} names no file"
        for name in files:
            path = (
                ROOT / name
                if name.startswith(("docs", "tests"))
                else ROOT / "gpuring/native" / name
            )
            assert path.exists(), f"{label}: {name}"

"""docs/holes.md explains each short label that a comment has."""

from __future__ import annotations

import re

from tests import ROOT
from tests.docs.labels import explained, used


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

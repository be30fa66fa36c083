"""docs/sizing.md says how much of /dev/shm the header of a ring takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpuring
from tests import ROOT

PAGE = (ROOT / "docs" / "sizing.md").read_text()
SIZES = re.findall(r"takes about (\d+) KiB,\s+and\s+([\d.]+) KiB for\s+each slot", PAGE)
ROOM = [{}, {"max_peers": 250, "max_subscriptions": 250}]


@pytest.mark.parametrize("slots", [8, 1024])
@pytest.mark.parametrize(("room", "size"), [*zip(ROOM, SIZES, strict=True)])
def test_the_header_is_as_large_as_the_page_says(name, slots, room, size):
    fixed, each = map(float, size)
    with gpuring.create(name, slots=slots, shape=1, dtype="u1", device="host", **room):
        kib = Path("/dev/shm", f"gpuring.{name}").stat().st_size / 1024
    assert kib == pytest.approx(fixed + slots * each, rel=0.1)

"""The pictures are those that docs/pictures/draw.py draws."""

from __future__ import annotations

import importlib.util

import pytest

from tests import ROOT

PICTURES = ROOT / "docs" / "pictures"
_spec = importlib.util.spec_from_file_location("draw", PICTURES / "draw.py")
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)


@pytest.mark.parametrize("make", draw.PICTURES, ids=lambda make: make.__name__)
def test_a_picture_is_what_its_code_draws(make):
    picture = make()
    assert (PICTURES / f"{picture.name}.svg").read_text() == picture.svg()

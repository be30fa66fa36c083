"""Fixtures of the tests of services."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_slices(monkeypatch):
    """Makes slices so long that a wait ends in time only if it is woken."""
    monkeypatch.setattr("gpuring.service._inbox.SLICE_S", 60)

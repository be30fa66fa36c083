"""Fixtures of the tests of services."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_slices(monkeypatch):
    """Whoever waits is woken: nobody looks again after a while."""
    monkeypatch.setattr("gpuring.service._inbox.SLICE_S", 60)

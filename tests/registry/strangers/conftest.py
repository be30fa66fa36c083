"""A stranger for each test that wants one.  His names are gone after it."""

from __future__ import annotations

import os

import pytest

from tests.registry.strangers import as_nobody, sweep


@pytest.fixture(autouse=True)
def needs_root():
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")


@pytest.fixture
def stranger(children, name):
    """Starts `call(pipe, *args)` as another user."""
    yield lambda call, *args: children(as_nobody, call, *args)
    sweep(f"gpuring.{name}")

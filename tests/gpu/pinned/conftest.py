"""Pinned rings, which a GPU and the CPU use."""

from __future__ import annotations

import pytest

import gpuring
from tests.gpu.pinned import make


@pytest.fixture
def ring(name):
    """A pinned ring of this process's GPU."""
    with make(name, device="cuda") as ring:
        yield ring


@pytest.fixture
def by_cpu(ring):
    """Another handle of the same ring.  It uses the slots by the CPU."""
    with gpuring.attach(ring.name) as other:
        yield other

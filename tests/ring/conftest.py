"""The ring of tests that want no other one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuring
from tests.helpers.rings import small_ring


@pytest.fixture
def ring(name: str) -> Iterator[gpuring.Ring]:
    with small_ring(name) as made:
        yield made

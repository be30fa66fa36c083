"""A service with room for parts, and a client of it."""

from __future__ import annotations

import pytest

import gpuring
from tests.service.services import serve


@pytest.fixture
def pair(name):
    with serve(name) as server, gpuring.connect(name, calls=3, parts=2) as client:
        yield server, client
        assert client.in_flight == 0

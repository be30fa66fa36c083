"""Rings whose frames are aligned."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.helpers.places import HOST
from tests.ring.align import Streams


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def streams(name, stack):
    """The same rings in host memory."""
    return lambda n=2, **options: Streams(stack, HOST, name, n, **options)

"""Rings for batches, in every kind of memory."""

from __future__ import annotations

import pytest

from tests.helpers.places import HOST, STREAM_GATED


@pytest.fixture(
    params=[HOST, *(pytest.param(place, marks=pytest.mark.gpu) for place in STREAM_GATED)],
    ids=lambda place: place.name,
)
def place(request):
    """Kinds of memory without the host gate, with which a call that may not block could find the
    GPU busy.  test_gpu_order.py has that gate."""
    return request.param


@pytest.fixture
def ring(place, name):
    with place.create(name, slots=4, shape=(16,), dtype="u1") as ring:
        yield ring

"""Rings on a GPU, with each synchroniser and gate."""

from __future__ import annotations

import pytest

from tests.helpers.places import STREAM_GATED

SAFE = {
    "timeline": {"sync": "timeline"},
    "timeline-hostgate": {"sync": "timeline", "gate": "host"},
    "event-hostgate": {"sync": "event", "gate": "host"},
}


@pytest.fixture(params=STREAM_GATED, ids=lambda place: place.name)
def gated(request):
    return request.param


@pytest.fixture(params=SAFE)
def safe(request):
    return SAFE[request.param]

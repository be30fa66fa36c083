"""Rings over a driver whose GPU is done at once (instant_driver.py)."""

from __future__ import annotations

import pytest

import gpuring
from tests.native.device.instant_driver import STREAM, attach_driver, pay


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=4, shape=4, dtype="u1", device="host") as ring:
        attach_driver(ring)
        yield ring
        assert not ring.driver.broken


@pytest.fixture
def open_fence(ring):
    """(producer, index): a published frame whose GPU work is not done."""
    producer = ring.producer()
    ring.driver.stuck = True
    with producer.claim(stream=STREAM) as slot:
        pass
    ring.driver.stuck = False
    ring.driver.writes.clear()
    yield producer, slot.index
    pay(ring, producer, slot.index)

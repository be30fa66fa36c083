"""Rings over a driver whose GPU is done at once (instant_driver.py)."""

from __future__ import annotations

import pytest

import gpuring
from device.instant_driver import STREAM, Sync, pay


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=4, shape=4, dtype="u1", device="host") as ring:
        ring._sync = Sync(ring._header)
        yield ring


@pytest.fixture
def open_fence(ring):
    """(producer, index): a published frame whose GPU work is not done."""
    producer = ring.producer()
    ring._sync.disarm()
    ring._sync.record = lambda *_: None
    with producer.claim(stream=STREAM) as slot:
        pass
    del ring._sync.record
    ring._sync.rearm()
    yield producer, slot.index
    pay(ring, producer, slot.index)

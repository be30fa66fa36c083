"""GPURING_DEBUG=1 and what is made of a slot besides arrays."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import gpuring
from gpuring.ring import debug

META = np.dtype([("pts", "i8"), ("roi", "f4", (4,)), ("pose", [("x", "f4"), ("at", "f4", (2,))])])


@pytest.fixture
def ring(monkeypatch, name):
    monkeypatch.setattr(debug, "ON", True)
    spec = {"slots": 2, "shape": 4, "dtype": "u1", "meta": META, "device": "host"}
    with gpuring.create(name, **spec) as ring:
        yield ring


def put(producer, pts):
    with producer.claim(0) as slot:
        slot.meta["pts"], slot.meta["pose"]["at"][1] = pts, 2


@pytest.mark.parametrize("part", ["array", "meta"])
def test_a_copy_is_pickled_as_a_plain_one(ring, part):
    with ring.producer() as producer, ring.consumer() as frames:
        put(producer, 7)
        with frames.acquire(0) as slot:
            sent = pickle.dumps(getattr(slot, part).copy())
    got = pickle.loads(sent)
    assert type(got) is (np.ndarray if part == "array" else np.void)
    assert b"gpuring" not in sent

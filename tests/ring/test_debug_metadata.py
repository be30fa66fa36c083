"""GPURING_DEBUG=1 finds metadata that is used too late, and changes nothing else of it."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import gpuring
from gpuring.errors import StaleViewWarning
from gpuring.ring import debug

META = np.dtype([("pts", "i8"), ("roi", "f4", (4,)), ("pose", [("x", "f4"), ("at", "f4", (2,))])])
USES = {
    "a number": lambda meta: meta["pts"],
    "an array": lambda meta: meta["roi"].sum(),
    "a structure": lambda meta: meta["pose"]["x"],
    "an array of a structure": lambda meta: meta["pose"]["at"][0],
    "all": lambda meta: meta.item(),
    "print": repr,
}


@pytest.fixture
def ring(monkeypatch, name):
    monkeypatch.setattr(debug, "ON", True)
    spec = {"slots": 2, "shape": 4, "dtype": "u1", "meta": META, "device": "host"}
    with gpuring.create(name, **spec) as ring:
        yield ring


def put(producer, pts):
    with producer.claim(0) as slot:
        slot.meta["pts"], slot.meta["pose"]["at"][1] = pts, 2


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_metadata_used_after_release(ring, use):
    with ring.producer() as producer, ring.consumer() as frames:
        put(producer, 7)
        with frames.acquire(0) as slot, warnings.catch_warnings():
            warnings.simplefilter("error")
            meta, copy = slot.meta, slot.meta.copy()
            use(meta)
        with pytest.warns(StaleViewWarning, match=r"sequence 2 .*used after it was released"):
            use(meta)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(copy)


@pytest.mark.parametrize("kept", [lambda meta: meta, lambda meta: meta["pose"]["at"]])
def test_metadata_that_is_kept_is_reported_when_its_slot_comes_again(ring, kept):
    with ring.producer() as producer, ring.consumer() as frames:
        for pts in range(2):
            put(producer, pts)
        with frames.acquire(0) as slot:
            view = kept(slot.meta)
        frames.acquire(0).release()
        put(producer, 2)
        with pytest.warns(StaleViewWarning, match=r"sequence 2 .*kept.* sequence 4"):
            frames.acquire(0).release()
        del view


def test_metadata_is_what_it_is_without_debug_mode(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        put(producer, 7)
        with frames.acquire(0) as slot:
            assert slot.meta.dtype == META
            assert slot.meta.item()[0] == slot.meta["pts"] == 7
            assert slot.meta["pose"]["at"].tolist() == [0, 2]
            with pytest.raises(ValueError, match="read-only"):
                slot.meta["pts"] = 1
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            slot.meta["pts"]
        with (
            producer.claim(0) as slot,
            pytest.raises(AttributeError, match="is written in place"),
        ):
            slot.meta = 3


@pytest.mark.parametrize("part", ["array", "meta"])
def test_a_copy_is_pickled_as_a_plain_one(ring, part):
    with ring.producer() as producer, ring.consumer() as frames:
        put(producer, 7)
        with frames.acquire(0) as slot:
            sent = pickle.dumps(getattr(slot, part).copy())
    got = pickle.loads(sent)
    assert type(got) is (np.ndarray if part == "array" else np.void)
    assert b"gpuring" not in sent

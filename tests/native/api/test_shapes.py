"""Frames that are smaller than their slots, in C and in Python, and shapes that do not fit."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.rings import put
from tests.helpers.words import poke
from tests.native.api.puppet import CONSUMES, PRODUCES


def test_a_smaller_frame_has_its_shape_at_both_ends(name, puppet):
    with gpuring.create(
        name, slots=2, shape=(4, 6), dtype="u1", device="host"
    ) as ring, ring.consumer() as frames, ring.producer() as producer:  # fmt: skip
        c = puppet(name, PRODUCES, CONSUMES)
        c.ok("claim", 0, 0, 0)
        assert c.refused("shape", 0, 5, 5)[0] == "INVALID"
        assert c.refused("shape", 0, 0)[0] == "INVALID"
        c.ok("shape", 0, 3, 2)
        c.ok("publish", 0, 1, 7)
        with frames.acquire(5) as slot:
            assert slot.array.shape == (3, 2)
        assert c.ok("acquire", 1, 0, 0)["shape"] == "3,2"
        c.ok("release", 1, 1)
        with producer.claim(5, shape=(2, 2)) as slot:
            slot.array[:] = 1
        assert c.ok("acquire", 1, 0, 0)["shape"] == "2,2"


@pytest.mark.parametrize("wanted", [0, 4])
@pytest.mark.parametrize("extent", [13, 2**63, 0])
def test_a_shape_that_does_not_fit_is_refused_once(name, puppet, extent, wanted):
    """Any process that may write the ring can write such a shape.  The frames around it are
    read."""
    with gpuring.create(
        name, slots=4, shape=(4, 6), dtype="u1", device="host"
    ) as ring, ring.producer() as producer:  # fmt: skip
        c = puppet(name, CONSUMES)
        for _ in range(4):
            producer.claim(5, shape=(2, 2)).publish()
        poke(ring, "slot", "shape", extent, 1)
        assert c("acquire", 0, 0, wanted).count("shape=2,2") == 1
        status, text = c.refused("acquire", 0, 0, wanted)
        assert status == "INCOMPATIBLE"
        assert "holds values that gpuring never writes" in text
        assert c("acquire", 0, 0, 4).count("shape=2,2") == 2
        c.ok("release", 0, 3)
        put(producer, 4)
        assert c("acquire", 0, 0, 4).count("shape=") == 4


def test_a_batch_ends_before_a_shape_that_does_not_fit(name, puppet):
    """All frames around it come, and none comes twice."""
    with gpuring.create(
        name, slots=4, shape=(4, 6), dtype="u1", device="host"
    ) as ring, ring.producer() as producer:  # fmt: skip
        c = puppet(name, CONSUMES)
        for _ in range(4):
            producer.claim(5, shape=(2, 2)).publish()
        poke(ring, "slot", "shape", 13, 2)
        assert c("acquire", 0, 0, 4).count("shape=2,2") == 2
        assert c.refused("acquire", 0, 0, 4)[0] == "INCOMPATIBLE"
        assert c("acquire", 0, 0, 4).count("shape=2,2") == 1

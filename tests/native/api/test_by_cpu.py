"""A peer in C that uses the slots by the CPU takes and ends slots at once if nothing blocks it."""

from __future__ import annotations

import pytest

from tests.helpers.rings import small_ring
from tests.helpers.words import poke, set_fence, tear, written_by_gpu
from tests.native.api.puppet import NEXT, PRODUCES


@pytest.fixture
def ring(name):
    with small_ring(name) as ring:
        yield ring


@pytest.fixture
def first(ring):
    """The sequence of the first frame, which lies in slot 0."""
    return ring._header.slots


@pytest.fixture
def producer(ring):
    with ring.producer() as producer:
        yield producer


@pytest.fixture
def reader(ring, puppet):
    c = puppet()
    c.ok("attach", ring.name, 0)
    c.ok("consume", "c", NEXT, "")
    return c


def test_a_frame_that_its_gpu_has_not_written_is_waited_for(ring, first, producer, reader):
    producer.claim(0).publish()
    written_by_gpu(ring, first)
    set_fence(ring, producer.peer, 0, 1)
    assert "GPU work" in reader.refused("acquire", 0, 0, 0)[1]
    set_fence(ring, producer.peer, 0, first << 16)
    assert reader.ok("acquire", 0, 0, 0)["seq"] == str(first)
    reader.ok("release", 0, 1)


def test_a_slot_on_which_a_gpu_has_work_is_waited_for(name, puppet):
    with small_ring(name, slots=1) as ring, ring.producer() as producer:
        c = puppet(name, PRODUCES)
        producer.claim(0).publish()
        written_by_gpu(ring, 1)
        set_fence(ring, producer.peer, 0, 1)
        assert "GPU work" in c.refused("claim", 0, 0, 0)[1]
        set_fence(ring, producer.peer, 0, 1 << 16)
        c.ok("claim", 0, 0, 0)


def test_a_frame_that_turns_out_torn_is_told_at_its_release(ring, first, producer, reader):
    producer.claim(0).publish()
    written_by_gpu(ring, first)
    reader.ok("acquire", 0, 0, 0)
    tear(ring, first)
    assert reader.refused("release", 0, 1)[0] == "FRAME_TORN"


def test_a_torn_frame_is_passed_over(ring, first, producer, reader):
    producer.claim_many(2, 0).publish()
    tear(ring, first)
    assert reader.ok("acquire", 0, 0, 0)["seq"] == str(first + 1)


def test_a_damaged_frame_is_told_once(ring, first, producer, reader):
    producer.claim_many(2, 0).publish()
    poke(ring, "slot", "ndim", 99)
    assert reader.refused("acquire", 0, 0, 0)[0] == "INCOMPATIBLE"
    assert reader.ok("acquire", 0, 0, 0)["seq"] == str(first + 1)

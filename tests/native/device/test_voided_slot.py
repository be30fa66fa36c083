"""A claim that finds its slot held by a lossy reader voids it.  The slot's word is its own from
then on."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.words import tear
from tests.native.device.instant_driver import STREAM, count_a_death, pay


@pytest.mark.parametrize("many", [False, True])
def test_the_frame_is_its_producers_though_another_one_has_voided_its_slot(ring, open_fence, many):
    """The frame was released while its producer's GPU was writing it.  That producer's death tears
    it."""
    producer, index = open_fence
    reader, other = ring.consumer(lossless=False, start="oldest"), ring.producer()
    frame = reader.acquire_many(1, stream=STREAM) if many else reader.acquire(stream=STREAM)
    for _ in range(ring.slots):
        other.claim(0, stream=STREAM).publish()
    frame.release()
    tear(ring, 4)
    pay(ring, producer, index)
    count_a_death(ring)
    with pytest.raises(gpuring.FrameTorn) as caught:
        reader.acquire(0)
    assert caught.value.seqs == (4,)

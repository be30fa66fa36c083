"""A reader in C is killed at each step of its move into the next ring."""

from __future__ import annotations

import pytest

from tests.helpers.processes import poll
from tests.helpers.rings import put, small_ring
from tests.native.api.puppet import FOREVER, OLDEST, Halted

pytestmark = [pytest.mark.slow, pytest.mark.deadline(400)]


@pytest.mark.parametrize("holds", [False, True], ids=["has-nothing", "holds-a-frame"])
def test_a_reader_that_is_killed_on_its_way_leaves_its_frames_to_the_others(
    name, puppets, sanitized, holds
):
    """The reader is in both rings for a while, and then in the next one, with or without its
    frame."""
    for k in range(1, 100):
        c = puppets(sanitized)
        with small_ring(name) as old, old.producer() as before:
            c.ok("attach", name, 0)
            c.ok("consume", "rec", OLDEST, "r")
            old_reader = old.consumer("rec")
            if holds:
                put(before, 1, 1)
                c.ok("acquire", 0, FOREVER, 0)
            with small_ring(name, replace=True) as ring, ring.producer() as producer:
                reader = ring.consumer("rec", start="oldest")
                put(producer, 1, 2)
                halted = Halted(c, k, "acquire", 0, FOREVER, 0)
                c.kill()
                with reader.acquire(20) as slot:
                    assert slot.array[0] == 2, k
                if holds:
                    with old_reader.acquire(20) as slot:
                        assert (slot.array[0], slot.redelivered) == (1, True), k
                for value in range(2 * ring.slots):  # nobody is in the way
                    put(producer, 1, value)
                    reader.acquire(20).release()
                poll(lambda: len(old.stats().peers) == len(ring.stats().peers) == 2)
                reader.close()
                old_reader.close()
        if halted.was_over:
            assert k > 10
            return
    raise AssertionError("the steps do not end")

"""Which frames come back to the other members of a subscription, when, and how they look."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.rings import put, small_ring


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("by", ["close", "the next verb"])
def test_a_frame_that_a_member_has_never_looked_at_comes_back_unflagged(name, by):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("jobs") as other:
        member = ring.consumer("jobs")
        (first,) = put(producer)
        member.acquire(0)  # dropped: as when Ctrl-C comes before its caller has it
        (newer,) = put(producer)
        with other.acquire(0) as slot:
            assert slot.seq == newer
        if by == "close":
            member.close()
            with other.acquire(0) as slot:
                assert (slot.seq, slot.redelivered) == (first, False)
        else:
            with member.acquire(0) as slot:  # that member is the one who asks next
                assert (slot.seq, slot.redelivered) == (first, False)


@pytest.mark.parametrize("looked_at", [False, True])
def test_what_a_member_holds_when_it_leaves_in_order_goes_to_nobody_else(name, looked_at):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("jobs") as other:
        member = ring.consumer("jobs")
        put(producer)
        slot = member.acquire(0)
        if looked_at:
            assert slot.array.shape == (4,)
        member.close()
        with pytest.raises(gpuring.RingTimeout):
            other.acquire(0)

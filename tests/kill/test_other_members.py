"""Which frames come back to the other members of a subscription, when, and how they look."""

from __future__ import annotations

import os
import signal

import pytest

import gpuring
from tests.helpers.processes import Child, Pipe, poll
from tests.helpers.rings import put, small_ring


def hold(pipe: Pipe, name: str) -> None:
    """A member that takes one frame, looks at it, and waits."""
    with gpuring.attach(name) as ring, ring.consumer("jobs") as frames:
        pipe.send()
        pipe.receive()
        with frames.acquire() as slot:
            pipe.send(slot.seq)
            pipe.receive()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_frame_that_a_member_dies_with_comes_to_one_that_has_had_newer_ones(name, children, how):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("jobs") as other:
        member: Child = children(hold, name)
        member.receive()
        (first,) = put(producer)
        member.send()
        assert member.receive() == first
        (newer,) = put(producer)
        with other.acquire(0) as slot:
            assert (slot.seq, slot.redelivered) == (newer, False)
        os.kill(member.pid, how)  # no handler: SIGTERM is a death, too
        poll(lambda: ring.stats().reaps)
        with other.acquire(0) as slot:
            assert (slot.seq, slot.redelivered) == (first, True)


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

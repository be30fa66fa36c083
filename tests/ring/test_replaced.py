"""Rings that another one of their name replaces while they are in use."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.promise import promise
from tests.helpers.rings import put, small_ring


@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("end", ["replaced", "closed"])
def test_who_attached_before_a_ring_was_replaced_is_told_to_attach_again(name, role, end):
    """The ring may be closed between `attach` and the join."""
    old = small_ring(name)
    with gpuring.attach(name) as late:
        if end == "closed":
            old.close()
        with small_ring(name, replace=True):
            again = "another ring took its name.*attach again: with a timeout"
            with pytest.raises(gpuring.RingClosed, match=again):
                getattr(late, role)()
            with gpuring.attach(name) as new:
                getattr(new, role)().close()
    old.close()


@promise(
    "failure.md",
    "It reads what is there and gets `EndOfStream`.",
)
def test_readers_drain_a_ring_that_was_replaced(name):
    with (
        small_ring(name) as old,
        old.consumer() as frames,
        old.producer() as producer,
    ):
        seqs = put(producer, 3)
        with small_ring(name, replace=True):
            with pytest.raises(gpuring.RingClosed):
                producer.claim(0)
            for seq in seqs:
                with frames.acquire(0) as slot:
                    assert slot.seq == seq
            with pytest.raises(gpuring.EndOfStream):
                frames.acquire(0)

"""What consumers say of torn frames whose producer has died after they were released."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuring
from tests.helpers.promise import promise
from tests.helpers.rings import small_ring
from tests.helpers.victim import Victim


def released_torn(consumer, victim, frames=1):
    """Reads frames, releases them, and lets their producer die.  Returns their sequences."""
    seqs = []
    for _ in range(frames):
        slot = consumer.acquire(10)
        victim.stick(slot)
        slot.release()
        seqs.append(slot.seq)
    victim.die()
    return seqs


def leave_without(consumer, error):
    """Checks that neither close() nor an acquire before it reports anything."""
    with pytest.raises(error):
        consumer.acquire(0)
    consumer.close()
    assert consumer.closed


@promise(
    "failure.md",
    "The frame is torn. That reader gets `FrameTorn`, which names the sequences, from its next "
    "acquire or at close.",
    "If a frame turns out to be torn after its release, the next acquire or `close()` says so.",
)
@pytest.mark.parametrize("how", ["acquire", "latest", "close"])
def test_released_frames_that_turn_out_torn_are_told_once(name, children, how):
    with small_ring(name) as ring:
        consumer = ring.consumer(lossless=how != "latest")
        seqs = released_torn(consumer, Victim(ring, children, 3), 3)
        with pytest.raises(
            gpuring.FrameTorn, match=f"sequences {seqs[0]}–{seqs[-1]}, 3 of them, "
        ) as caught:
            consumer.close() if how == "close" else getattr(consumer, how)(0)
        assert caught.value.seqs == tuple(seqs)
        if how != "close":
            leave_without(consumer, gpuring.PeerLost)
        consumer.close()
        assert consumer.closed
        assert ring._header.live_peers() == []


def test_a_torn_frame_that_is_still_held_is_told_by_close(name, children):
    with small_ring(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        slot = consumer.acquire(10)
        victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn) as caught:
            consumer.close()
        assert caught.value.seqs == (slot.seq,)
        assert not hasattr(caught.value, "__notes__")  # reported once
        assert consumer.closed


@pytest.mark.parametrize("how", ["acquire", "close"])
def test_leaving_a_loop_does_not_swallow_a_torn_frame(name, children, how):
    """`break` closes the generator, from which no error would reach the program."""
    with small_ring(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        for slot in consumer:
            seq = slot.seq
            victim.stick(slot)
            victim.die()
            break
        with pytest.raises(gpuring.FrameTorn, match=str(seq)):
            consumer.acquire(0) if how == "acquire" else consumer.close()
        if how == "acquire":
            leave_without(consumer, gpuring.PeerLost)
        assert consumer.closed


def test_a_loop_that_goes_on_raises_for_a_torn_frame_at_once(name, children):
    with small_ring(name) as ring:
        consumer, victim = ring.consumer(), Victim(ring, children)
        frames = iter(consumer)
        slot = next(frames)
        victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn, match=f"sequence {slot.seq} "):
            next(frames)
        leave_without(consumer, gpuring.PeerLost)


def test_a_ring_closes_everything_before_it_tells_of_torn_frames(name, children):
    ring = small_ring(name)
    header, consumer, victim = ring._header, ring.consumer("first"), Victim(ring, children)
    ring.consumer("second")
    ring.producer()
    (seq,) = released_torn(consumer, victim)
    with pytest.raises(gpuring.FrameTorn, match=str(seq)):
        ring.close()
    assert ring.closed
    assert header.closed
    assert header.live_peers() == []
    assert not list(Path("/dev/shm").glob(f"gpuring.{name}*"))
    ring.close()

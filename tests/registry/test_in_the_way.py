"""A look at a ring and a claim say the same of who keeps producers waiting."""

from __future__ import annotations

import re

import pytest

import gpuring
from gpuring import native
from tests.helpers.rings import drain, put, small_ring

SLOTS = 4


def untaken(ring, producer):
    reader = ring.consumer("slow")
    put(producer, SLOTS)
    return [reader]


def untaken_beside_one_that_keeps_pace(ring, producer):
    fast, slow = ring.consumer("fast"), ring.consumer("slow")
    put(producer, SLOTS)
    drain(fast)
    return [fast, slow]


def held(ring, producer):
    """Another member of the subscription has nothing."""
    reader, other = ring.consumer("slow"), ring.consumer("slow")
    put(producer, SLOTS)
    return [reader, reader.acquire(0), other]


def held_behind_others_that_were_released(ring, producer):
    reader = ring.consumer("slow")
    put(producer, 1)
    slot = reader.acquire(0)
    put(producer, SLOTS - 1)
    drain(reader)
    return [reader, slot]


def every_slot_held_by_a_lossy_one(ring, producer):
    reader = ring.consumer("slow", lossless=False)
    put(producer, SLOTS)
    return [reader, *(reader.acquire(0) for _ in range(SLOTS))]


def held_in_turn_by_lossy_ones(ring, producer):
    one, other = (ring.consumer(name, lossless=False) for name in ("one", "other"))
    put(producer, SLOTS)
    slots = [reader.acquire(0) for reader in (one, other) for _ in range(SLOTS)]
    for n, slot in enumerate(slots):
        if n % 2 == n // SLOTS:
            slot.release()
    return [one, other, slots]


def written(ring, producer):
    slots = [producer.claim(0) for _ in range(SLOTS)]
    for slot in slots[1:]:
        slot.publish()
    return slots


@pytest.mark.parametrize(
    "situation",
    [
        *(untaken, untaken_beside_one_that_keeps_pace, held),
        *(held_behind_others_that_were_released, every_slot_held_by_a_lossy_one),
        *(held_in_turn_by_lossy_ones, written),
    ],
)
def test_a_look_says_what_a_refused_claim_says(name, situation):
    with small_ring(name, SLOTS) as ring, ring.producer() as producer:
        kept = situation(ring, producer)
        with pytest.raises(gpuring.RingFull) as caught:
            producer.claim(0)
        seen = ring.stats().in_the_way
        told = str(caught.value).partition("at once: ")[2]

        def timeless(text):
            return re.sub(r"\d+\.\d+ s", "T", text)

        assert timeless(seen.why) == timeless(told)
        reason, peer, _, seq, _ = producer._peer.culprit
        assert seen.seq == seq
        assert 0 < seen.age_s < 60
        if reason == native.BY_PRODUCER:
            assert (seen.peers, seen.subscription) == ((producer.peer,), None)
        else:
            assert f"subscription '{seen.subscription}'" in told
            assert (seen.peers == (peer,)) if peer is not None else seen.peers
        (listed,) = (one for one in gpuring.ls() if one.name == name)
        assert listed.in_the_way.seq == seq
        del kept


def free(ring, producer):
    return []


def one_slot_left(ring, producer):
    reader = ring.consumer("slow")
    put(producer, SLOTS - 1)
    return [reader]


def one_held_by_a_lossy_one(ring, producer):
    """A slot that a lossy reader holds.  A claim passes over it."""
    reader = ring.consumer("slow", lossless=False)
    put(producer, SLOTS)
    return [reader, reader.acquire(0)]


def void(ring, producer):
    reader = ring.consumer("slow")
    producer.claim(0).abandon()
    put(producer, SLOTS - 1)
    return [reader]


def joined_late(ring, producer):
    put(producer, SLOTS)
    return [ring.consumer("slow")]


def closed(ring, producer):
    kept = untaken(ring, producer)
    ring._header.close_ring()
    return kept


@pytest.mark.parametrize(
    "situation", [free, one_slot_left, one_held_by_a_lossy_one, void, joined_late, closed]
)
def test_nobody_is_in_the_way_of_a_claim_that_would_not_wait(name, situation):
    with small_ring(name, SLOTS) as ring, ring.producer() as producer:
        kept = situation(ring, producer)
        assert ring.stats().in_the_way is None
        assert not ring.stats().held_up
        if situation is not closed:
            producer.claim(0).publish()
        del kept


def test_who_waits_for_a_frame_is_told_that_nobody_writes(name):
    with small_ring(name) as ring, ring.consumer() as reader:
        for timeout in (0, 0.001):
            with pytest.raises(gpuring.RingTimeout, match=r"yet\. The ring has no producer$"):
                reader.acquire(timeout)
        with ring.producer(), pytest.raises(gpuring.RingTimeout, match=r"published yet$"):
            reader.acquire(0)


def test_who_waits_for_a_frame_is_told_how_many_producers_are_to_come(name):
    with small_ring(name, producers=3) as ring, ring.consumer() as reader:
        for left in (3, 2, 1):
            told = f"has no producer: {left} of 3 have not come yet$"
            with pytest.raises(gpuring.RingTimeout, match=told):
                reader.acquire(0)
            ring.producer().close()
        with pytest.raises(gpuring.EndOfStream):
            reader.acquire(0)


def test_who_waits_for_a_frame_is_told_who_keeps_the_ring_full(name):
    with small_ring(name, SLOTS) as ring, ring.producer() as producer:
        slow, fast = ring.consumer("slow"), ring.consumer("fast")
        put(producer, SLOTS)
        drain(fast)
        told = r"published yet\. The ring is full: subscription 'slow' has not taken sequence"
        with pytest.raises(gpuring.RingTimeout, match=told):
            fast.acquire(0.001)
        drain(slow)
        with pytest.raises(gpuring.RingTimeout, match=r"published yet$"):
            fast.acquire(0.001)

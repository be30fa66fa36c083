"""`SubscriptionStats.lag`: how far a subscription is behind, and whether producers wait for it."""

from __future__ import annotations

import contextlib
import random

import pytest

import gpuring
from tests.helpers.rings import put

SLOTS = 8


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=SLOTS, shape=1, dtype="u1", device="host") as ring:
        yield ring


@pytest.fixture
def producer(ring):
    with ring.producer() as producer:
        yield producer


def lag(ring):
    (subscription,) = ring.stats().subscriptions
    return subscription.lag


def is_full(producer):
    try:
        producer.claim(0).abandon()
    except gpuring.RingFull:
        return True
    return False


@pytest.mark.parametrize("lossless", [True, False])
def test_a_subscription_is_not_behind_with_frames_from_before_its_start(ring, producer, lossless):
    put(producer, 3)
    ring.subscribe("late", lossless=lossless, start="next")
    (seen,) = ring.stats().subscriptions
    assert (seen.lag, seen.untaken, seen.oldest_s) == (0, 0, 0.0)


def test_void_sequences_count_for_who_is_behind_them(ring, producer):
    with ring.consumer() as frames:
        for k in range(SLOTS):
            slot = producer.claim(0)
            slot.abandon() if k in (2, 5, 7) else slot.publish()
        assert lag(ring) == SLOTS
        assert is_full(producer)
        frames.acquire(0).release()
        assert lag(ring) == SLOTS - 1
        for _ in range(4):
            frames.acquire(0).release()
        assert lag(ring) == 0  # the last sequence is void: there is nothing to read
        put(producer)
        assert lag(ring) == 1


def test_one_frame_that_is_kept_for_a_lap_counts_as_a_lap(ring, producer):
    with ring.consumer("shared") as first, ring.consumer("shared") as second:
        put(producer)
        with first.acquire(0):
            for _ in range(SLOTS - 1):
                put(producer)
                second.acquire(0).release()
            assert lag(ring) == SLOTS
            assert is_full(producer)
        assert lag(ring) == 0


def test_what_a_lossy_reader_has_passed_over_is_not_lag(ring, producer):
    with ring.consumer(lossless=False) as frames:
        put(producer, 6)
        assert lag(ring) == 6
        with frames.latest(0):
            assert lag(ring) == 1
        assert lag(ring) == 0
        put(producer, 3 * SLOTS)
        assert lag(ring) == SLOTS  # older ones are lost
        with frames.acquire(0):
            assert lag(ring) == SLOTS
            put(producer, 2 * SLOTS)
            assert lag(ring) > 2 * SLOTS  # it still reads the oldest one
        frames.latest(0).release()
        assert lag(ring) == 0


def test_a_frame_that_was_given_back_is_lag(ring, producer):
    """It is lag also of a lossy subscription whose newest frame was taken."""
    with ring.consumer("a", lossless=False) as frames:
        put(producer, 3)
        held = [frames.acquire(0) for _ in range(3)]
        held[2].release()
        held[1].release()
        frames._put_back(held[0].index)
        assert ring.stats().subscriptions[0].opened == 1
        assert lag(ring) == 3
        frames.acquire(0).release()
        assert lag(ring) == 0


@pytest.mark.parametrize("seed", range(5))
def test_producers_wait_exactly_while_a_lossless_subscription_is_a_ring_behind(ring, seed):
    """The alert on lag relies on this.  The verbs are random, and claims and holds end in any
    order."""
    choose = random.Random(seed)
    producers = [ring.producer(), ring.producer()]
    readers = [ring.consumer("a"), ring.consumer("a"), ring.consumer("b")]
    claimed, held, full = [], [], 0
    for _ in range(2000):
        verb = choose.choice(("claim", "claim", "publish", "abandon", "acquire", "release"))
        if verb == "claim" and len(claimed) < 3:
            lags = [each.lag for each in ring.stats().subscriptions]
            assert max(lags) <= SLOTS
            why = ""
            try:
                claimed.append(choose.choice(producers).claim(0))
            except gpuring.RingFull as error:
                why = str(error)
            full += bool(why)
            is_behind = bool(why) and "writing sequence" not in why
            assert (max(lags) == SLOTS) == is_behind, (lags, why)
        elif verb in ("publish", "abandon") and claimed:
            getattr(claimed.pop(choose.randrange(len(claimed))), verb)()
        elif verb == "acquire" and len(held) < 3:
            with contextlib.suppress(gpuring.RingTimeout):
                held.append(choose.choice(readers).acquire(0))
        elif verb == "release" and held:
            held.pop(choose.randrange(len(held))).release()
    assert full > 10
    for endpoint in (*producers, *readers):
        endpoint.close()

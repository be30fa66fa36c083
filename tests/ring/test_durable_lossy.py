"""Durable subscriptions that are lossy, and members that join with other terms than a subscription
has."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

import gpuring
from tests.helpers.durable import SLOTS, make, only, read
from tests.helpers.processes import poll, up
from tests.helpers.rings import drain, publish
from tests.helpers.words import poke


def lossy(ring, **terms):
    return ring.consumer("rec", lossless=False, **terms)


# ---- other terms ---------------------------------------------------------------------------------


def with_a_member(name, keep):
    ring = keep(make(name))
    keep(ring.consumer("rec"))
    return ring


def made_with_the_ring(name, keep):
    return keep(make(name, subscriptions=["rec"]))


def subscribed(name, keep):
    ring = keep(make(name))
    ring.subscribe("rec")
    return ring


def given_up(name, keep):
    ring = keep(make(name))
    ring.subscribe("rec", patience=0.001)
    with ring.producer() as producer:
        publish(producer, *range(SLOTS + 1))
    assert only(ring).given_up
    return ring


def from_an_earlier_ring(name, keep):
    made_with_the_ring(name, keep).close()
    return keep(make(name))


def lossy_in_an_earlier_ring(name, keep):
    """The ring that has the name decides whether the subscription is lossy."""
    with make(name) as ring:
        ring.subscribe("rec", lossless=False)
    return made_with_the_ring(name, keep)


@pytest.mark.parametrize(
    "there",
    [
        with_a_member,
        made_with_the_ring,
        subscribed,
        given_up,
        from_an_earlier_ring,
        lossy_in_an_earlier_ring,
    ],
)
@pytest.mark.parametrize("terms", [{"lossless": False}, {"redeliver": False}])
@pytest.mark.parametrize("durable", [False, True])
def test_who_joins_with_other_terms_is_refused(name, there, terms, durable):
    with contextlib.ExitStack() as stack:
        ring = there(name, stack.enter_context)
        before = only(ring)
        assert before.lossless
        with pytest.raises(
            ValueError, match=r"another `lossless` or `redeliver` \(in C `lossy` or"
        ):
            ring.consumer("rec", durable=durable, **terms)
        after = only(ring)
        assert (after.members, after.durable) == (before.members, before.durable)
        assert (after.lossless, after.redeliver) == (True, True)
        ring.consumer("rec").close()


def test_a_reader_that_follows_is_refused_by_a_ring_with_other_terms(name):
    with make(name) as old:
        reader = lossy(old, reattach=True)
        with make(name, replace=True, subscriptions=["rec"]) as ring:
            with pytest.raises(ValueError, match="exists with another"):
                reader.acquire(10)
            assert only(ring).members == ()
        reader.close()


# ---- what a lossy one has missed -----------------------------------------------------------------


@pytest.mark.parametrize("patience", [None, 0.001, 3600])
@pytest.mark.parametrize("more", [0, SLOTS - 1, SLOTS, 3 * SLOTS])
def test_producers_never_wait_for_it_and_who_comes_back_is_told_what_it_has_missed(
    name, patience, more
):
    """Patience makes no difference, because no producer waits."""
    with make(name) as ring, ring.producer() as producer:
        with lossy(ring, durable=True, patience=patience) as reader:
            publish(producer, 0, 1)
            assert read(reader, 1) == [(0, 0, False)]
        if patience == 0.001:
            poll(lambda: ring._header.reap() or only(ring).given_up)
        for k in range(2, 2 + more):
            with producer.claim(0) as slot:
                slot.array[:] = k
        missed = max(0, 1 + more - (SLOTS - 1))
        with lossy(ring) as reader:
            assert only(ring).lost == missed
            (first, lost, _) = read(reader, 1)[0]
            assert (first, lost) == (1 + missed, missed)
            assert len(drain(reader)) == more - missed
        with lossy(ring) as reader:
            publish(producer, 99)
            assert read(reader, 1) == [(99, 0, False)]  # not counted again


def test_who_took_the_newest_goes_on_behind_it(name):
    with make(name) as ring, ring.producer() as producer:
        with lossy(ring, durable=True) as reader:
            publish(producer, 0, 1, 2)
            with reader.latest(0) as slot:
                assert (int(slot.array[0]), slot.lost) == (2, 2)
        publish(producer, 3)
        with lossy(ring) as reader:
            assert read(reader, 1) == [(3, 0, False)]
        assert only(ring).lost == 2


def holds(pipe, name, releases):
    ring = gpuring.attach(name)
    reader = lossy(ring, durable=True)
    slots = [reader.acquire(10) for _ in range(3)]
    slots[releases].release()
    pipe.ask()


@pytest.mark.parametrize("releases", [0, 2])
def test_who_comes_after_a_killed_reader_goes_on_behind_the_last_released_frame(
    name, children, releases
):
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("rec", lossless=False)
        publish(producer, 0, 1, 2)
        victim = up(children(holds, name, releases))
        os.kill(victim.pid, signal.SIGKILL)
        poll(lambda: ring.stats().reaps == 1)
        publish(producer, 3)
        with lossy(ring) as reader:
            assert [value for value, *_ in read(reader, 3 - releases)] == [*range(releases + 1, 4)]
        assert only(ring).lost == 0


@pytest.mark.parametrize("lossless", [True, False])
def test_what_was_dropped_while_nobody_read_it_is_told(name, lossless):
    with make(name) as ring, ring.producer() as producer:
        with ring.consumer("rec", durable=True, lossless=lossless) as reader:
            publish(producer, 0)
            assert read(reader, 1) == [(0, 0, False)]
        ring.subscribe("other")
        publish(producer, *range(1, 1 + SLOTS))
        assert [producer.try_claim() for _ in range(3)] == [None] * 3
        ring.unsubscribe("other")
        with ring.consumer("rec", lossless=lossless) as reader:
            found = read(reader, 2)
        with ring.consumer("rec", lossless=lossless) as reader:
            publish(producer, 9)
            while found[-1][0] != 9:
                found += read(reader, 1)
        assert sum(lost for _, lost, _ in found) + len(found) == SLOTS + 3 + 1
        assert found[-1][1] == 3


@pytest.mark.parametrize("lossless", [True, False])
def test_what_was_dropped_before_it_was_made_is_not_told(name, lossless):
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("other")
        publish(producer, *range(SLOTS))
        assert [producer.try_claim() for _ in range(3)] == [None] * 3
        ring.subscribe("rec", lossless=lossless)
        assert producer.try_claim() is None
        ring.unsubscribe("other")
        publish(producer, 4)
        with ring.consumer("rec", lossless=lossless) as reader:
            assert read(reader, 1) == [(4, 1, False)]


@pytest.mark.parametrize("lossless", [True, False])
def test_drops_are_told_of_a_subscription_that_was_made_billions_of_drops_ago(name, lossless):
    """Slots have their number modulo 2^32.  A camera that asks a full ring in a loop drops half of
    that within hours."""
    with make(name) as ring, ring.producer() as producer:
        with ring.consumer("rec", durable=True, lossless=lossless) as reader:
            poke(ring, "head", "dropped", 3 << 30)
            publish(producer, 0)
            read(reader, 1)
        ring.subscribe("other")
        publish(producer, *range(1, 1 + SLOTS))
        assert [producer.try_claim() for _ in range(3)] == [None] * 3
        ring.unsubscribe("other")
        with ring.consumer("rec", lossless=lossless) as reader:
            drain(reader)
            publish(producer, 9)
            assert read(reader, 1) == [(9, 3, False)]


@pytest.mark.parametrize("there", [True, False], ids=["there", "overwritten"])
def test_what_was_dropped_before_it_read_is_not_told_when_it_comes_again(name, there):
    """The last frame that it had says how much that was.  If it is overwritten, the next one says
    it."""
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("other")
        publish(producer, *range(SLOTS))
        assert [producer.try_claim() for _ in range(3)] == [None] * 3
        ring.unsubscribe("other")
        publish(producer, 4)
        with lossy(ring, durable=True) as reader:
            publish(producer, 5)
            assert read(reader, 1) == [(5, 0, False)]
        publish(producer, *range(6, 6 + (1 if there else 2 * SLOTS)))
        with lossy(ring) as reader:
            ((value, lost, _),) = read(reader, 1)
        assert lost == value - 6


def test_what_it_has_not_read_of_a_ring_that_was_closed_is_told(name):
    with make(name) as ring, ring.producer() as producer:
        with lossy(ring, durable=True) as reader:
            publish(producer, 0, 1, 2)
            assert read(reader, 1) == [(0, 0, False)]
        publish(producer, *range(3, 8))
    with make(name) as ring, ring.producer() as producer, lossy(ring) as reader:
        publish(producer, 10)
        assert read(reader, 1) == [(10, 7, False)]

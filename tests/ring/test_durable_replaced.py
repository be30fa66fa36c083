"""What a member of a durable subscription has not read in a ring that was replaced while it lived:
nobody is told while it can still read that, and afterwards each frame is told once."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import leftovers
from gpuring.registry import segment as segments
from tests.helpers.durable import make, read, replaced, told
from tests.helpers.processes import SOMEBODY, few_descriptors
from tests.helpers.promise import promise
from tests.helpers.rings import publish, segments_of
from tests.helpers.words import locked

__all__ = ["replaced"]  # a fixture


@promise(
    "failure.md",
    "What it does not read is counted for the next member that joins after the last member of the "
    "replaced ring has gone.",
    "If a member lives when its ring is replaced, it can still read what is left there.",
    "Until then a small file in `/dev/shm` keeps the count.",
)
@pytest.mark.parametrize(
    ("reads", "then", "lost"), [(0, "", 3), (1, "", 2), (1, "hold", 2), (3, "", 0)]
)
def test_what_a_killed_member_had_not_read_is_told_once(name, replaced, reads, then, lost):
    child, ring = replaced(reads, then)
    child.kill()
    assert [told(ring), told(ring)] == [lost, 0]
    assert len(segments_of(name)) == 2  # the header and the slots of the ring that has the name


def test_what_a_member_that_leaves_had_not_read_is_told_once(name, replaced):
    child, ring = replaced(1)
    child.send("end")
    child.result()
    assert [told(ring), told(ring)] == [2, 0]


def test_nobody_is_told_while_the_member_lives(name, replaced):
    child, ring = replaced(1)
    assert told(ring) == 0
    child.send("read")
    assert child.receive() == (1, 0, False)
    assert told(ring) == 0
    child.kill()
    assert [told(ring), told(ring)] == [1, 0]


def test_a_member_that_has_moved_has_told_it_all(name, replaced):
    child, ring = replaced(1, reattach=True)
    with ring.producer() as producer:
        publish(producer, 10, 11)
        for expected in [(1, 0, False), (2, 0, False), (10, 0, False)]:
            child.send("read")
            assert child.receive() == expected
    child.kill()
    with ring.consumer("rec") as reader:
        assert read(reader, 1) == [(11, 0, False)]
    assert told(ring) == 0


def test_several_rings_and_their_members_add_up(name, replaced):
    killed = [replaced(reads)[0] for reads in (0, 1, 2)]
    with make(name, replace=True) as ring:
        assert told(ring) == 0
        for child, lost in zip(killed, (3, 2, 1), strict=True):
            child.kill()
            assert told(ring) == lost
        assert told(ring) == 0


def test_one_subscription_is_read_there_and_another_one_is_not(name, replaced):
    child, old = replaced(1, replace=False)
    old.subscribe("other", start="oldest")
    with make(name, replace=True) as ring, ring.producer() as producer:
        publish(producer, 10, 11)
        for lost in (3, 0):
            with ring.consumer("other") as reader:
                assert read(reader, 1)[0][1] == lost
        child.kill()
        with ring.consumer("rec") as reader:
            assert read(reader, 1) == [(10, 2, False)]


def test_members_that_are_dead_when_another_ring_comes(name, replaced):
    """What the first ring owes goes past the second one, in which nobody has joined."""
    child, _ = replaced(1)
    child.kill()
    with make(name, replace=True) as ring:
        assert [told(ring), told(ring)] == [2, 0]


def test_a_member_that_joins_while_the_ring_is_replaced_again(name, replaced):
    child, ring = replaced(1)
    with ring.consumer("rec"):
        child.kill()
        with make(name, replace=True) as again:
            assert [told(again), told(again)] == [2, 0]


def test_a_ring_that_was_closed_leaves_it_to_the_next_one(name, replaced):
    """Somebody is about to join it, and the creator of the next one has read what it owes."""
    child, ring = replaced(1)
    child.kill()
    with make(name, replace=True) as again:
        native.settle(name, ring._header)
        assert [told(again), told(again)] == [2, 0]


# ---- who ends it there ---------------------------------------------------------------------------


def test_who_ends_the_subscription_in_the_earlier_ring_leaves_nothing_there(name, children):
    with make(name) as old, old.consumer("rec", durable=True):
        with make(name, replace=True) as ring:
            assert len(segments_of(name)) == 3
            old.unsubscribe("rec")
        assert len(segments_of(name)) == 1
        ring = make(name)
        ring.unsubscribe("rec")
        ring.close()


# ---- who cannot settle ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["consumer", "unsubscribe"])
def test_a_ring_that_has_lost_its_name_takes_nothing_from_later_ones(name, replaced, how):
    """The headers beside its name may be younger than it is."""
    _, old = replaced(1)  # a member of the ring before it is alive
    with make(name, replace=True) as later, later.producer() as producer:
        reader = later.consumer("new", durable=True)
        publish(producer, 0, 1, 2)
        read(reader, 1)
        with make(name, replace=True) as ring:
            reader.close()
            with contextlib.suppress(gpuring.RingError):
                getattr(old, how)("rec")
            with ring.producer() as last, ring.consumer("new") as reader:
                publish(last, 10)
                assert read(reader, 1) == [(10, 2, False)]


def test_a_ring_without_a_name_takes_nothing_from_later_ones(name, replaced):
    _, old = replaced(1)
    gpuring.unlink(name)  # its peers go on
    with make(name) as other, other.producer() as producer:
        reader = other.consumer("rec", durable=True)
        publish(producer, 0, 1, 2)
        with make(name, replace=True) as ring:
            reader.close()
            assert [told(old), told(ring)] == [0, 3]


def joins_with_few_descriptors(pipe, name, more):
    with (
        gpuring.attach(name, timeout=10) as ring,
        few_descriptors(more),
        contextlib.suppress(OSError),
    ):
        ring.consumer("rec").close()


@pytest.mark.parametrize("more", range(2, 7))
def test_who_has_no_descriptor_leaves_it_to_the_next_one(name, replaced, children, more):
    killed = [replaced(reads)[0] for reads in (1, 0)]
    with make(name, replace=True) as ring:
        for child in killed:
            child.kill()
        children(joins_with_few_descriptors, name, more).result()
        assert [told(ring), told(ring)] == [5, 0]


def test_who_may_not_open_the_earlier_ring_leaves_it_to_the_next_one(name, replaced, children):
    child, _ = replaced(1, replace=False)
    with make(name, replace=True, mode=0o666) as ring:
        child.kill()
        children(joins_as_somebody, name).result()
        assert [told(ring), told(ring)] == [2, 0]


def joins_as_somebody(pipe, name):
    if os.geteuid() == 0:
        owner = os.geteuid()
        os.seteuid(SOMEBODY)
        with gpuring.attach(name, timeout=10, owner=owner) as ring, ring.consumer("rec"):
            pass


def test_the_file_of_another_user_is_not_opened(name, replaced):
    child, ring = replaced(1)
    child.kill()
    if os.geteuid() == 0:
        (aside,) = segments.asides(name)
        os.chown(segments.path_of(aside), SOMEBODY, SOMEBODY)
        assert told(ring) == 0
        Path(segments.path_of(aside)).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_the_lock_of_the_earlier_ring_cannot_be_had(name, replaced, again):
    child, ring = replaced(1)
    child.kill()
    (aside,) = segments.asides(name)
    with locked(aside.removeprefix("/gpuring.")):
        first = told(ring)
    with make(name, replace=True) if again else contextlib.nullcontext(ring) as ring:
        assert [first, told(ring), told(ring)] == [0, 2, 0]


def replaced_under_lock(name, times, subscriptions):
    """How long a replacement takes, and then settling, while a stopped process has the locks of all
    earlier rings."""
    with contextlib.ExitStack() as stack:
        ring = stack.enter_context(make(name, subscriptions=subscriptions))
        with ring.producer() as producer:
            publish(producer, 0, 1, 2)
        with contextlib.ExitStack() as stopped:
            began = time.monotonic()
            for _ in range(times):
                stopped.enter_context(locked(name))
                ring = stack.enter_context(make(name, replace=True))
            between = time.monotonic()
            native.settle(name, ring._header)
            ended = time.monotonic()
        assert [told(ring, each) for each in subscriptions] == [3] * len(subscriptions)
    gpuring.unlink(name)
    return between - began, ended - between


@pytest.mark.slow
def test_locks_of_earlier_rings_are_waited_for_once_and_not_for_each_subscription(name):
    """Meanwhile Ctrl-C has no effect."""
    replacing, settling = replaced_under_lock(name, 1, ["a"])
    replacing_twice, settling_both = replaced_under_lock(name, 2, [*"abcd"])
    assert replacing_twice < 3 * replacing
    assert settling_both < 1.5 * settling


@pytest.mark.slow
def test_a_subscription_that_could_not_be_ended_is_still_owed_that(name, replaced):
    child, ring = replaced(1)
    child.kill()
    with locked(name), pytest.raises(gpuring.RingTimeout):
        ring.unsubscribe("rec")
    assert told(ring) == 2


def test_when_all_is_settled_nobody_looks_any_more(name, replaced):
    child, ring = replaced(1)
    assert told(ring) == 0
    assert native.may_owe(ring._header)
    child.kill()
    assert told(ring) == 2
    assert not native.may_owe(ring._header)


# ---- what is forgotten ---------------------------------------------------------------------------


def test_a_subscription_that_was_ended_is_owed_nothing(name, replaced):
    child, ring = replaced(1)
    child.kill()
    ring.unsubscribe("rec")
    assert len(segments_of(name)) == 2
    ring.subscribe("rec")
    assert told(ring) == 0


def test_the_next_ring_of_a_name_that_was_removed_owes_nothing(name, replaced):
    child, ring = replaced(1)
    gpuring.unlink(name)
    assert [each for each in segments_of(name) if segments.is_aside(each)] == []
    child.kill()
    ring.close()
    with make(name) as ring:
        ring.subscribe("rec")
        assert told(ring) == 0


def test_clean_keeps_the_header_of_an_earlier_ring_as_long_as_the_ring(name, replaced):
    child, ring = replaced(1)
    child.kill()
    assert leftovers.tidy(name.__eq__) == []
    assert told(ring) == 2
    ring.close()
    leftovers.tidy(name.__eq__)
    assert segments_of(name) == []

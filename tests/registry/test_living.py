"""`attach` with a timeout waits for a ring that lives, and says what it has found instead."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.cameras import OPTIONS, joins_and_publishes, owns_and_publishes
from tests.helpers.processes import in_thread, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import publish


@pytest.fixture
def dead(name, children):
    """A ring whose creator, which was its only producer, was killed."""
    camera = up(children(owns_and_publishes, name, [1]))
    camera.kill()
    yield camera
    gpuring.clean()


@promise(
    "failure.md",
    "`attach` with a timeout waits for a ring that lives: its creator lives, or a producer is in "
    "it. If there is only a ring of the dead, it raises `PeerLost` in the end.",
)
def test_a_ring_of_the_dead_is_not_what_was_waited_for(name, dead):
    with pytest.raises(
        gpuring.PeerLost,
        match=rf"{name}' is there, but its creator \(pid {dead.pid}\) is dead and nobody publishes",
    ):
        gpuring.attach(name, timeout=0.05)


@promise(
    "failure.md",
    "`attach` without a timeout takes the ring that is there, so the last frames of the dead can "
    "be read.",
)
def test_what_the_dead_have_left_is_read_without_a_timeout(name, dead):
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        assert frames.acquire(0).array[0] == 1
        with pytest.raises(gpuring.PeerLost):
            frames.acquire(5)


def test_the_wait_ends_with_the_next_ring(name, dead):
    attached = in_thread(lambda: gpuring.attach(name, timeout=30))
    with gpuring.create(name, **OPTIONS) as ring, attached() as found:
        assert found.stats().epoch == ring.stats().epoch


def test_the_wait_ends_when_somebody_publishes_in_the_ring_of_the_dead(name, dead):
    """A camera that has joined without a timeout would do so."""
    attached = in_thread(lambda: gpuring.attach(name, timeout=30))
    with (
        gpuring.attach(name) as old,
        old.producer() as producer,
        attached() as found,
        found.consumer() as frames,
    ):
        publish(producer, 2)
        assert frames.acquire(5).array[0] == 2


def test_a_ring_lives_as_long_as_a_producer_does(name, children):
    """Others may join it although its creator is dead.  A consumer alone does not keep it alive."""
    owner = up(children(owns_and_publishes, name, [1]))
    producer = up(children(joins_and_publishes, name, 2))
    owner.kill()
    with gpuring.attach(name, timeout=5) as ring, ring.consumer():
        producer.kill()
        poll(lambda: ring.stats().reaps == 2)
        with pytest.raises(gpuring.PeerLost):
            gpuring.attach(name, timeout=0.05)
    gpuring.clean()


def test_a_kept_ring_lives_without_a_producer(name):
    with gpuring.create(name, **OPTIONS) as ring:
        ring.producer().close()
        gpuring.attach(name, timeout=5).close()


def test_a_ring_that_was_closed_and_still_has_its_name_is_not_waited_for(name):
    with gpuring.create(name, **OPTIONS) as ring:
        ring._header.close_ring()
        with pytest.raises(
            gpuring.RingNotFound, match=r"is not there after [\d.]+ s: it was closed"
        ):
            gpuring.attach(name, timeout=0.05)


def test_a_service_whose_creator_is_dead_is_joined_by_its_own_rule(name, children):
    terms = {"request": ((4,), "u1"), "response": ((4,), "u1"), "device": "host"}
    creator = up(children(serves, name, terms))
    with gpuring.connect(name, timeout=5) as client:
        creator.kill()
        gpuring.connect(name, timeout=5).close()
        with gpuring.serve(name, timeout=5), client.request(5) as slot:
            slot.abandon()
    gpuring.clean()


def serves(pipe, name, terms):
    with gpuring.serve(name, **terms):
        pipe.ask()

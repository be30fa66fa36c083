"""Leaving a ring while another process keeps its membership lock."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import gpuring
from tests.helpers.processes import poll
from tests.helpers.rings import put, small_ring
from tests.helpers.words import locked
from tests.native.api.puppet import FOREVER, NEXT


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["release", "close"])
def test_an_earlier_ring_that_could_not_be_left_is_left_by_the_close(name, puppet, verb):
    c = puppet()
    with small_ring(name) as old, old.producer() as producer:
        c.ok("attach", name, 0)
        c.ok("consume", "-", NEXT, "r")
        put(producer, 1, 1)
        c.ok("acquire", 0, FOREVER, 0)
        with locked(name), small_ring(name, replace=True) as ring, ring.producer() as other:
            put(other, 1, 2)
            assert c.ok("acquire", 0, FOREVER, 0)["first"] == "2"
            if verb == "release":
                c.ok("release", 0, 1)  # for the frame in the earlier ring
            else:
                assert c.refused("close", 0)[0] == "TIMEOUT"
        assert len(old.stats().subscriptions) == 1
        c.ok("close", 0)
        assert old.stats().subscriptions == ()
        c.ok("detach")
    c.end()


@pytest.mark.slow
@pytest.mark.deadline(400)
@pytest.mark.parametrize("role", ["produce", "consume"])
def test_a_join_that_is_refused_late_leaves_as_soon_as_it_can(
    name, puppets, sanitized, monkeypatch, role
):
    """The refusal comes after the step that needs the membership lock.  Here the environment causes
    it."""
    with monkeypatch.context() as environment:
        environment.setenv("GPURING_SPIN", "soon")
        c = puppets(sanitized)
    with small_ring(name) as ring, ring.consumer() as waiting:
        waiting.fileno()  # so that a join rings the bell
        c.ok("attach", name, 0)
        c("stop-at", "bell: rung")
        c.tell(role, "-", NEXT, "-")
        c.until_stopped()
        with locked(name):
            c.go_on()
            assert c.hear().startswith("GPURING_INVALID ")
            assert len(ring.stats().peers) == 2
        poll(lambda: len(ring.stats().peers) == 1)
        c.ok("detach")
    c.end()


@pytest.mark.slow
@pytest.mark.deadline(400)
@pytest.mark.parametrize("role", ["produce", "consume"])
def test_a_join_that_is_refused_late_does_not_die_if_the_ring_is_detached(
    name, puppets, sanitized, monkeypatch, role
):
    """Its handle stays until the peer has left, and is freed with the next detach."""
    with monkeypatch.context() as environment:
        environment.setenv("GPURING_SPIN", "soon")
        c = puppets(sanitized)
    with small_ring(name) as ring, ring.consumer() as waiting:
        waiting.fileno()
        c.ok("attach", name, 0)
        c("stop-at", "bell: rung")
        c.tell(role, "-", NEXT, "-")
        c.until_stopped()
        with locked(name):
            c.go_on()
            assert c.hear().startswith("GPURING_INVALID ")
            c.ok("detach")
        poll(lambda: len(ring.stats().peers) == 1)
        assert ring.stats().reaps == 0
        if role == "produce":
            with pytest.raises(gpuring.EndOfStream):
                waiting.acquire(0)
        c.ok("attach", name, 0)
        c.ok("detach")
        assert f"/gpuring.{name}" not in Path(f"/proc/{c.pid}/maps").read_text()
    c.end()


@pytest.mark.slow
@pytest.mark.deadline(400)
def test_a_follower_that_can_leave_neither_ring_stays_in_the_first(name, puppets, sanitized):
    """The follower has joined the next ring when it finds that it cannot leave its own."""
    c = puppets(sanitized)
    with small_ring(name) as old, contextlib.ExitStack() as until_it_can_leave:
        c.ok("attach", name, 0)
        c.ok("consume", "-", NEXT, "r")
        until_it_can_leave.enter_context(locked(name))
        with (
            small_ring(name, replace=True) as ring,
            ring.consumer() as waiting,
            ring.producer() as producer,
        ):
            waiting.fileno()
            c("stop-at", "bell: rung")
            c.tell("acquire", 0, FOREVER, 0)
            c.until_stopped()
            with locked(name):
                c.go_on()
                assert c.hear().startswith("GPURING_TIMEOUT ")
            poll(lambda: len(ring.stats().peers) == 2)  # the two peers of this process
            assert ring.stats().reaps == 0
            assert len(old.stats().subscriptions) == 1
            until_it_can_leave.close()
            put(producer, 1, 7)
            got = c.ok("acquire", 0, FOREVER, 0)
            assert (got["first"], got["restarted"]) == ("7", "1")
            assert old.stats().subscriptions == ()
            c.ok("release", 0, 1)
            c.leaves()

"""Clients in C and Python programs are killed, and clear each other."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.compiled import needs_compiler
from tests.helpers.processes import poll, up
from tests.helpers.rings import waiters
from tests.helpers.words import locked, peek, poke, set_fence, written_by_gpu
from tests.native.stranger import (
    Frame,
    drain,
    frame_of,
    has_a_claim,
    has_a_frame,
    make,
    produce,
)

pytestmark = needs_compiler

LEAVING, PRODUCER, NOBODY = 2, 1, 255
LEFT, DIED = 1, 2


def producers(left: int = 0, died: int = 0, live: int = 0, end: int = 0) -> int:
    return died << 40 | left << 16 | live << 8 | end


# ---- Python clears a client ----------------------------------------------------------------------


def test_what_a_killed_client_had_goes_to_a_python_member(name, stranger):
    with make(name) as ring, ring.producer() as producer:
        reader = stranger("consume", name, "g", "lossless", "next", paused=True)
        reader.number()
        made = produce(producer, 7, range(3))
        reader.has(1)
        with ring.consumer("g") as member:
            reader.kill()
            got: dict[int, Frame] = {}
            while 8 not in got:
                with member.acquire(timeout=60) as slot:
                    got[slot.seq] = frame_of(slot)
            assert got[8] == made[0]._replace(again=True)
        assert [each.pid for each in ring.stats().deaths] == [reader.pid]


def test_what_a_killed_client_claimed_is_void(name, stranger):
    with make(name) as ring, ring.consumer() as consumer:
        writer = stranger("produce", name, 9, 2, paused=True)
        writer.said("claimed 8")
        writer.step()
        writer.said("claimed 9")
        writer.kill()
        with consumer.acquire(timeout=60) as slot:
            assert frame_of(slot) == Frame(8, 9, 0)
        with pytest.raises(gpuring.PeerLost):
            consumer.acquire(timeout=60)
        (death,) = ring.stats().deaths
        assert (death.role, death.pid, death.voided) == ("producer", writer.pid, 1)


# ---- nobody but a client is there to clear the dead ----------------------------------------------


def test_a_client_clears_a_python_producer(name, stranger, children):
    with make(name) as ring:
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        writer = children(has_a_claim, name)
        assert writer.receive() == 8
        writer.kill()
        assert reader.end() == "peer lost"
        assert peek(ring, "head", "producers") == producers(died=1, end=DIED)
        (death,) = ring.stats().deaths
        assert (death.role, death.pid, death.voided) == ("producer", writer.pid, 1)
        assert waiters(ring) == 0
        assert ring.stats().peers == ()


def test_a_client_gets_what_a_python_member_had(name, stranger, children):
    """The client is at a later sequence by then, and goes back."""
    with make(name) as ring:
        member = up(children(has_a_frame, name, "g"))
        writer = stranger("produce", name, 9, 3, paused=True)
        writer.said("claimed 8")
        writer.step()
        assert member.receive() == Frame(8, 9, 0)
        reader = stranger("consume", name, "g", "lossless", "next")
        writer.said("claimed 9")
        writer.step()
        reader.has(1)
        writer.said("claimed 10")  # so the stream is not over
        member.kill()
        reader.has(2)
        assert reader.frames == [Frame(9, 9, 1), Frame(8, 9, 0, again=True)]
        (death,) = ring.stats().deaths
        assert (death.role, death.pid, death.reopened) == ("consumer", member.pid, 1)
        assert writer.end() == "done"
        assert reader.end() == "ended"
        assert reader.frames[2:] == [Frame(10, 9, 2)]


def test_a_client_waits_no_more_for_the_last_member_when_that_is_dead(name, stranger):
    with make(name) as ring:
        reader = stranger("consume", name, "x", "lossless", "next", paused=True)
        reader.number()
        writer = stranger("produce", name, 9, 100)
        writer.has(8)
        reader.kill()
        assert writer.end() == "done"
        assert len(writer.frames) == 100
        assert ring.stats().subscriptions == ()


def test_a_durable_subscription_stays_when_a_client_clears_its_last_member(
    name, stranger, children
):
    with make(name) as ring:
        ring.subscribe("d")
        member = up(children(has_a_frame, name, "d"))
        writer = stranger("produce", name, 9, 2)
        assert member.receive() == Frame(8, 9, 0)
        assert writer.end() == "done"
        member.kill()
        reader = stranger("consume", name, "x", "lossless", "oldest")
        assert reader.end() == "ended"
        assert ring.stats().reaps == 1
        with ring.consumer("d") as after:
            assert drain(after) == [Frame(8, 9, 0, again=True), Frame(9, 9, 1)]
            assert after.ring.stats().subscriptions[0].durable


def test_a_sleeper_that_was_killed_is_counted_no_more(name, stranger):
    with make(name) as ring:
        sleeper = stranger("consume", name, "x", "lossless", "next")
        poll(lambda: waiters(ring) == 1)
        sleeper.kill()
        other = stranger("consume", name, "y", "lossless", "next")
        other.number()  # a peer that joins clears the dead first
        assert ring.stats().reaps == 1
        poll(lambda: waiters(ring) == 1)
        assert stranger("produce", name, 9, 1).end() == "done"
        assert other.end() == "ended"
        assert waiters(ring) == 0


def test_many_deaths_are_counted_from_0(name, stranger):
    """The header keeps the last eight."""
    with make(name) as ring:
        pids = []
        for _ in range(10):
            writer = stranger("produce", name, 9, 1, paused=True)
            writer.number()
            writer.kill()
            pids.append(writer.pid)
        reader = stranger("consume", name, "x", "lossless", "oldest")
        assert reader.end() == "peer lost"
        assert ring.stats().reaps == 10
        assert peek(ring, "head", "producers") == producers(died=10, end=DIED)
        assert sorted(each.pid for each in ring.stats().deaths) == sorted(pids[2:])


def test_a_client_raises_the_fence_of_who_died_before_it_did(name, stranger):
    """It was killed before its GPU was done.  Afterwards its number and the slot are free again."""
    with make(name, slots=2) as ring:
        dead = stranger("produce", name, 1, 3, paused=True)
        p = dead.number()
        for seq in (2, 3):
            dead.said(f"claimed {seq}")
            dead.step()
        dead.said("claimed 4")
        with locked(name):
            dead.kill()
            written_by_gpu(ring, 2)
            set_fence(ring, p, 0, (2 << 16) - 1)
        writer = stranger("produce", name, 2, 4)
        assert writer.number() == p
        assert writer.end() == "done"
        assert [each.seq for each in writer.frames] == [5, 6, 7, 8]
        (death,) = ring.stats().deaths
        assert (death.voided, death.torn) == (1, 0)


# ---- a reaper before it was killed ---------------------------------------------------------------


def test_a_producer_that_lives_is_counted_though_a_reaper_died(name, stranger):
    """The one that was killed has counted the dead producer, and the next one repeats its work."""
    with make(name) as ring:
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        dead = stranger("produce", name, 1, 1, paused=True)
        alive = stranger("produce", name, 2, 1, paused=True)
        p = dead.number()
        alive.number()
        poll(lambda: dead.lines[-1].startswith("claimed") and alive.lines[-1].startswith("claimed"))
        with locked(name):
            dead.kill()
            poke(ring, "peer", "ends", peek(ring, "peer", "id", p) << 24 | 1, p)
            poke(ring, "head", "producers", producers(died=1, live=1, end=DIED))
        poll(lambda: ring.stats().reaps == 1)
        assert peek(ring, "head", "producers") == producers(died=1, live=1, end=DIED)
        alive.step()
        assert alive.end() == "done"
        assert reader.end() == "ended"
        assert reader.frames == alive.frames
        assert peek(ring, "head", "producers") == producers(left=1, died=1, end=LEFT)


def test_a_producer_that_was_leaving_has_left(name, stranger):
    """The producer was killed after it had been counted as left."""
    with make(name) as ring:
        writer = stranger("produce", name, 9, 1, paused=True)
        p = writer.number()
        writer.said("claimed 8")
        with locked(name):
            writer.kill()
            poke(ring, "peer", "ends", peek(ring, "peer", "id", p) << 24 | 1 << 12, p)
            poke(ring, "head", "producers", producers(left=1, end=LEFT))
            poke(ring, "peer", "word", LEAVING << 16 | PRODUCER << 8 | NOBODY, p)
        assert stranger("consume", name, "x", "lossless", "next").end() == "ended"
        assert ring.stats().reaps == 1
        assert peek(ring, "head", "producers") == producers(left=1, end=LEFT)


def test_a_producer_that_died_first_is_not_the_last_one(name, stranger):
    """Nobody clears it before the last one leaves."""
    with make(name) as ring:
        dead = stranger("produce", name, 1, 1, paused=True)
        dead.said("claimed 8")
        last = stranger("produce", name, 2, 1, paused=True)
        last.said("claimed 9")
        dead.kill()
        last.step()
        assert last.end() == "done"
        assert peek(ring, "head", "producers") == producers(left=1, died=1, end=LEFT)
        assert stranger("consume", name, "x", "lossless", "oldest").end() == "ended"


def test_a_ring_that_was_closed_has_ended_though_its_producer_died(name, stranger):
    ring = make(name)
    reader = stranger("consume", name, "x", "lossless", "next", paused=True)
    reader.number()
    writer = stranger("produce", name, 9, 2, paused=True)
    writer.said("claimed 8")
    writer.step()
    writer.said("claimed 9")
    reader.has(1)
    writer.kill()
    ring.watch()
    poll(lambda: ring.stats().reaps == 1)
    ring.close()
    reader.free()
    assert reader.end() == "ended"
    assert reader.frames == [Frame(8, 9, 0)]

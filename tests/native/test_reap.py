"""Deaths: what a reaper clears, what survivors get, and what a peer can still do that was taken for
dead."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct

import pytest

from gpuring import native
from gpuring.native import Header
from tests.helpers.processes import Pipe, poll
from tests.helpers.segment import pack
from tests.helpers.words import lock


def test_the_living_are_left_alone(segment):
    ring = segment()
    producer, reader = ring.producer(), ring.consumer()
    producer.put(1)
    assert (producer.claim(), reader.acquire()) == (5, 4)
    before = ring.bytes()
    for header in (ring.process(), ring.creator, producer.header, reader.header):
        assert header.reap() == []
    assert ring.bytes() == before


def test_a_dead_producers_claims_become_void_and_his_frames_stay(segment):
    ring = segment(4)
    reader, producer, other = ring.consumer(), ring.producer(), ring.producer()
    producer.put(1)
    assert [producer.claim(), other.claim(), producer.claim()] == [5, 6, 7]
    assert other.publish(6) == 0
    producer.die()
    assert ring.reap() == [producer.number]
    assert [ring.slot(i) for i in range(4)] == [
        (4, producer.number, "ready"),
        (5, 255, "void"),
        (6, other.number, "ready"),
        (7, 255, "void"),
    ]
    assert reader.drain() == ([4, 6], native.BLOCKED)
    assert ring.creator.reaps == 1
    assert ring.reap() == []


def test_what_a_dead_member_held_is_opened_for_the_others_in_order(segment):
    ring = segment(4)
    a, b, producer = ring.consumer("jobs"), ring.consumer("jobs"), ring.producer()
    producer.put(4)
    assert [a.acquire(), b.acquire(), a.acquire()] == [4, 5, 6]
    a.die()
    assert ring.reap() == [a.number]
    assert ring.take(a.subscription, 0) == (4, 255, "open")
    assert b.acquire() == 4
    assert b.peer.redelivered
    assert b.acquire() == 6
    assert b.peer.redelivered
    assert b.acquire() == 7
    assert not b.peer.redelivered
    assert producer.claim() == native.BLOCKED
    for seq in (4, 5, 6, 7):
        assert b.release(seq) == 0
    assert producer.put(4) == [8, 9, 10, 11]


def test_frames_below_everybodys_position_are_found_again(segment):
    """H4: the others had gone on.  Only the redo count makes them look back."""
    ring = segment(4)
    a, b, c = (ring.consumer("jobs") for _ in range(3))
    producer = ring.producer()
    producer.put(4)
    assert a.acquire() == 4
    assert [b.get(), c.get(), b.get()] == [5, 6, 7]
    assert b.acquire() == native.BLOCKED
    a.die()
    ring.reap()
    assert c.get() == 4
    assert (b.acquire(), producer.claim()) == (native.BLOCKED, 8)


def test_the_last_members_death_takes_the_subscription_with_it(segment):
    """H6: a subscription without members would hold up producers for ever."""
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    producer.put(2)
    assert reader.acquire() == 2
    reader.die()
    assert producer.claim() == native.BLOCKED
    ring.reap()
    assert ring.mask("sub_mask") == 0
    assert ring.peek("sub", "word", reader.subscription) == 0
    assert producer.put(2) == [4, 5]


def test_a_member_that_died_between_entry_and_announcement_is_cleared(segment):
    """A5: its entry is LIVE, and its subscription is still free."""
    ring = segment(2)
    reader = ring.consumer()
    ring.poke("sub", "word", 0, reader.subscription)
    reader.die()
    assert ring.reap() == [reader.number]
    assert ring.creator.live_peers() == []
    assert ring.producer().put(4) == [2, 3, 4, 5]


def test_a_half_done_reap_is_repeated(segment):
    """It does not matter how far the reaper before came, because the entry is freed last."""
    ring = segment(4)
    a, b, producer = ring.consumer("jobs"), ring.consumer("jobs"), ring.producer()
    producer.put(1)
    assert a.acquire() == 4
    redo = ring.peek("sub", "redo", a.subscription)
    a.die()
    ring.poke("take", "word", pack(4, 255, "open", "take"), a.subscription)
    assert ring.reap() == [a.number]
    assert ring.peek("sub", "redo", a.subscription) > redo
    assert b.acquire() == 4


@pytest.mark.parametrize(("waiting", "waiters"), [(1, 1), (2, 1), (3, 2), (4, 0)])
def test_a_sleeper_that_died_is_no_waiter_any_more(segment, waiting, waiters):
    """It may sleep, have armed a descriptor, or both.  Other bits mean nothing."""
    ring = segment()
    reader = ring.consumer()
    ring.poke("peer", "waiting", waiting, reader.number)
    ring.poke("head", "waiters", waiters)
    reader.die()
    ring.reap()
    assert ring.peek("head", "waiters") == 0


def test_a_reap_rings_the_bell_for_those_who_sleep(segment):
    ring = segment()
    reader = ring.consumer()
    ring.poke("head", "waiters", 1)
    bell = ring.peek("head", "bell")
    reader.die()
    ring.reap()
    assert ring.peek("head", "bell") > bell


def test_nobody_reaps_while_another_process_has_the_membership_lock(segment):
    ring = segment()
    ring.producer().die()
    before = ring.bytes()
    assert ring.process().reap() == []
    assert ring.bytes() == before
    assert ring.reap() == [0]


# ---- torn --------------------------------------------------------------------------------------


# ---- taken for dead ----------------------------------------------------------------------------


@pytest.mark.parametrize("reused", [False, True])
def test_a_reaped_producer_is_refused_and_changes_nothing(segment, reused):
    ring = segment(4)
    zombie = ring.producer()
    assert (zombie.claim(), zombie.claim()) == (4, 5)
    zombie.die()
    assert ring.reap() == [0]
    if reused:
        assert ring.producer().number == zombie.number
    before = ring.bytes()
    assert zombie.claim(0) == zombie.claim(1) == native.REAPED
    assert zombie.publish(4) == zombie.abandon(5) == native.REAPED
    assert ring.bytes() == before


def test_a_reaped_producer_does_not_wait_for_readers_before_it_claims(segment):
    ring = segment(4)
    _, zombie = ring.consumer(), ring.producer()
    zombie.put(4)
    zombie.die()
    assert ring.reap() == [zombie.number]
    assert zombie.peer.claim(None) == native.REAPED


@pytest.mark.parametrize("reused", [False, True])
def test_a_reaped_consumer_is_refused_and_changes_nothing(segment, reused):
    ring = segment(4)
    zombie, other = ring.consumer("x", lossless=False), ring.consumer("x", lossless=False)
    producer = ring.producer()
    producer.put(4)
    assert (zombie.acquire(), zombie.acquire()) == (4, 5)
    zombie.die()
    assert ring.reap() == [zombie.number]
    if reused:
        assert ring.consumer("x", lossless=False).number == zombie.number
    before = ring.bytes()
    assert zombie.acquire(0) == zombie.latest(0) == zombie.acquire(1) == native.REAPED
    assert zombie.release(4) == zombie.give_back(5) == native.REAPED
    assert ring.bytes() == before
    assert other.acquire() == 4


@pytest.mark.parametrize("verb", ["release", "give_back"])
def test_a_reaped_consumer_cannot_end_the_hold_of_its_numbers_next_owner(segment, verb):
    """The next owner got the same frame that the zombie held, so the take words are equal."""
    ring = segment(4)
    zombie, _other = ring.consumer("x"), ring.consumer("x")
    ring.producer().put(1)
    assert zombie.acquire() == 4
    zombie.die()
    assert ring.reap() == [zombie.number]
    heir = ring.consumer("x")
    assert heir.number == zombie.number
    assert heir.acquire() == 4
    assert zombie.peer.holding() == []
    assert getattr(zombie, verb)(4) == native.REAPED
    assert ring.take(heir.subscription, 0) == (4, heir.number, "held")
    assert heir.release(4) == 0


def test_a_reaped_peer_that_leaves_takes_nobody_with_it(segment):
    ring = segment(4)
    zombie = ring.producer()
    zombie.die()
    assert ring.reap() == [zombie.number]
    heir = ring.producer()
    assert heir.number == zombie.number
    before = ring.bytes()
    with pytest.raises(OSError):  # its descriptor is gone  # noqa: PT011
        zombie.peer.leave()
    assert ring.bytes() == before
    assert heir.put(1) == [4]


def test_the_heir_of_a_reaped_peer_that_leaves_goes_on(segment):
    """The heir has joined through the same handle, and only that handle knows that it lives."""
    ring = segment(4)
    process = ring.process()
    zombie = ring.producer(process)
    lock(process.lock_fd, zombie.number, fcntl.F_UNLCK)
    ring.process().reap()
    heir = ring.producer(process)
    assert heir.number == zombie.number
    assert zombie.peer.leave() == native.REAPED
    process.reap()
    assert heir.put(1) == [4]
    with pytest.raises(BlockingIOError):
        ring.hold(heir.number)


ROUNDS_AT = 4000  # an unused byte range of the first page


def reap_for_ever(_pipe: Pipe, path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    header, raw = Header.attach(fd), mmap.mmap(fd, 4096)
    rounds = 0
    while True:
        header.reap()
        rounds += 1
        struct.pack_into("<Q", raw, ROUNDS_AT, rounds)


def test_a_reaper_that_comes_second_clears_no_newcomer(segment, children):
    """A2, A3: the second reaper saw the dead peer.  Then the first one freed its number, and a new
    peer joined with that number.

    LOCK is held while the second reaper looks.  So in many of the rounds it is held up between its
    look and the moment when it takes LOCK.
    """
    ring = segment(2)
    child = children(reap_for_ever, ring.path)

    def rounds() -> int:
        return struct.unpack_from("<Q", ring.raw, ROUNDS_AT)[0]

    poll(rounds)
    for k in range(60):
        dead = ring.producer()
        dead.die()
        before = rounds()
        poll(lambda before=before: rounds() > before + 2)
        for _ in range(7 * k):
            pass
        child.stop()
        assert ring.reap() == [dead.number]
        heir = ring.producer()
        assert heir.number == dead.number
        seq = heir.claim(20)
        before = rounds()
        os.kill(child.pid, signal.SIGCONT)
        poll(lambda before=before: rounds() > before + 2)
        assert heir.publish(seq) == 0
        assert heir.peer.leave() == 0

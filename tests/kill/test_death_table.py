"""The table of docs/failure.md in real processes: who died, what it had, and what the others
see."""

from __future__ import annotations

import pytest

import gpuring
from gpuring.cli.inspect import describe
from tests.helpers.places import HOST, ON_GPU
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import put, segments_of, small_ring
from tests.helpers.victim import Victim


def publishes_and_claims(pipe, name, place):
    """Publishes a frame whose GPU work is done, and then claims a slot."""
    producer = gpuring.attach(name, timeout=20).producer()
    with producer.claim(10) as slot:
        place.fill(slot, 7)
        seq = slot.seq
    place.wait()
    pipe.ask((seq, producer.claim(10).seq))


@promise(
    "failure.md",
    "The sequence becomes void. Readers pass over it.",
    "The frames are read as usual, with [three exceptions](#torn-frames).",
)
@pytest.mark.parametrize(
    "place", [HOST, pytest.param(ON_GPU[0], marks=pytest.mark.gpu)], ids=lambda place: place.name
)
def test_a_killed_producers_frames_are_read_and_its_claim_is_passed_over(place, name, children):
    """With events, a frame whose event nobody has looked at may be called torn
    (test_false_alarms.py)."""
    with place.create(name, slots=4, shape=4, dtype="u1") as ring:
        frames, producer = ring.consumer(), ring.producer()
        child = children(publishes_and_claims, name, place)
        published, claimed = child.receive()
        (behind,) = put(producer)
        child.kill()
        with frames.acquire(20) as slot:
            assert slot.seq == published
            assert place.read(slot).tolist() == [7] * 4
            slot.check()
        with frames.acquire(20) as slot:
            assert slot.seq == behind > claimed


def reads(pipe, name, what):
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("mine") as frames:
        if what != "nothing":
            slot = frames.acquire(20)
            if what == "a frame, released":
                slot.release()
        pipe.ask(frames.peer)


@promise("failure.md", "The subscription ends, so producers no longer wait for it.")
@pytest.mark.parametrize("what", ["nothing", "a frame", "a frame, released"])
def test_a_killed_readers_subscription_goes_and_producers_go_on(name, children, what):
    with small_ring(name) as ring, ring.producer() as producer:
        child = children(reads, name, what)
        poll(lambda: ring.stats().subscriptions)
        for _ in range(4):
            put(producer)
        child.receive()
        for _ in range(1 if what == "a frame, released" else 0):  # that slot is free
            put(producer)
        with pytest.raises(gpuring.RingFull):
            producer.claim(0)
        child.kill()
        for _ in range(9):
            put(producer)
        assert ring.stats().subscriptions == ()


def creates(pipe, name):
    ring = small_ring(name)
    pipe.ask()
    ring.close()


@promise(
    "limits.md",
    "The process that creates a ring owns the memory. If it dies, the processes that are in the "
    "ring can finish.",
)
def test_a_host_ring_outlives_its_creator_as_long_as_it_has_its_name(name, children):
    creator = up(children(creates, name))
    with gpuring.attach(name) as inside, inside.producer() as producer:
        creator.kill()
        with gpuring.attach(name) as late, late.consumer() as frames:
            assert put(producer) == [frames.acquire(10).seq]
            gpuring.unlink(name)
            with pytest.raises(gpuring.RingNotFound):
                gpuring.attach(name)
            assert put(producer) == [frames.acquire(10).seq]
    assert segments_of(name) == []


@promise(
    "failure.md",
    "The frame is torn. That reader gets `FrameTorn` from `slot.check()` and at release.",
)
def test_who_holds_a_frame_that_turns_out_torn_is_told_by_check_and_at_release(name, children):
    with small_ring(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children)
        slot = frames.acquire(10)
        slot.check()
        victim.stick(slot)
        victim.die()
        for _ in range(2):
            with pytest.raises(gpuring.FrameTorn, match=f"sequence {slot.seq} "):
                slot.check()
        with pytest.raises(gpuring.FrameTorn, match=f"sequence {slot.seq} "):
            slot.release()


@promise(
    "failure.md",
    "Readers get `PeerLost` after everything published was read. A new producer starts the stream "
    "again.",
)
def test_a_new_producer_starts_the_stream_again(name, children):
    with small_ring(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 2)
        victim.die()
        assert [seq_of(frames), seq_of(frames)] == [4, 5]
        with pytest.raises(gpuring.PeerLost):
            frames.acquire(10)
        with ring.producer() as producer:
            assert put(producer) == [seq_of(frames)]


def seq_of(frames):
    with frames.acquire(10) as slot:
        return slot.seq


def dies_at_once(pipe, name, peers):
    ring = gpuring.attach(name, timeout=20)
    joined = [ring.consumer() for _ in range(peers)]
    pipe.ask([each.peer for each in joined])


@promise(
    "failure.md", "`gpuring inspect` shows the last eight deaths, and what was done about each."
)
def test_inspect_shows_the_last_eight_deaths(name, children):
    with small_ring(name) as ring, ring.producer():
        pids = []
        for peers in (3, 5, 3):
            child = children(dies_at_once, name, peers)
            assert len(child.receive()) == peers
            reaps = ring.stats().reaps
            child.kill()
            poll(lambda reaps=reaps, peers=peers: ring.stats().reaps == reaps + peers)
            pids.append(child.pid)
        deaths = ring.stats().deaths
        assert [death.pid for death in deaths] == [pids[2]] * 3 + [pids[1]] * 5
        assert describe(ring.stats()).count(") died; it held nothing") == 8

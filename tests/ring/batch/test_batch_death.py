"""A peer dies with a batch, and its frames become void, available again, or torn."""

from __future__ import annotations

import pytest

import gpuring
from gpuring.cli.inspect import describe
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.rings import small_ring
from tests.helpers.victim import Victim
from tests.ring.batch import idle, seqs_of


def claims_batch(pipe, name):
    batch = gpuring.attach(name, timeout=PATIENCE_S).producer().claim_many(3, PATIENCE_S)
    pipe.ask(seqs_of(batch))


def test_a_producer_that_dies_with_a_batch_is_lost_and_its_claims_are_void(name, children):
    with small_ring(name) as ring, ring.consumer() as frames:
        child = children(claims_batch, name)
        assert child.receive() == [4, 5, 6]
        child.kill()
        with pytest.raises(gpuring.PeerLost):
            frames.acquire_many(2, PATIENCE_S)
        with ring.producer() as producer:
            producer.claim_many(4, PATIENCE_S).publish()
            with frames.acquire_many(4, 0) as batch:
                assert seqs_of(batch) == [7, 8, 9, 10]


def holds_batch(pipe, name):
    batch = gpuring.attach(name, timeout=PATIENCE_S).consumer("shared").acquire_many(2, PATIENCE_S)
    pipe.ask(seqs_of(batch))


def test_the_frames_of_a_member_that_dies_with_a_batch_go_to_another_member(name, children):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("shared") as other:
        for _ in range(3):
            producer.claim(0).publish()
        child = children(holds_batch, name)
        assert child.receive() == [4, 5]
        with other.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.redelivered) for slot in batch] == [(6, False)]
        child.kill()
        reopened = []
        while len(reopened) < 2:  # one by one, as the reaper opens them
            with other.acquire_many(4, PATIENCE_S) as batch:
                reopened += [(slot.seq, slot.redelivered) for slot in batch]
        assert reopened == [(4, True), (5, True)]


# ---- torn frames -------------------------------------------------------------------------------


def test_every_torn_frame_of_a_batch_is_named_when_all_are_released(name, children):
    with small_ring(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 4)
        poll(lambda: ring.stats().cursor == 8)
        batch = frames.acquire_many(4, PATIENCE_S)
        for slot in batch[1:3]:
            victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn, match="sequences 5–6, 2 of them, are torn") as caught:
            batch.release()
        assert caught.value.seqs == (5, 6)
        assert idle(frames)
        assert not any(slot._open for slot in batch)
        with pytest.raises(gpuring.PeerLost):  # reported once
            frames.acquire_many(2, 0)
        frames.close()


def writes_and_holds_batch(pipe, name):
    ring = gpuring.attach(name, timeout=PATIENCE_S)
    producer, frames = ring.producer(), ring.consumer("shared")
    producer.claim_many(3, PATIENCE_S).publish()
    pipe.ask(seqs_of(frames.acquire_many(2, PATIENCE_S)))


def test_inspect_shows_what_a_dead_reader_has_until_a_living_peer_clears_it(name, children):
    with small_ring(name) as ring:
        child = children(writes_and_holds_batch, name)
        held = child.receive()
        child.kill()
        seen = ring.stats()
        (reader,) = [peer for peer in seen.peers if peer.role == "consumer"]
        assert not reader.alive
        assert [hold.seq for hold in reader.holding] == held
        assert "DEAD, not cleared yet" in describe(seen)
        with ring.consumer("other"):
            poll(lambda: ring.stats().reaps == 2)
            assert "2 frames taken from it" in describe(ring.stats())


def test_a_torn_frame_does_not_hide_the_error_of_the_block(name, children):
    with small_ring(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 2)
        poll(lambda: ring.stats().cursor == 6)
        batch = frames.acquire_many(2, PATIENCE_S)
        victim.stick(batch[0])
        victim.die()
        with pytest.raises(gpuring.FrameTorn) as caught, batch:
            raise ZeroDivisionError
        assert isinstance(caught.value.__context__, ZeroDivisionError)
        assert caught.value.seqs == (4,)
        assert idle(frames)


def test_frames_that_turn_out_torn_are_told_before_the_next_batch(name, children):
    with small_ring(name) as ring:
        frames, victim = ring.consumer(), Victim(ring, children, 3)
        poll(lambda: ring.stats().cursor == 7)
        with frames.acquire_many(2, PATIENCE_S) as batch:
            for slot in batch:
                victim.stick(slot)
        victim.die()
        with pytest.raises(gpuring.FrameTorn) as caught:
            frames.acquire_many(2, 0)
        assert caught.value.seqs == (4, 5)
        assert idle(frames)
        with frames.acquire_many(2, 0) as batch:
            assert seqs_of(batch) == [6]

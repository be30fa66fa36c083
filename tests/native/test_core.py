"""The frame verbs of the C core: every transition, every refusal, and that a refusal changes
nothing."""

from __future__ import annotations

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.segment import pack

N = 4


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 64, 1024])
def test_sequences_rise_from_n_without_a_gap_over_many_laps(segment, slots):
    ring = segment(slots)
    reader, producer = ring.consumer(), ring.producer()
    for seq in range(slots, slots + 5 * slots + 3):
        assert producer.claim() == seq
        assert ring.slot(seq % slots) == (seq, producer.number, "writing")
        assert producer.publish(seq) == 0
        assert ring.slot(seq % slots) == (seq, producer.number, "ready")
        assert reader.acquire() == seq
        assert ring.take(reader.subscription, seq % slots) == (seq, reader.number, "held")
        assert reader.release(seq) == 0
        assert ring.take(reader.subscription, seq % slots) == (seq, reader.number, "done")
    assert ring.creator.frontier == 6 * slots + 3


def test_a_new_header_shows_a_lap_of_void_frames(segment):
    ring = segment(N)
    assert [ring.slot(i) for i in range(N)] == [(i, 255, "void") for i in range(N)]
    assert ring.peek("head", "claim_hint") == ring.creator.frontier == N


def test_a_claim_blocks_at_the_frame_that_a_lossless_subscription_has_not_taken(segment):
    ring = segment(N)
    reader, producer = ring.consumer(), ring.producer()
    producer.put(N)
    before = ring.bytes()
    assert producer.claim() == native.BLOCKED
    assert ring.bytes() == before
    reason, peer, subscription, seq, since_ns = producer.peer.culprit
    assert (reason, peer) == (native.BY_SUBSCRIPTION, None)
    assert (subscription, seq) == (reader.subscription, N)
    assert since_ns == ring.peek("slot", "time_ns", 0) > 0

    assert reader.acquire() == N
    before = ring.bytes()
    assert producer.claim() == native.BLOCKED
    assert ring.bytes() == before
    assert producer.peer.culprit[:4] == (native.BY_HOLDER, reader.number, reader.subscription, N)

    assert reader.release(N) == 0
    assert producer.claim() == 2 * N


def test_each_lossless_subscription_gates(segment):
    ring = segment(2)
    a, b, producer = ring.consumer("a"), ring.consumer("b"), ring.producer()
    producer.put(2)
    assert (a.get(), producer.claim()) == (2, native.BLOCKED)
    assert producer.peer.culprit[2] == b.subscription
    assert (b.get(), producer.claim()) == (2, 4)


def test_a_claim_blocks_behind_a_producer_that_is_still_writing(segment):
    ring = segment(2)
    slow, fast = ring.producer(), ring.producer()
    assert (slow.claim(), fast.claim()) == (2, 3)
    assert fast.publish(3) == 0
    before = ring.bytes()
    assert fast.claim() == native.BLOCKED
    assert ring.bytes() == before
    assert fast.peer.culprit[:4] == (native.BY_PRODUCER, slow.number, None, 2)
    assert slow.abandon(2) == 0
    assert fast.claim() == 4


def test_without_a_subscription_nothing_gates(segment):
    ring = segment(2)
    assert ring.producer().put(20) == list(range(2, 22))


def test_a_stale_hint_is_helped_on(segment):
    ring = segment(N)
    producer = ring.producer()
    producer.put(3 * N)
    ring.poke("head", "claim_hint", 4 * N - 1)  # the claimer died before it could move the hint on
    assert ring.process().frontier == 4 * N
    assert producer.claim() == 4 * N
    assert ring.peek("head", "claim_hint") == 4 * N + 1


def test_several_producers_share_one_order(segment):
    ring = segment(N)
    reader = ring.consumer()
    producers = [ring.producer() for _ in range(3)]
    seqs = [p.claim() for p in producers]
    assert seqs == [4, 5, 6]
    for p, seq in reversed(list(zip(producers, seqs, strict=True))):
        assert reader.acquire() == native.BLOCKED
        assert p.publish(seq) == 0
    assert reader.drain() == ([4, 5, 6], native.BLOCKED)


def test_readers_wait_at_a_frame_being_written_and_name_its_writer(segment):
    ring = segment(N)
    reader, a, b = ring.consumer(), ring.producer(), ring.producer()
    assert (a.claim(), b.claim()) == (4, 5)
    assert b.publish(5) == 0
    before = ring.bytes()
    assert reader.acquire() == native.BLOCKED
    assert ring.bytes() == before
    assert reader.peer.culprit[:4] == (native.BY_PRODUCER, a.number, reader.subscription, 4)
    assert a.publish(4) == 0
    assert reader.drain() == ([4, 5], native.BLOCKED)


def test_void_sequences_are_passed_over_and_gate_nobody(segment):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    producer.put(1)
    for seq in (3, 4, 5, 6):
        if seq == 4:
            assert reader.get() == 2
        assert producer.claim() == seq
        assert producer.abandon(seq) == 0
    assert producer.put(1) == [7]
    assert reader.drain() == ([7], native.BLOCKED)
    assert reader.peer.lost == 0


def test_an_acquire_that_finds_nothing_changes_nothing(segment):
    ring = segment(N)
    readers = [ring.consumer("a"), ring.consumer("b", lossless=False)]
    ring.producer()
    before = ring.bytes()
    assert readers[0].acquire() == readers[1].acquire() == readers[1].latest() == native.BLOCKED
    assert readers[0].peer.culprit[0] == native.BY_NO_FRAME
    assert ring.bytes() == before


def test_publish_release_and_the_rest_are_refused_without_a_claim(segment):
    """Each refusal leaves slot, take and membership words as they were."""
    ring = segment(N)
    reader, producer, other = ring.consumer(), ring.producer(), ring.producer()
    assert producer.put(1) == [4]
    assert (producer.claim(), reader.acquire()) == (5, 4)
    before = {k: v for k, v in ring.claims().items() if not k.startswith(("work", "fence"))}
    assert other.publish(5) == other.abandon(5) == native.REAPED
    assert producer.publish(4) == producer.abandon(4) == native.REAPED
    assert reader.release(5) == reader.give_back(5) == native.REAPED
    after = {k: v for k, v in ring.claims().items() if not k.startswith(("work", "fence"))}
    assert after == before
    assert (producer.publish(5), reader.release(4)) == (0, 0)
    assert producer.publish(5) == reader.release(4) == native.REAPED


def test_members_of_one_subscription_share_its_frames(segment):
    ring = segment(N)
    a, b, c = (ring.consumer("jobs") for _ in range(3))
    producer = ring.producer()
    producer.put(4)
    assert [a.acquire(), b.acquire(), c.acquire(), b.acquire()] == [4, 5, 6, 7]
    assert a.acquire() == native.BLOCKED
    assert [b.release(7), b.release(5), a.release(4), c.release(6)] == [0] * 4
    producer.put(3)
    assert [c.get(), a.get(), b.get()] == [8, 9, 10]


def test_a_frame_given_back_goes_to_a_member_again(segment):
    ring = segment(N)
    a, b, producer = ring.consumer("jobs"), ring.consumer("jobs"), ring.producer()
    producer.put(3)
    assert (a.acquire(), b.acquire()) == (4, 5)
    assert a.give_back(4) == 0
    assert ring.take(a.subscription, 0) == (4, a.number, "open")
    assert b.acquire() == 4
    assert not b.peer.redelivered  # no member died with the frame
    assert a.acquire() == 6
    assert not a.peer.redelivered
    assert a.give_back(4) == native.REAPED
    assert [a.release(6), b.release(4), b.release(5)] == [0, 0, 0]


def test_a_frame_given_back_still_gates(segment):
    ring = segment(1)
    reader, producer = ring.consumer(), ring.producer()
    producer.put()
    assert reader.acquire() == 1
    assert reader.give_back(1) == 0
    assert producer.claim() == native.BLOCKED
    assert reader.get() == 1
    assert producer.claim() == 2


# ---- what a damaged word meets -----------------------------------------------------------------


def test_a_slot_word_of_another_slot_is_damage_and_not_an_index(segment):
    ring = segment(N)
    reader, lossy = ring.consumer(), ring.consumer("lossy", lossless=False)
    producer = ring.producer()
    ring.poke("slot", "word", pack(N + 1, producer.number, "ready", "slot"), 0)
    assert reader.acquire() == lossy.latest() == producer.claim() == native.DAMAGED


def test_a_take_word_of_another_slot_is_damage(segment):
    ring = segment(N)
    reader, producer = ring.consumer(), ring.producer()
    producer.put()
    ring.poke("take", "word", pack(N + 1, 0, "done", "take"), reader.subscription)
    assert reader.acquire() == native.DAMAGED


def test_a_hint_beyond_the_frontier_is_damage(segment):
    ring = segment(N)
    producer = ring.producer()
    ring.poke("head", "claim_hint", 3 * N)
    before = ring.bytes()
    assert producer.claim() == native.DAMAGED
    assert ring.bytes() == before


@pytest.mark.parametrize("owner", [8, 64, 200, 255])
def test_a_frame_of_a_producer_that_cannot_be_is_passed_over(segment, owner):
    """The word's owner would be an index into the fence table."""
    ring = segment(N, max_peers=8)
    reader, producer = ring.consumer(), ring.producer()
    producer.put()
    ring.poke("slot", "word", pack(N, owner, "ready", "slot"), 0)
    producer.put()
    assert reader.drain() == ([N + 1], native.BLOCKED)


# ---- two clocks, on the host: work, fence and the frame's record -------------------------------


def test_every_finished_use_of_a_slot_promises_a_greater_value_and_pays_it(segment):
    ring = segment(1)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    for lap in range(1, 4):
        assert producer.claim() == lap
        assert producer.publish(lap) == 0
        written = raw_verbs.work(ring.creator, producer.number, 0)
        assert written == lap << 16 == raw_verbs.fence(ring.creator, producer.number, 0)
        assert written == ring.peek("slot", "fence", 0)
        for use in range(3):
            assert reader.acquire() == lap
            if use < 2:
                assert reader.give_back(lap) == 0
        assert reader.release(lap) == 0
        assert raw_verbs.work(ring.creator, reader.number, 0) == lap << 16
        assert raw_verbs.fence(ring.creator, reader.number, 0) == lap << 16


def test_a_second_use_of_one_sequence_promises_one_more(segment):
    """Peer numbers and sequences may both come again (G7).  Values must still rise."""
    ring = segment(2)
    producer, keeper = ring.producer(), ring.consumer("keep", start="oldest")
    producer.put()
    values = []
    for name in "abc":
        reader = ring.consumer(name, start=2)
        number = reader.number
        assert reader.acquire() == 2
        assert reader.release(2) == 0
        values.append(raw_verbs.work(ring.creator, number, 0))
        assert reader.peer.leave() == 0
    assert values == [2 << 16, (2 << 16) + 1, (2 << 16) + 2]
    assert keeper.get() == 2


@pytest.mark.parametrize("phase", ["publish", "abandon"])
def test_a_claim_waits_for_every_peer_that_owes_work_on_the_slot(segment, phase):
    """The fences that are behind belong to an abandoned claim (G6), an older writer (G2), and the
    claimer itself (G12)."""
    ring = segment(1)
    a, b = ring.producer(), ring.producer()
    assert a.claim() == 1
    assert getattr(a, phase)(1) == 0
    row = ring.work_row(0, a.number)
    ring.poke("fence", "", 0, row)  # as if its GPU had not got there
    for claimer in (b, a):
        assert claimer.claim(0) == native.BLOCKED
        assert claimer.peer.culprit[:2] == (native.BY_FENCE, a.number)
        assert claimer.peer.holding() == []
        assert ring.slot(0)[2] == "void"
    raw_verbs.raise_fence(ring.creator, a.number, 0, ring.peek("work", "", row))
    assert b.claim() > 0


def test_an_acquire_waits_for_its_producers_fence_and_gives_back_at_its_deadline(segment):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    producer.put(2)
    ring.poke("fence", "", 0, ring.work_row(0, producer.number))
    assert reader.acquire(0) == native.BLOCKED
    assert reader.peer.culprit[:2] == (native.BY_FENCE, producer.number)
    assert reader.peer.holding() == []
    assert ring.take(reader.subscription, 0) == (2, reader.number, "open")
    raw_verbs.raise_fence(ring.creator, producer.number, 0, ring.peek("slot", "fence", 0))
    assert reader.drain() == ([2, 3], native.BLOCKED)


def test_a_reader_waits_for_his_own_earlier_work_on_the_slot(segment):
    ring = segment(1)
    reader, producer = ring.consumer(), ring.producer()
    producer.put()
    assert reader.get() == 1
    producer.put()
    ring.poke("fence", "", 0, ring.work_row(0, reader.number))
    assert reader.acquire(0) == native.BLOCKED
    assert reader.peer.culprit[:2] == (native.BY_FENCE, reader.number)


def test_the_record_of_a_frame_says_its_shape_and_its_time(segment):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    before = native.now_ns()
    assert producer.claim() == 2
    assert producer.publish(2, (3, 5)) == 0
    producer.put()
    assert reader.acquire() == 2
    assert reader.peer.shape(0) == (3, 5)
    assert before <= reader.peer.time_ns(0) <= native.now_ns()
    assert reader.acquire() == 3
    assert reader.peer.shape(1) is None
    ring.poke("slot", "ndim", 9, 1)
    with pytest.raises(native.Damaged, match="9"):
        reader.peer.shape(1)

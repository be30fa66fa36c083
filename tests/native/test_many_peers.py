"""More than 64 peers and subscriptions, whose masks have several words: every verb, and deaths.

Each test has a crowd of idle peers, so that those it is about have numbers in a later word.
"""

from __future__ import annotations

import os

import pytest

import gpuring
from gpuring import cli, native
from gpuring.native.snapshot import snapshot
from tests.helpers import raw_verbs
from tests.helpers.processes import poll
from tests.helpers.promise import promise

SIZES = (65, 128, 250)
CROWDS = (64, 127, 247)
SMALL = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}
FULL = {"max_peers": 250, "max_subscriptions": 250}


def bits(numbers):
    return sum(1 << number for number in numbers)


@pytest.fixture(params=CROWDS)
def crowded(segment, request):
    """A ring with many idle peers, and room for three more."""
    ring = segment(2, max_peers=request.param + 3, max_subscriptions=request.param + 3)
    crowd = ring.process()
    for k in range(request.param):
        ring.consumer(f"idle {k}", lossless=False, header=crowd)
    return ring


@pytest.mark.parametrize("n", SIZES)
def test_full_tables(segment, n):
    ring = segment(2, max_peers=n, max_subscriptions=n)
    everybody = ring.process()
    producer = ring.producer(everybody)
    readers = [ring.consumer(f"s{k}", header=everybody) for k in range(n - 1)]
    assert [r.number for r in readers] == list(range(1, n))
    assert [r.subscription for r in readers] == list(range(n - 1))
    assert ring.mask("peer_mask") == bits(range(n))
    assert ring.mask("sub_mask") == bits(range(n - 1))
    assert ring.creator.live_peers() == list(range(n))
    assert ring.peek("head", "producers") >> 8 & 0xFF == 1
    assert raw_verbs.join_producer(everybody) == native.FULL_PEERS
    producer.put(2)
    for r in reversed(readers):  # it waits for each of them, and names it
        assert producer.claim() == native.BLOCKED
        assert producer.peer.culprit[:3] == (native.BY_SUBSCRIPTION, None, 0)
        assert r.drain()[0] == [2, 3]
    assert producer.put(1) == [4]
    for r in readers[:-1]:
        assert r.get() == 4
    producer.put(1)
    for r in readers[:-1]:
        assert r.get() == 5
    assert producer.claim() == native.BLOCKED  # only because of the last subscription
    assert producer.peer.culprit[:3] == (native.BY_SUBSCRIPTION, None, n - 2)
    assert readers[-1].drain()[0] == [4, 5]
    readers[-1].die()  # all readers are of one process
    assert ring.creator.live_peers() == []
    ring.unlock()
    assert ring.creator.reap() == list(range(n))  # nobody has reaped them before
    assert ring.mask("peer_mask") == ring.mask("sub_mask") == 0
    newcomer = ring.producer()
    assert newcomer.number == 0


def test_a_join_and_a_leave_change_their_own_bits_only(crowded):
    peers, subs = crowded.mask("peer_mask"), crowded.mask("sub_mask")
    reader = crowded.consumer("last")
    assert crowded.mask("peer_mask") == peers | 1 << reader.number
    assert crowded.mask("sub_mask") == subs | 1 << reader.subscription
    assert reader.peer.leave() == 0
    assert (crowded.mask("peer_mask"), crowded.mask("sub_mask")) == (peers, subs)


def test_the_gate_waits_for_a_holder_in_the_last_subscription(crowded):
    """M3: the gate looks at all words of the mask."""
    reader, producer = crowded.consumer("last"), crowded.producer()
    producer.put(2)
    assert reader.acquire() == 2
    assert producer.claim() == native.BLOCKED
    assert producer.peer.culprit[:4] == (native.BY_HOLDER, reader.number, reader.subscription, 2)
    assert reader.release(2) == 0
    assert producer.claim() == 4


def test_a_slot_that_a_lossy_reader_of_the_last_subscription_holds_is_passed_over(crowded):
    """M4: the look after the swap sees the hold, because the gate lets lossy readers be."""
    reader, producer = crowded.consumer("last", lossless=False), crowded.producer()
    producer.put(2)
    assert reader.acquire() == 2
    assert producer.put(1) == [5]  # 4 is void
    assert crowded.slot(0) == (4, producer.number, "void")
    assert reader.release(2) == 0
    assert producer.put(1) == [6]


def test_no_storm_of_voids_while_the_last_subscription_holds_every_slot(crowded):
    """M5: holders of every slot are looked for in all words of the mask."""
    reader, producer = crowded.consumer("last", lossless=False), crowded.producer()
    producer.put(2)
    assert [reader.acquire(), reader.acquire()] == [2, 3]
    before = crowded.bytes()
    assert producer.claim() == native.BLOCKED
    assert crowded.bytes() == before
    assert producer.peer.culprit[:3] == (native.BY_HOLDER, reader.number, reader.subscription)
    assert reader.release(3) == 0
    assert producer.claim(1) == 5


def test_a_claim_waits_for_the_work_of_the_last_peer(crowded):
    first, last = crowded.producer(), crowded.producer()
    assert last.put(1) == [2]
    row = crowded.work_row(0, last.number)
    crowded.poke("fence", "", 0, row)  # as if its GPU had not got there
    assert first.put(1) == [3]
    assert first.claim(0) == native.BLOCKED
    assert first.peer.culprit[:2] == (native.BY_FENCE, last.number)
    raw_verbs.raise_fence(crowded.creator, last.number, 0, crowded.peek("work", "", row))
    assert first.claim() > 0


def test_what_the_last_member_held_goes_to_another_when_it_dies(crowded):
    producer = crowded.producer()
    survivor, victim = crowded.consumer("last"), crowded.consumer("last")
    assert survivor.subscription == victim.subscription
    producer.put(2)
    assert victim.acquire() == 2
    victim.die()
    assert crowded.reap() == [victim.number]
    assert crowded.take(victim.subscription, 0) == (2, 255, "open")
    assert snapshot(crowded.creator)["deaths"][0]["reopened"] == 1
    assert survivor.acquire() == 2
    assert survivor.peer.redelivered
    assert survivor.release(2) == 0
    assert survivor.get() == 3
    assert crowded.mask("sub_mask") >> victim.subscription == 1
    survivor.die()
    assert crowded.reap() == [survivor.number]
    assert crowded.mask("sub_mask") >> survivor.subscription == 0


@pytest.mark.parametrize("clear", ["join", "look"])
def test_orphans_of_the_last_number_are_cleared(crowded, clear):
    """A peer that was taken for dead has left a word in a subscription of the mask's last word."""
    reader, producer = crowded.consumer("last"), crowded.producer()
    newcomer = crowded.process()
    producer.put(1)
    orphan = 2 << 16 | (crowded.max_peers - 1) << 8 | 2  # HELD by the number that nobody has
    row = 0 * crowded.max_subscriptions + reader.subscription
    lock = crowded.hold_lock()
    crowded.poke("take", "word", orphan, row)
    os.close(lock)
    if clear == "join":
        assert crowded.producer(newcomer).number == crowded.max_peers - 1
    else:
        newcomer.reap()
        poll(lambda: crowded.take(reader.subscription, 0)[2] != "held")  # a watchdog may do it
    assert crowded.take(reader.subscription, 0) == (2, 255, "open")
    assert reader.get() == 2


# ---- through the API ---------------------------------------------------------------------------


@promise("limits.md", "It has at most 250 peers and 250 subscriptions.")
@pytest.mark.parametrize("n", SIZES)
def test_every_verb_of_the_last_peers(name, n):
    with gpuring.create(name, **SMALL, max_peers=n, max_subscriptions=n) as ring:
        readers = [ring.consumer(f"idle {k}", lossless=False) for k in range(n - 4)]
        readers += ring.consumer("last"), ring.consumer("newest", lossless=False)
        *_, frames, newest = readers
        with ring.producer() as producer, ring.producer() as other:
            with pytest.raises(gpuring.TooManyPeers, match=f"all {n} entries"):
                ring.producer()
            with producer.claim(0) as slot:
                slot.array[...] = 1
            slot = other.claim(0)
            slot.abandon()
            slot = frames.acquire(0)
            assert (slot.array == 1).all()
            with pytest.raises(gpuring.RingFull, match=f"peer {n - 4}|'last'"):
                producer.claim(0)
            slot.release()
            with producer.claim_many(2, 0) as batch:
                for slot in batch:
                    slot.array[...] = 2
            with newest.latest(0) as slot:
                assert slot.seq == batch[-1].seq
            with frames.acquire_many(2, 0) as taken:
                assert [(slot.array == 2).all() for slot in taken] == [True, True]
            assert gpuring.select([frames, producer], timeout=0) == [producer]
            stats = ring.stats()
            assert sorted(peer.number for peer in stats.peers) == list(range(n))
            assert len(stats.subscriptions) == n - 2
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(0)


@pytest.mark.parametrize("command", ["inspect", "ls", "top --once"])
@pytest.mark.parametrize("shared", [False, True])
def test_commands_show_250_peers_in_80_columns(name, command, shared, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with gpuring.create(name, **SMALL, **FULL) as ring, ring.producer():
        readers = [ring.consumer("jobs" if shared else f"analyser-{k}") for k in range(249)]
        assert cli.main([*command.split(), name]) == 0
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 80
    if command == "inspect":
        peers = [line for line in told if " consumer " in line]
        assert [int(line.split()[0]) for line in peers] == list(range(1, 250))
    elif command == "ls":
        (line,) = [line for line in told if line.startswith(name)]
        assert line.split()[-3:] == ["1", "249", "open"]
    else:
        (line,) = [line for line in told if line.startswith(name) and "open" in line]
        assert "250" in line.split()
        assert sum(line.startswith("lossless") for line in told) >= 249
    del readers

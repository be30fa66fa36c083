"""Deaths of processes that have claimed, hold or still read a batch on the GPU."""

from __future__ import annotations

import threading

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import RECOVERY_S, my_turn, ring_is_whole, started, still_healthy
from tests.helpers.processes import poll

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
BATCH = 3
ROUNDS = 5


def claim_and_hang(pipe, name):
    """Claims three slots, enqueues its writes behind a latch, and publishes one of them."""
    stream, kernels, latch = my_turn(pipe)
    producer = gpuring.attach(name, timeout=20).producer(gate="stream")
    with stream:
        batch = producer.claim_many(BATCH, 10)
        latch.hold(stream)
        for slot in batch:
            kernels.stamp(slot, slot.seq, stream)
        batch[0].publish()
    pipe.ask([slot.seq for slot in batch])


@pytest.mark.deadline(400)
def test_a_producer_dies_with_a_claimed_batch(safe, name, children):
    tools()
    stream = library.new_stream()
    victims = started(children, ROUNDS, claim_and_hang, name)
    with gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", **safe) as ring:
        for number, victim in enumerate(victims):
            with ring.consumer() as consumer, stream:
                victim.send()
                seqs = victim.receive()
                assert len(seqs) == BATCH
                if ring.gate == "stream":
                    batch = consumer.acquire_many(BATCH, 10)
                    assert [slot.seq for slot in batch] == seqs[:1]
                    assert not library.done(stream), "nothing to wait for"
                    victim.process.kill()
                    poll(lambda: library.done(stream), RECOVERY_S)
                    with pytest.raises(gpuring.FrameTorn) as caught:
                        batch.release()
                    assert caught.value.seqs == (seqs[0],)
                else:
                    threading.Timer(0.02, victim.process.kill).start()
                with pytest.raises(gpuring.PeerLost):  # torn or void: passed over
                    consumer.acquire_many(BATCH, RECOVERY_S)
                death = ring.stats().deaths[0]
                assert (death.pid, death.torn, death.voided) == (victim.pid, 1, BATCH - 1)
            victim.kill()
            stream.synchronize()
            still_healthy(number)
        ring_is_whole(ring)


def hold_batch(pipe, name):
    """Holds three frames.  Its reads are behind a latch."""
    stream, kernels, latch = my_turn(pipe)
    wrong = kernels.counter()
    consumer = gpuring.attach(name, timeout=20).consumer("shared")
    pipe.send("joined")
    pipe.receive()  # all are published
    with stream:
        batch = []
        while len(batch) < BATCH:  # with the host gate it may take several calls
            batch += consumer.acquire_many(BATCH - len(batch), 20)
        latch.hold(stream)
        for slot in batch:
            kernels.check(slot, slot.seq, wrong, stream)
    pipe.ask([slot.seq for slot in batch])


@pytest.mark.deadline(400)
def test_a_consumer_dies_holding_a_batch_and_another_member_gets_the_frames(safe, name, children):
    kernels = tools()
    wrong = kernels.counter()
    victims = started(children, ROUNDS, hold_batch, name)
    with (
        gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", **safe) as ring,
        ring.producer() as producer,
        ring.consumer("shared") as other,
    ):
        for number, victim in enumerate(victims):
            victim.send()
            assert victim.receive() == "joined"
            sent = []
            while len(sent) < BATCH:
                with producer.claim_many(BATCH - len(sent), 10) as batch:
                    for slot in batch:
                        kernels.stamp(slot, slot.seq, None)
                        sent.append(slot.seq)
            victim.send()
            assert victim.receive() == sent
            victim.process.kill()
            got = []
            while len(got) < BATCH:
                with other.acquire_many(BATCH, RECOVERY_S) as batch:
                    for slot in batch:
                        assert slot.redelivered
                        kernels.check(slot, slot.seq, wrong, None)
                        got.append(slot.seq)
            assert got == sent
            victim.kill()
            still_healthy(number)
        assert kernels.count(wrong) == 0


def release_and_hang(pipe, name):
    """Releases three frames while its reads stand behind a latch."""
    stream, kernels, latch = my_turn(pipe)
    wrong = kernels.counter()
    consumer = gpuring.attach(name, timeout=20).consumer()
    pipe.send("joined")
    pipe.receive()  # all are published
    with stream:
        batches = [consumer.acquire_many(BATCH, 20)]
        while (missing := BATCH - sum(map(len, batches))) > 0:  # with the host gate
            batches.append(consumer.acquire_many(missing, 20))
        latch.hold(stream)
        for batch in batches:
            for slot in batch:
                kernels.check(slot, slot.seq, wrong, stream)
            batch.release()
    pipe.ask("released")


@pytest.mark.deadline(400)
def test_a_consumer_dies_whose_batch_the_gpu_still_reads(safe, name, children):
    kernels = tools()
    stream = library.new_stream()
    victims = started(children, ROUNDS, release_and_hang, name)
    with (
        gpuring.create(name, slots=BATCH, shape=(WORDS,), dtype="u8", **safe) as ring,
        ring.producer() as producer,
        stream,
    ):
        for number, victim in enumerate(victims):
            reaps = ring._header.reaps
            victim.send()
            assert victim.receive() == "joined"
            sent = 0
            while sent < BATCH:
                with producer.claim_many(BATCH - sent, 10) as batch:
                    for slot in batch:
                        kernels.stamp(slot, slot.seq, stream)
                    sent += len(batch)
            victim.send()
            assert victim.receive() == "released"
            if ring.gate == "stream":
                batch = producer.claim_many(BATCH, 10)
                assert len(batch) == BATCH
                assert not library.done(stream), "nothing to wait for"
                victim.process.kill()
                poll(lambda: library.done(stream), RECOVERY_S)
            else:
                threading.Timer(0.02, victim.process.kill).start()
                batch = producer.claim_many(BATCH, RECOVERY_S)
            batch.abandon()
            victim.kill()
            stream.synchronize()
            poll(lambda reaps=reaps: ring._header.reaps > reaps)
            ring._header.reap()  # all others have finished, so no fence is open
            still_healthy(number)
        assert not ring.stats().subscriptions
        ring_is_whole(ring)

"""The model is clean in each small configuration, and fails wherever one fix is taken away."""

import copy
import random

import pytest

from .actors import Cast
from .configs import CI, host
from .explore import Program, explore
from .mutants import MUTANTS, fixes
from .protocol import Ring
from .sequential import Blocked, EndOfStream, PeerLost, RingClosed, SequentialModel
from .steps import apply


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("name", CI)
def test_clean(name):
    report = CI[name]()
    assert not report.violation, str(report)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    report = MUTANTS[name].explore(fixes(name, on=False))
    assert report.violation.startswith(MUTANTS[name].caught), report.head()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", [name for name in MUTANTS if not MUTANTS[name].slow])
def test_the_fix_is_what_matters(name):
    report = MUTANTS[name].explore(fixes(name, on=True))
    assert not report.violation, str(report)


@pytest.mark.parametrize(
    "cast",
    [
        lambda: host().producer(3).consumer(),
        lambda: host().producer(1).producer(1).consumer(1, lossy=True),
        lambda: host(kills=1).producer(1, mortal=True).consumer().reaper(0),
        lambda: host().producer(1).consumer(1, gives_back=1).consumer(),
    ],
)
def test_reduction_loses_no_outcome(cast):
    """Merging private loads, and fewer kill points, reach the same final memories as every step."""
    full, reduced = explore(cast().world(), reduce=False), explore(cast().world())
    assert full.ends == reduced.ends
    assert full.states > reduced.states


def test_a_local_state_says_all_that_matters():
    """Position and locals stand for the whole history: a verb never hides a value elsewhere."""
    dice = random.Random(2)
    for _ in range(300):
        world = host(subs=2).producer(3).consumer().consumer(u=1, lossy=True).closer().world()
        programs = [Program(actor) for actor in world.actors]
        live = [actor.script(copy.copy(actor.me)) for actor in world.actors]
        at, ops = [p.first for p in programs], [script.send(None) for script in live]
        memory, running = list(world.memory), {*range(len(live))}
        while running:
            k = dice.choice(sorted(running))
            assert programs[k].ops[at[k]] == ops[k]
            enabled, result = apply(memory, ops[k])
            at[k] = programs[k].step(at[k], result) if enabled else at[k]
            try:
                ops[k] = live[k].send(result) if enabled else ops[k]
            except StopIteration:
                running.discard(k)


class TestSequentialModel:
    def test_frames_go_round(self):
        ring = SequentialModel(slots=2)
        producer, consumer = ring.join_producer(), ring.join_consumer("a")
        for expected in range(2, 9):
            seq = ring.claim(producer)
            ring.publish(producer, seq)
            assert ring.acquire(consumer) == seq == expected
            ring.release(consumer, seq)
        assert ring.words()["claim_hint"] == ring.frontier() == 9

    def test_a_full_ring_names_the_holder(self):
        ring = SequentialModel(slots=2)
        producer, consumer = ring.join_producer(), ring.join_consumer("a")
        for _ in range(2):
            ring.publish(producer, ring.claim(producer))
        ring.acquire(consumer)
        before = ring.words()
        with pytest.raises(Blocked) as blocked:
            ring.claim(producer)
        assert blocked.value.culprit == consumer
        assert ring.words() == before

    def test_a_frame_given_back_comes_again(self):
        ring = SequentialModel(slots=2)
        producer = ring.join_producer()
        one, other = ring.join_consumer("a"), ring.join_consumer("a")
        ring.publish(producer, ring.claim(producer))
        seq = ring.acquire(one)
        ring.give_back(one, seq)
        assert ring.words()["take"][0][0] == (seq, one, "OPEN")
        assert ring.acquire(other) == seq

    def test_a_dead_members_frame_comes_again(self):
        ring = SequentialModel(slots=2)
        producer = ring.join_producer()
        one, other = ring.join_consumer("a"), ring.join_consumer("a")
        ring.publish(producer, ring.claim(producer))
        seq = ring.acquire(one)
        ring.kill(one)
        with pytest.raises(Blocked):
            ring.acquire(other)
        ring.reap(one)
        assert ring.acquire(other) == seq

    def test_ends(self):
        ring = SequentialModel(slots=2)
        consumer = ring.join_consumer("a")
        with pytest.raises(Blocked):  # no producer yet: not the end
            ring.acquire(consumer)
        producer = ring.join_producer()
        ring.publish(producer, ring.claim(producer))
        ring.kill(producer)
        ring.reap(producer)
        ring.release(consumer, ring.acquire(consumer))
        with pytest.raises(PeerLost):
            ring.acquire(consumer)
        ring.leave(ring.join_producer())
        with pytest.raises(EndOfStream):
            ring.acquire(consumer)

    def test_close(self):
        ring = SequentialModel(slots=2)
        producer, consumer = ring.join_producer(), ring.join_consumer("a")
        seq = ring.claim(producer)
        ring.close()
        with pytest.raises(Blocked):  # claimed before the close: it may still be published
            ring.acquire(consumer)
        ring.publish(producer, seq)
        with pytest.raises(RingClosed):
            ring.claim(producer)
        assert ring.acquire(consumer) == seq
        with pytest.raises(EndOfStream):
            ring.acquire(consumer)

    def test_a_lossy_holder_costs_one_sequence(self):
        ring = SequentialModel(slots=2)
        producer, consumer = ring.join_producer(), ring.join_consumer("a", lossless=False)
        for _ in range(2):
            ring.publish(producer, ring.claim(producer))
        assert ring.acquire(consumer) == 2
        assert ring.claim(producer) == 5  # 4 is VOID
        assert ring.words()["slot"][0] == (4, producer, "VOID")
        ring.publish(producer, 5)
        ring.release(consumer, 2)
        assert ring.latest(consumer) == 5
        assert ring.lost(consumer) == 2  # 3 and 4

    def test_a_torn_frame_is_told(self):
        ring = SequentialModel(slots=2, gpu=True)
        producer, consumer = ring.join_producer(), ring.join_consumer("a")
        seq = ring.claim(producer)
        ring.publish(producer, seq)
        assert ring.acquire(consumer) == seq
        ring.kill(producer)
        ring.reap(producer)
        assert ring.torn(seq)
        assert ring.words()["slot"][0] == (seq, producer, "TORN")
        ring.release(consumer, seq)
        with pytest.raises(Blocked):  # its own GPU work is not done
            ring.leave(consumer)
        ring.finish(consumer)
        ring.leave(consumer)


def test_the_explorer_sees_a_dead_end():
    """A consumer that never leaves, and a producer that waits for it: said, not overlooked."""
    report = Cast(Ring()).producer(3).consumer(0, leave=False).explore()
    assert report.violation == "P1 waits for ever"
    assert report.trace

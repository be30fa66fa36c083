"""The look (`gr_look`) agrees with the verbs, over random histories of a small ring."""

from __future__ import annotations

import random

import pytest

from gpuring import native
from tests.helpers.segment import Actor, Segment

STEPS = 20_000


class History:
    """Producers, two members of a subscription and a lossy reader, who do whatever they can."""

    def __init__(self, ring: Segment, dice: random.Random) -> None:
        self.ring, self.dice = ring, dice
        self.held: dict[Actor, list[int]] = {}
        self.transient = 0
        for _ in range(2):
            self.join("producer")
            self.join("member")
        self.join("lossy")

    def join(self, kind: str) -> None:
        if kind == "producer":
            actor = self.ring.producer()
        else:
            actor = self.ring.consumer(kind, kind != "lossy", self.dice.choice(["next", "oldest"]))
        actor.kind = kind
        self.held[actor] = []

    def begin(self, actor: Actor) -> None:
        """Claims or acquires with timeout 0, and compares the result with the look before."""
        if actor.kind == "lossy" and self.dice.random() < 0.3:
            if (seq := actor.latest()) > 0:
                self.held[actor].append(seq)
            return
        foretold = native.ready(actor.peer)
        seen, culprit = native.look(actor.peer)
        got = actor.claim() if actor.kind == "producer" else actor.acquire()
        assert foretold or got == native.BLOCKED, "a sleeper would have missed this"
        if seen == native.BLOCKED:
            assert culprit == actor.peer.culprit
        if actor.kind != "producer":
            assert got == seen
        elif got > 0:  # a claim that met a lossy reader's hold is void, and the next one counts
            assert got == seen or (
                got > seen and self.ring.slot(seen % self.ring.slots)[2] != "ready"
            )
        if got == native.BLOCKED:
            assert not native.ready(actor.peer), "the verb would be called again and again"
            self.transient += foretold
        elif got > 0:
            self.held[actor].append(got)
        else:
            assert got == native.ENDED

    def end(self, actor: Actor) -> None:
        held = self.held[actor]
        seq = held.pop(self.dice.randrange(len(held)))
        if actor.kind == "producer":
            verb = self.dice.choice([actor.publish, actor.publish, actor.abandon])
        else:
            verb = self.dice.choice([actor.release, actor.release, actor.give_back])
        assert verb(seq) == 0

    def go(self, actor: Actor) -> None:
        """The actor leaves, and another one of its kind joins.  The stream may have ended in
        between."""
        while self.held[actor]:
            self.end(actor)
        assert actor.peer.leave() == 0
        del self.held[actor]
        assert native.ready(actor.peer), "a peer that has left gets an error at once"
        for other in self.held:
            if self.dice.random() < 0.5:
                self.begin(other)
        self.join(actor.kind)

    def die(self, actor: Actor) -> None:
        del self.held[actor]
        actor.die()
        for other in self.held:
            if len(self.held[other]) < self.ring.slots:
                self.begin(other)
        self.ring.reap()
        self.join(actor.kind)

    def step(self) -> None:
        actor = self.dice.choice(list(self.held))
        chance = self.dice.random()
        if chance < 0.01:
            self.go(actor)
        elif chance < 0.015:
            self.die(actor)
        elif self.held[actor] and chance < 0.5:
            self.end(actor)
        elif len(self.held[actor]) < self.ring.slots:
            self.begin(actor)


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_is_not_ready_is_blocked_and_who_was_blocked_is_not_ready(segment, slots, seed):
    history = History(segment(slots, max_peers=8), random.Random(seed))
    for _ in range(STEPS):
        history.step()
    assert history.transient < STEPS / 10


def test_who_waits_for_a_closed_ring_is_told(segment):
    ring = segment(2)
    producer, reader = ring.producer(), ring.consumer()
    producer.put(2)
    assert [native.ready(producer.peer), native.ready(reader.peer)] == [False, True]
    ring.creator.close_ring()
    assert native.ready(producer.peer)
    assert reader.drain() == ([2, 3], native.ENDED)
    assert native.ready(reader.peer)


def test_frames_before_the_start_of_a_subscription_gate_nobody(segment):
    ring = segment(2)
    producer = ring.producer()
    producer.put(2)
    ring.consumer()
    assert native.ready(producer.peer)
    producer.put()


def test_a_torn_frame_that_is_held_gates(segment):
    ring = segment(2)
    mortal, producer, reader = ring.producer(), ring.producer(), ring.consumer()
    mortal.put()
    producer.put()
    assert reader.acquire() == 2
    assert reader.get() == 3
    ring.poke("fence", "", 0, ring.work_row(0, mortal.number))
    mortal.die()
    ring.reap()
    assert ring.slot(0)[2] == "torn"
    assert not native.ready(producer.peer)
    assert producer.claim() == native.BLOCKED
    assert reader.release(2) in (0, native.TORN)
    assert native.ready(producer.peer)
    assert producer.claim() == 4

"""The chain of waits from whoever is stuck to whoever is to blame."""

from __future__ import annotations

import dataclasses
import os

import gpuring
from gpuring.cli.why import told
from gpuring.registry import survey
from gpuring.registry.jams import jams
from tests.cli.planted import PLANTED, Blame, blamed, look
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.helpers.rings import put, small_ring
from tests.service.parts import part, read
from tests.service.services import send, serve


def is_whole(jam):
    """Whether both rings are full, and everybody who needs a slot sleeps."""
    return len(jam.steps) == 2 and all(step.waiting for step in jam.steps)


def test_a_chain_names_each_wait(name, children):
    """camera → name → detector → name-seen → page, which is stopped."""
    with PLANTED["a_full_ring_further_on"](children, name) as blame:
        jam = poll(lambda: next((j for j in jams(look(name)) if is_whole(j)), None))
        assert blamed(jam) == blame
        assert [(step.ring, step.wants) for step in jam.steps] == [
            (name, "slot"),
            (f"{name}-seen", "slot"),
        ]
        assert [step.by[0].label for step in jam.steps] == ["detector", "page"]
        assert [peer.label for step in jam.steps for peer in step.waiting] == ["camera", "detector"]


def test_a_dead_ring_is_told_since_something_has_happened_there(name, children):
    with PLANTED["a_ring_in_which_all_are_dead"](children, name):
        (one,) = look(name)
        assert one.state == "dead"
        old = dataclasses.replace(one, created_ns=one.created_ns - 10**12)
        signs = [one.published_s, *(each.age_s for each in (*one.peers, *one.deaths))]
        assert jams([old])[0].age_s == min(signs)
        nobody = dataclasses.replace(old, peers=(), deaths=(), subscriptions=(), published_s=7.0)
        assert jams([nobody])[0].age_s == 7.0
        twice = dataclasses.replace(old, peers=old.peers * 2)
        assert jams([twice])[0].steps[0].why == jams([old])[0].steps[0].why
        producer = dataclasses.replace(old, creator_pid=old.peers[0].pid)
        assert jams([producer])[0].steps[0].why.count(f"(pid {producer.creator_pid})") == 1


def test_each_subscription_that_nobody_reads_is_told(name):
    with small_ring(name, subscriptions=["one", "other"]) as ring, ring.producer() as producer:
        put(producer, ring.slots)
        (jam,) = jams(look(name))
        assert [(end.reason, end.subscription) for end in jam.culprits] == [
            ("no reader", "one"),
            ("no reader", "other"),
        ]
        assert "It is not the only one" in told(jam)
        with ring.consumer("other") as frames:
            frames.acquire(0).release()
            assert [end.subscription for end in jams(look(name))[0].culprits] == ["one"]


def test_a_producer_is_not_asked_for_where_the_creator_is_dead(name, children):
    with PLANTED["a_ring_whose_creator_was_killed"](children, name):
        one = poll(lambda: [each for each in look(name) if not each.producers])[0]
        step = poll(lambda: jams(look(name)))[0].steps[0]
        assert blamed(jams(look(name))[0]).reason == "no creator"
        assert step.why.endswith(f"its creator (pid {one.creator_pid}) is dead")


def test_the_same_culprit_is_told_once(name, children):
    with small_ring(f"{name}-a") as one, small_ring(f"{name}-b") as other:
        slow = up(children(two_rings, one.name, other.name))
        with one.producer() as first, other.producer() as second:
            put(first, 4)
            put(second, 4)
            (jam,) = jams(look(name))
            assert blamed(jam).pid == slow.pid
            assert sorted(jam.rings) == [one.name, other.name]


def two_rings(pipe, *names):
    consumers = [gpuring.attach(each).consumer("slow") for each in names]
    pipe.ask()
    del consumers


def test_a_call_whose_parts_are_read_is_no_jam_however_long_it_takes(name):
    after_s = 0.3
    with serve(name) as server, gpuring.connect(name, parts=2) as client:
        parts = send(client, 0).parts(PATIENCE_S)
        (call,) = server.take(timeout=PATIENCE_S)
        part(call, 0)
        assert read(parts, 1) == [0]
        (jam,) = poll(lambda: jams(look(name), after_s))
        assert blamed(jam).pid == os.getpid()
        assert parts.ready is False  # releases it
        part(call, 1)
        assert read(parts, 1) == [1]
        assert parts.ready is False
        seen = look(name)
        had_s = max(hold.age_s for one in seen for peer in one.peers for hold in peer.holding)
        assert had_s > after_s
        assert jams(seen, had_s) == []
        call.end()
        assert read(parts) == []


def test_all_members_that_do_not_read_are_named(name, children):
    with small_ring(name) as ring, ring.producer() as producer:
        members = [up(children(two_rings, name)) for _ in range(2)]
        put(producer, 4)
        (jam,) = jams(look(name))
        assert {end.peers[0].pid for end in jam.culprits} == {each.pid for each in members}
        members[1].stop()
        (jam,) = jams(look(name))
        assert blamed(jam) == Blame("stopped", members[1].pid, "slow")


def test_a_gpu_that_does_not_finish_is_to_blame_and_not_who_has_its_frame(rig):
    ring = rig("timeline")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    held = consumer.acquire_many(4, 0)
    seen = survey.collect("r", ring.segment.creator)
    (jam,) = jams([seen])
    assert [step.wants for step in jam.steps] == ["slot", "gpu"]
    (end,) = jam.culprits
    assert (end.reason, end.peers[0].number, end.seq) == ("gpu", producer.peer, held[0].seq)
    ring.finish()
    (jam,) = jams([survey.collect("r", ring.segment.creator)])
    assert jam.culprits[0].peers[0].number == consumer.peer
    assert jam.culprits[0].reason == "holds"
    held.release()
    (jam,) = jams([survey.collect("r", ring.segment.creator)])
    assert (jam.culprits[0].reason, jam.culprits[0].peers[0].number) == ("gpu", consumer.peer)
    ring.finish()
    assert jams([survey.collect("r", ring.segment.creator)]) == []


def test_who_is_stopped_is_not_to_blame_for_its_gpu(rig):
    """A kernel goes on while its process is stopped."""
    ring = rig("timeline")
    ring.producer().claim(0).publish()
    seen = survey.collect("r", ring.segment.creator)
    stopped = tuple(dataclasses.replace(peer, stopped=True) for peer in seen.peers)
    (jam,) = jams([dataclasses.replace(seen, peers=stopped)])
    assert blamed(jam).reason == "gpu"


def test_an_event_that_nobody_has_looked_at_is_no_jam(rig):
    """The fence of an event rises when somebody looks at it.  So a low fence does not mean that the
    GPU is busy."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    assert survey.collect("r", ring.segment.creator).producers[0].unfinished
    consumer.acquire_many(3, 0).release()
    assert jams([survey.collect("r", ring.segment.creator)]) == []
    held = consumer.acquire(0)
    producer.claim_many(3, 0).publish()
    (jam,) = jams([survey.collect("r", ring.segment.creator)])
    assert (jam.culprits[0].reason, jam.culprits[0].seq) == ("holds", held.seq)

"""Durable subscriptions: what a reader finds when it comes back, and for whom producers wait."""

from __future__ import annotations

import math
import os
import signal
import time

import pytest

import gpuring
from gpuring import native
from tests.helpers.durable import SLOTS, make, only, read
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import publish, segments_of


@pytest.mark.parametrize("lossless", [True, False])
def test_a_reader_that_comes_back_goes_on_after_the_last_released_frame(name, lossless):
    with make(name) as ring, ring.producer() as producer:
        with ring.consumer("rec", durable=True, lossless=lossless) as reader:
            publish(producer, 0, 1)
            assert read(reader, 1) == [(0, 0, False)]
        assert only(ring).members == ()
        publish(producer, 2)
        with ring.consumer("rec", lossless=lossless) as reader:
            assert read(reader, 2) == [(1, 0, False), (2, 0, False)]
        assert only(ring).durable


def test_producers_wait_for_it_while_nobody_reads(name):
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("rec")
        publish(producer, *range(SLOTS))
        with pytest.raises(gpuring.RingFull, match="durable, and nobody reads it"):
            producer.claim(0)
        assert ring.unsubscribe("rec")
        publish(producer, 9)
        assert ring.stats().subscriptions == ()
        assert not ring.unsubscribe("rec")


def test_whose_exporter_is_gone_is_not_sent_to_the_other_host(name):
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("bridge: vm/far")
        publish(producer, *range(SLOTS))
        with pytest.raises(gpuring.RingFull) as full:
            producer.claim(0)
        lacks = "`gpuring bridge export` here, or the importer on the other host"
        assert f"Start what its bridge lacks ({lacks}), or end it with" in str(full.value)
        assert "On that host" not in str(full.value)
        way = ring.stats().in_the_way
        assert way.why.endswith("It is durable, and nobody reads it")
        assert str(full.value).endswith(f"{way.why[-9:]}. {way.way_out}")
        assert way.way_out.endswith("`gpuring why` tells the commands with their arguments")


@pytest.mark.parametrize("more", [0, 1, SLOTS, 3 * SLOTS])
def test_when_its_patience_is_over_producers_go_on_and_the_loss_is_told(name, more):
    with make(name) as ring, ring.producer() as producer:
        with ring.consumer("rec", durable=True, patience=0.05) as reader:
            publish(producer, 0, 1)
            assert read(reader, 1) == [(0, 0, False)]
        publish(producer, 2, 3, 4)  # the ring is full: 1 to 4
        with producer.claim(10) as slot:
            slot.array[:] = 5
        assert only(ring).given_up
        publish(producer, *range(6, 6 + more))
        last = 5 + more
        with ring.consumer("rec") as reader:
            first, lost, _ = read(reader, 1)[0]
            assert lost == first - 1
            assert first == last - SLOTS + 2
            assert read(reader, last - first) == [(k, 0, False) for k in range(first + 1, last + 1)]
            assert not only(ring).given_up


def test_a_reader_that_leaves_begins_the_patience_anew(name):
    with make(name) as ring:
        ring.subscribe("rec", patience=60)
        poll(lambda: only(ring).unread_s > 0.05)
        began = time.monotonic()
        ring.consumer("rec").close()  # it has read nothing
        assert only(ring).unread_s <= time.monotonic() - began


def hold(pipe, name):
    with gpuring.attach(name, timeout=10) as ring:
        reader = ring.consumer("rec", durable=True)
        pipe.send("joined")
        with reader.acquire(10) as slot:
            pipe.send(int(slot.array[0]))
        slot = reader.acquire(10)
        pipe.ask(int(slot.array[0]))


@promise(
    "failure.md",
    "The subscription stays, and producers wait for it for as long as its `patience`. The "
    "next reader goes on at the frame after the last released one.",
)
def test_what_a_killed_reader_held_comes_again(name, children):
    with make(name) as ring, ring.producer() as producer:
        victim = children(hold, name)
        assert victim.receive() == "joined"
        publish(producer, 0, 1, 2)
        assert [victim.receive(), victim.receive()] == [0, 1]
        os.kill(victim.pid, signal.SIGKILL)
        poll(lambda: ring.stats().reaps == 1)
        with ring.consumer("rec") as reader:
            assert read(reader, 2) == [(1, 0, True), (2, 0, False)]


@pytest.mark.parametrize("read_first", [0, 2])
def test_a_subscription_goes_over_to_the_ring_that_takes_the_name(name, read_first):
    old = make(name)
    with old.producer() as producer, old.consumer("rec", durable=True, patience=60) as reader:
        publish(producer, 0, 1, 2)
        read(reader, read_first)
    with make(name, replace=True) as ring, ring.producer() as producer:
        assert (only(ring).durable, only(ring).patience_s) == (True, 60)
        publish(producer, 10)
        with ring.consumer("rec") as reader:
            assert read(reader, 1) == [(10, 3 - read_first, False)]
    old.close()


def test_a_ring_is_born_with_subscriptions(name, monkeypatch):
    """A process that has waited for the name may publish before the creator does anything else."""

    def give_name(*args):
        named(*args)
        with gpuring.attach(name) as ring, ring.producer() as producer:
            publish(producer, 0, 1)

    named = native.take_name
    monkeypatch.setattr(native, "take_name", give_name)
    with make(name, subscriptions=["rec", "other"]) as ring, ring.consumer("rec") as reader:
        assert read(reader, 2) == [(0, 0, False), (1, 0, False)]
        assert [one.durable for one in ring.stats().subscriptions] == [True, True]


def test_a_subscription_that_goes_over_keeps_its_terms(name):
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("rec", patience=60)
        publish(producer, 0)
        with make(name, replace=True, subscriptions=["rec"]) as new, new.producer() as other:
            assert only(new).patience_s == 60
            publish(other, 1)
            with new.consumer("rec") as reader:
                assert read(reader, 1) == [(1, 1, False)]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"subscriptions": "rec"}, TypeError, r"subscriptions must be several names"),
        ({"subscriptions": ["#1"]}, ValueError, "cannot name a subscription"),
        ({"subscriptions": ["a", "b"], "max_subscriptions": 1}, gpuring.TooManyPeers, "only"),
    ],
)
def test_a_ring_whose_subscriptions_are_refused_is_not_there(name, options, error, match):
    with pytest.raises(error, match=match):
        make(name, **options)
    assert not any(one.name == name for one in gpuring.ls())


@promise(
    "failure.md",
    "**Durable subscriptions.** Their ring keeps its name when its creator closes it or dies, and "
    "the next ring of that name takes them over.",
    "The slots of a ring that was closed go.",
    "`ring.unsubscribe` and `gpuring clean` end such subscriptions.",
)
@pytest.mark.parametrize("reads", [0, 2])
def test_a_subscription_goes_over_from_a_ring_that_was_closed_in_order(name, reads):
    with (
        make(name) as ring,
        ring.producer() as producer,
        ring.consumer("rec", durable=True, patience=60) as reader,
    ):
        publish(producer, 0, 1, 2)
        read(reader, reads)
    assert segments_of(name) == [f"gpuring.{name}"]  # the header, and not its slots
    with pytest.raises(gpuring.RingNotFound, match=f"it was closed.*`gpuring clean {name}` takes"):
        gpuring.attach(name)
    with make(name) as ring, ring.producer() as producer:
        assert only(ring).patience_s == 60
        publish(producer, 10)
        with ring.consumer("rec") as reader:
            assert read(reader, 1) == [(10, 3 - reads, False)]
        ring.unsubscribe("rec")
    assert segments_of(name) == []


def test_a_create_that_fails_leaves_them_to_the_next_one(name):
    with make(name, subscriptions=["rec"]) as ring, ring.producer() as producer:
        publish(producer, 0, 1, 2)
    with pytest.raises(gpuring.TooManyPeers):
        make(name, subscriptions=["a", "b"], max_subscriptions=1)
    with make(name) as ring, ring.producer() as producer:
        publish(producer, 10)
        with ring.consumer("rec") as reader:
            assert read(reader, 1) == [(10, 3, False)]


def test_a_closed_ring_does_not_keep_another_from_its_name(name):
    with make(name, subscriptions=["rec"]):
        pass
    with make(name, replace=False) as ring:
        assert only(ring).name == "rec"


def test_a_closed_ring_goes_with_its_last_durable_subscription(name, children):
    reader = children(until_the_end, name)
    with make(name, subscriptions=["rec", "other"]) as ring, ring.producer() as producer:
        assert reader.receive() == "joined"
        publish(producer, 0, 1, 2)
    reader.send("closed")
    assert reader.receive() == 3
    assert segments_of(name) == [f"gpuring.{name}"]
    reader.send("end")
    assert reader.receive() == []


def until_the_end(pipe, name):
    with gpuring.attach(name, timeout=10) as ring, ring.consumer("rec") as frames:
        pipe.ask("joined")
        pipe.ask(sum(1 for _ in frames))
        ring.unsubscribe("other")
        ring.unsubscribe("rec")
        pipe.send(segments_of(name))


def create(pipe, name):
    with make(name) as ring, ring.producer() as producer:
        pipe.ask("made")
        publish(producer, 0, 1, 2)
        pipe.receive()


def test_what_a_member_had_not_read_that_was_killed_with_its_ring_counts(name, children):
    """No reaper had cleared the dead member."""
    maker = up(children(create, name))
    victim = children(hold, name)
    assert victim.receive() == "joined"
    maker.send(None)
    assert [victim.receive(), victim.receive()] == [0, 1]
    os.kill(maker.pid, signal.SIGSTOP)
    victim.kill()
    maker.kill()
    with make(name) as ring, ring.producer() as producer, ring.consumer("rec") as reader:
        publish(producer, 10)
        assert read(reader, 1) == [(10, 2, False)]


def test_a_member_that_still_reads_the_old_ring_loses_nothing(name):
    old = make(name)
    with old.producer() as producer:
        reader = old.consumer("rec", durable=True, reattach=True)
        publish(producer, 0, 1)
    with make(name, replace=True) as ring, ring.producer() as producer, reader:
        publish(producer, 10, 11)
        assert read(reader, 4) == [(0, 0, False), (1, 0, False), (10, 0, False), (11, 0, False)]
    old.close()


def test_a_subscription_that_is_there_becomes_durable_and_its_terms_must_agree(name):
    with make(name) as ring, ring.consumer("rec") as reader:
        with pytest.raises(ValueError, match="lossless"):
            ring.subscribe("rec", lossless=False)
        ring.subscribe("rec", patience=5)
        assert (only(ring).durable, only(ring).unread_s) == (True, None)
        reader.close()
        assert only(ring).unread_s is not None
        ring.subscribe("rec")
        with ring.consumer("rec", durable=True):
            assert only(ring).patience_s == 5  # a member that gives no patience leaves it as it is
        for endless in (math.inf, 1e300, 10**400):
            ring.subscribe("rec", patience=endless)
            assert only(ring).patience_s is None
    for wrong in ({"patience": 1}, {"durable": True, "subscription": None}):
        with make(name) as ring, pytest.raises(ValueError, match="durable"):
            ring.consumer(**wrong)

"""Streams of several producers: when they end, which reader learns of a death, and who waits in
vain."""

from __future__ import annotations

import os
import re
import signal

import pytest

import gpuring
from gpuring.cli.inspect import describe
from tests.helpers.durable import SLOTS, make
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import publish


def publish_and_wait(pipe, name, count, label=None):
    with gpuring.attach(name, timeout=10) as ring, ring.producer(label=label) as producer:
        for k in range(count):
            with producer.claim(10) as slot:
                slot.array[:] = k
        pipe.ask("published")


def test_the_stream_ends_when_all_have_come_and_gone(name):
    with make(name, producers=2) as ring, ring.consumer() as reader:
        with ring.producer() as first:
            publish(first, 1)
        reader.acquire(0).release()
        with pytest.raises(gpuring.RingTimeout):
            reader.acquire(0)
        with ring.producer() as second:
            publish(second, 2)
        reader.acquire(0).release()
        with pytest.raises(gpuring.EndOfStream):
            reader.acquire(0)
        with ring.producer() as third:  # another producer starts the stream again
            publish(third, 3)
            reader.acquire(0).release()


@pytest.mark.parametrize("again", [False, True])
def test_a_producer_that_was_killed_has_gone_and_another_one_may_take_its_place(
    name, children, again
):
    with make(name, producers=2) as ring, ring.consumer() as reader:
        victim = children(publish_and_wait, name, 1)
        assert victim.receive() == "published"
        os.kill(victim.pid, signal.SIGKILL)
        poll(lambda: ring.stats().producers_died == 1)
        reader.acquire(10).release()
        with pytest.raises(gpuring.RingTimeout):
            reader.acquire(0)  # the other one may still come
        ring.producer().close()
        if again:
            ring.producer().close()
        lost = rf"one of them died: producer \d \(.+, pid {victim.pid}\)\. A new producer"
        error, said = (gpuring.EndOfStream, r"left\. A new") if again else (gpuring.PeerLost, lost)
        with pytest.raises(error, match=said):
            reader.acquire(0)
        stats = ring.stats()
        assert (stats.producers_left, stats.producers_died) == (1 + again, 1)


def read_on(reader):
    while True:
        reader.acquire(10).release()


@promise(
    "failure.md",
    "Readers go on. `consumer(deaths=True)` gets `ProducerDied`, which names the dead by label or "
    "program and pid.",
)
def test_who_asks_for_deaths_is_told_of_each_once_and_reads_on(name, children):
    with (
        make(name, producers=3) as ring,
        ring.producer() as alive,
        ring.consumer(deaths=True) as told,
        ring.consumer() as not_told,
    ):
        for k in range(2):
            victim = children(publish_and_wait, name, 1, f"shard {k}")
            assert victim.receive() == "published"
            os.kill(victim.pid, signal.SIGKILL)
            who = rf"': producer \d \(shard {k}, pid {victim.pid}\) died"
            with pytest.raises(gpuring.ProducerDied, match=who):  # before or after the frame
                read_on(told)
            assert ring.stats().producers_died == k + 1
        publish(alive, 7)
        for reader, rest in ((told, 1), (not_told, 3)):
            values = [reader.acquire(10)]
            while values[-1].array[0] != 7:
                values[-1].release()
                values.append(reader.acquire(10))
            values[-1].release()
            assert rest <= len(values) <= 3


def test_of_several_deaths_all_are_named_that_are_remembered(name, children):
    """Producers that left cleanly and dead consumers are not named."""
    with make(name, producers=20) as ring, ring.producer(), ring.consumer(deaths=True) as told:
        ring.producer(label="left").close()
        for labels in (["a", None], ["c"] * 9):
            reaps = ring.stats().reaps
            victim = up(children(dies, name, labels))
            victim.kill()
            poll(lambda reaps=reaps, labels=labels: ring.stats().reaps == reaps + len(labels) + 1)
            with pytest.raises(gpuring.ProducerDied) as caught:
                told.acquire(0)
            names = re.findall(rf"producer \d+ \(([^,]+), pid {victim.pid}\)", str(caught.value))
            assert len(names) == min(len(labels), 8 - (len(labels) == 9))
            assert names[0] == labels[0]
            with pytest.raises(gpuring.RingTimeout):
                told.acquire(0)
        shown = describe(ring.stats())
        assert shown.count(f"(c, pid {victim.pid}) died; it held nothing") == 7


def test_a_death_is_told_that_is_not_remembered_any_more(name, children):
    """So many readers have died since."""
    with make(name, producers=2) as ring, ring.producer(), ring.consumer(deaths=True) as told:
        victim = up(children(dies, name, ["a"], 8))
        victim.kill()
        poll(lambda: ring.stats().reaps == 9)
        assert {each.role for each in ring.stats().deaths} == {"consumer"}
        with pytest.raises(gpuring.ProducerDied, match="': a producer died"):
            told.acquire(0)
        with pytest.raises(gpuring.RingTimeout):
            told.acquire(0)


def dies(pipe, name, labels, readers=1):
    ring = gpuring.attach(name)
    peers = (
        [ring.producer(label=label) for label in labels],
        [ring.consumer("readers", label="reader") for _ in range(readers)],
    )
    pipe.ask()
    del peers


def test_a_claim_that_waits_for_readers_who_were_told_the_end_raises(name):
    with make(name) as ring, ring.consumer() as reader:
        with ring.producer() as first:
            publish(first, 0)
        assert [int(slot.array[0]) for slot in reader] == [0]
        with ring.producer() as second:
            publish(second, *range(SLOTS))
            with pytest.raises(gpuring.RingFull, match=r"seen the end of the stream.*`producers`"):
                second.claim()
            reader.acquire(0).release()  # producers wait for a reader that asks again
            publish(second, 9)


def test_a_claim_waits_for_readers_who_go_on_after_the_end(name):
    with make(name) as ring, ring.consumer(reattach=True) as reader:
        ring.producer().close()
        with pytest.raises(gpuring.RingTimeout):
            reader.acquire(0)
        with ring.producer() as second:
            publish(second, *range(SLOTS))
            with pytest.raises(gpuring.RingFull) as full:
                second.claim(0)
    assert "seen the end of the stream" not in str(full.value)


def test_what_finds_no_slot_is_counted_and_the_next_frame_says_so(name):
    with make(name) as ring, ring.producer() as camera, ring.consumer() as reader:
        for k in range(SLOTS + 3):
            if (slot := camera.try_claim()) is not None:
                with slot:
                    slot.array[:] = k
        stats = ring.stats()
        assert stats.dropped == stats.producers[0].dropped == 3
        assert "3 frames dropped, because no slot was free" in describe(stats)
        lost = []
        for _ in range(SLOTS):
            with reader.acquire(0) as slot:
                lost.append(slot.lost)
        publish(camera, 99)
        with reader.acquire(0) as slot:
            lost.append(slot.lost)
        assert lost == [0] * SLOTS + [3]
        with ring.consumer(start="oldest") as late:  # it joined after they were dropped
            publish(camera, 100)
            with late.acquire(0) as slot:
                assert slot.lost == 0


def test_a_label_is_what_people_see(name):
    with make(name) as ring, ring.producer() as producer:
        with ring.consumer("rec", label="recorder on disk 2") as reader:
            publish(producer, *range(SLOTS))
            with pytest.raises(gpuring.RingFull, match=r"recorder on disk 2, pid \d+"):
                producer.claim(0)
            assert "recorder on disk 2" in {peer.label for peer in ring.stats().peers}
            assert reader.peer == 1
        with pytest.raises(ValueError, match="64 bytes"):
            ring.consumer(label="x" * 65)

"""An end that is waited out: one producer has gone, and the next one has not come."""

from __future__ import annotations

import pytest

import gpuring
from gpuring.registry.leftovers import tidy
from tests.helpers.cameras import OPTIONS
from tests.helpers.commands import running
from tests.helpers.processes import PATIENCE_S, in_thread, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import publish


@promise(
    "failure.md",
    "A consumer that joins after the last producer has gone waits for the next one, as long as the "
    "creator of the ring lives.",
)
@pytest.mark.parametrize("died", [False, True])
def test_a_consumer_that_comes_between_two_producers_waits_for_the_next(name, children, died):
    with gpuring.create(name, **OPTIONS) as ring:
        ring.watch()
        ends(ring, children(publishes_one, name), died)
        with ring.consumer() as frames:
            with pytest.raises(gpuring.RingTimeout):
                frames.acquire(0)
            assert gpuring.select([frames], 0.01) == []
            got = in_thread(lambda: [(int(slot.array[0]), slot.restarted) for slot in frames])
            poll(lambda: frames._at_end is not None)
            with ring.producer() as producer:
                publish(producer, 2)
                publish(producer, 3)
            assert got() == [(2, False), (3, False)]
            with pytest.raises(gpuring.EndOfStream):
                frames.acquire(5)


def publishes_one(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        publish(producer, 1)
        pipe.ask()


def ends(ring, producer, died):
    producer.receive()
    if died:
        producer.kill()
        poll(lambda: ring.stats().reaps == 1)
    else:
        producer.finish()


@promise(
    "failure.md",
    "If there are frames left that it begins with, it reads those, and then gets the end of that "
    "stream.",
)
def test_a_consumer_that_finds_frames_gets_the_end_behind_them(name):
    with gpuring.create(name, **OPTIONS) as ring:
        with ring.producer() as producer:
            publish(producer, 1)
        with ring.consumer(start="oldest") as frames:
            assert [int(slot.array[0]) for slot in frames] == [1]
        with ring.consumer(start="oldest") as frames:
            frames.acquire(0).release()
            with pytest.raises(gpuring.EndOfStream):
                frames.acquire(0)


def test_a_producer_that_came_and_went_is_the_end_for_who_has_waited_for_it(name):
    with gpuring.create(name, **OPTIONS) as ring:
        ring.producer().close()
        with ring.consumer() as frames:
            with ring.producer(), pytest.raises(gpuring.RingTimeout):
                frames.acquire(0)
            with pytest.raises(gpuring.EndOfStream):
                frames.acquire(0)


def claims_one(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        producer.claim(10)
        pipe.ask()


def test_a_producer_that_dies_without_a_frame_is_told_to_who_has_waited_for_it(name, children):
    """One call waits for a frame of a living producer, and sees it die."""
    with gpuring.create(name, **OPTIONS) as ring:
        ring.producer().close()
        with ring.consumer() as frames:
            producer = up(children(claims_one, name))
            waiting = in_thread(lambda: frames.acquire(60))
            poll(lambda: any(peer.waiting for peer in ring.stats().peers))
            producer.kill()
            assert isinstance(waiting(), gpuring.PeerLost)
            with pytest.raises(gpuring.PeerLost):
                frames.acquire(0)


def kept(name):
    options = ["--slots", "4", "--shape", "4", "--dtype", "i8", "--device", "host"]
    return running("keep", name, *options)


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_who_waits_between_two_producers_gets_the_end_when_the_keeper_has_gone(name, how):
    with kept(name) as keeper:
        ring = gpuring.attach(name, timeout=PATIENCE_S)
        ring.producer().close()
        frames = ring.consumer()
        waiting = in_thread(lambda: frames.acquire(60))
        poll(lambda: frames._at_end is not None)
        keeper.kill() if how == "killed" else keeper.terminate()
        keeper.wait(PATIENCE_S)
        assert isinstance(waiting(), gpuring.EndOfStream)
        ring.close()
    tidy(lambda each: each == name)

"""Durable subscriptions that a client in C and Python programs make, read and leave to each
other."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.compiled import needs_compiler
from tests.helpers.processes import PATIENCE_S, poll
from tests.native.stranger import drain, frame_of, make, once, produce

pytestmark = needs_compiler

FOREVER, AT_ONCE = 0, 1
"""A patience in nanoseconds."""


def of(ring, subscription="recorder"):
    (one,) = [each for each in ring.stats().subscriptions if each.name == subscription]
    return one


def take(consumer, n):
    found = []
    for _ in range(n):
        with consumer.acquire(timeout=PATIENCE_S) as slot:
            found.append((frame_of(slot), slot.lost))
    return found


def read_some(stranger, name, mode, n):
    """A client reads n frames, and leaves as if it were stopped cleanly."""
    reader = stranger("consume", name, "recorder", mode, "next", paused=True)
    for _ in range(n):
        reader.step()
    reader.has(n + 1)  # it holds the next frame, and gives it back
    reader.process.terminate()
    reader.free()
    assert reader.end() == "done"
    return reader.frames[:n]


def test_producers_wait_for_the_subscription_of_a_client(name, stranger):
    with make(name) as ring, ring.producer() as producer:
        assert stranger("subscribe", name, "recorder", "lossless", "next", FOREVER).end() == "done"
        assert (of(ring).durable, of(ring).lossless, of(ring).members) == (True, True, ())
        made = produce(producer, 7, range(8))
        with pytest.raises(gpuring.RingFull, match="recorder"):
            producer.claim(timeout=0)
        with ring.consumer("recorder") as reader:
            assert [frame for frame, _ in take(reader, 8)] == made
        assert of(ring).unread_s is not None
        produce(producer, 7, range(8, 16))
        assert stranger("unsubscribe", name, "recorder").end() == "done"
        assert ring.stats().subscriptions == ()
        producer.claim(timeout=0).abandon()


def test_a_client_makes_a_subscription_durable_that_is_there(name, stranger):
    with make(name) as ring:
        with ring.consumer("recorder"):
            stranger("subscribe", name, "recorder", "lossless", "next", 10**10).end()
            assert (of(ring).durable, of(ring).patience_s) == (True, 10)
        assert of(ring).members == ()
        with ring.consumer("recorder"):
            stranger("unsubscribe", name, "recorder").end()
            assert not of(ring).durable
        assert ring.stats().subscriptions == ()


def test_members_of_both_kinds_go_on_where_the_other_one_has_left(name, stranger):
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("recorder")
        made = produce(producer, 7, range(8))
        had = read_some(stranger, name, "lossless", 3)
        made += produce(producer, 7, range(8, 11))
        with ring.consumer("recorder") as reader:
            told = take(reader, 4)
        had += [frame for frame, _ in told]
        assert [lost for _, lost in told] == [0] * 4
        made += produce(producer, 7, range(11, 15))
        had += read_some(stranger, name, "lossless", 3)
        with ring.consumer("recorder") as reader:
            producer.close()
            had += drain(reader)
        assert [frame._replace(again=False) for frame in had] == made


@pytest.mark.parametrize("late", ["client", "python"])
def test_a_lossy_one_is_told_what_was_lost_while_nobody_read(name, stranger, late):
    """3 frames were read and 20 came.  7 are there: the slot that is claimed next is not safe."""
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("recorder", lossless=False)
        made = produce(producer, 7, range(5))
        read_some(stranger, name, "lossy", 3)
        made += produce(producer, 7, range(5, 23))
        if late == "client":
            reader = stranger("consume", name, "recorder", "lossy", "next")
            reader.number()
            producer.close()
            assert reader.end() == "ended"
            frames, lost = reader.frames, reader.lost()
        else:
            with ring.consumer("recorder", lossless=False) as consumer:
                producer.close()
                told = take(consumer, 7)
            frames, lost = [frame for frame, _ in told], sum(lost for _, lost in told)
        assert [frame._replace(again=False) for frame in frames] == made[-7:]
        assert 3 + lost + len(frames) == len(made)
        assert of(ring).lost == lost


@pytest.mark.parametrize("late", ["client", "python"])
def test_a_client_gives_up_what_nobody_reads_and_the_next_member_is_told(name, stranger, late):
    """The client's writer waits, sees that the patience is over, and goes on."""
    with make(name, producers=2) as ring:
        assert stranger("subscribe", name, "recorder", "lossless", "next", AT_ONCE).end() == "done"
        writer = stranger("produce", name, 9, 30)
        assert writer.end() == "done"
        assert of(ring).given_up
        if late == "client":
            reader = stranger("consume", name, "recorder", "lossless", "next")
            reader.number()
            assert not of(ring).given_up
            made = writer.frames + produce(producer := ring.producer(), 7, range(1))
            producer.close()
            assert reader.end() == "ended"
            frames, lost = reader.frames, reader.lost()
        else:
            with ring.consumer("recorder") as consumer:
                made = writer.frames + produce(producer := ring.producer(), 7, range(1))
                producer.close()
                told = take(consumer, 8)
            frames, lost = [frame for frame, _ in told], sum(lost for _, lost in told)
        assert frames == made[-len(frames) :]
        assert lost + len(frames) == len(made)


def test_what_a_killed_member_was_told_is_told_again(name, stranger):
    """The member was killed before it released the frame that reported the loss."""
    with make(name) as ring, ring.producer() as producer:
        ring.subscribe("recorder", lossless=False)
        produce(producer, 7, range(23))
        reader = stranger("consume", name, "recorder", "lossy", "next", paused=True)
        reader.has(1)
        reader.kill()
        with ring.consumer("recorder", lossless=False) as consumer:
            poll(lambda: ring.stats().reaps)
            lost = sum(lost for _, lost in take(consumer, 7))
        assert lost + 7 == 23


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kills", [6, 60])
def test_no_frame_is_missing_while_members_of_both_kinds_are_killed(name, stranger, kills):
    with make(name) as ring:
        ring.subscribe("recorder")
        writer = stranger("produce", name, 9, 0)
        had = []
        for _ in range(kills):
            reader = stranger("consume", name, "recorder", "lossless", "next")
            reader.has(20)
            reader.kill()
            had += reader.frames
            with ring.consumer("recorder") as consumer:
                had += [frame for frame, _ in take(consumer, 20)]
        with ring.consumer("recorder") as consumer:
            writer.process.terminate()
            had += drain(consumer)
        writer.end()
        # What a client had when it was killed comes again.
        assert {*writer.frames} == {frame._replace(again=False) for frame in had}
        assert len(had) - len(writer.frames) <= kills
        assert once([frame for frame in had if not frame.again])

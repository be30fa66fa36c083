"""Durable subscriptions: rings for them, what their readers get, and a ring that is replaced while
a member of its subscription lives."""

from __future__ import annotations

import contextlib

import pytest

import gpuring
from tests.helpers.rings import publish

SLOTS = 4


def make(name, **options):
    return gpuring.create(name, slots=SLOTS, shape=4, dtype="i8", device="host", **options)


def read(consumer, count):
    """Reads and releases the next frames.  Returns their (value, lost, redelivered)."""
    found = []
    for _ in range(count):
        with consumer.acquire(10) as slot:
            found.append((int(slot.array[0]), slot.lost, slot.redelivered))
    return found


def only(ring):
    (subscription,) = ring.stats().subscriptions
    return subscription


def member(pipe, name, reads, reattach):
    """A member that reads so many frames, and then answers."""
    with gpuring.attach(name, timeout=10) as ring:
        reader = ring.consumer("rec", durable=True, reattach=reattach)
        pipe.send("joined")
        for _ in range(reads):
            with reader.acquire(10):
                pass
        held = reader.acquire(10) if pipe.receive() == "hold" else None
        pipe.send(reads + (held is not None))
        while pipe.receive() == "read":
            pipe.send(read(reader, 1)[0])
        if held is not None:
            held.release()
        reader.close()


@pytest.fixture
def replaced(name, children):
    """Makes a ring with three frames and a member that lives, and then replaces it."""
    with contextlib.ExitStack() as stack:

        def make_and_replace(reads=0, then="", reattach=False, replace=True):
            old = stack.enter_context(make(name, replace=True))
            child = children(member, name, reads, reattach)
            assert child.receive() == "joined"
            producer = stack.enter_context(old.producer())
            publish(producer, 0, 1, 2)
            child.send(then)
            assert child.receive() == reads + (then == "hold")
            return child, stack.enter_context(make(name, replace=True)) if replace else old

        yield make_and_replace


def told(ring, subscription="rec"):
    """What `slot.lost` says in the first frame of a member that joins now.  It reads one frame."""
    with ring.producer() as producer, ring.consumer(subscription) as reader:
        publish(producer, 10)
        value, lost, _ = read(reader, 1)[0]
        assert value == 10
        return lost

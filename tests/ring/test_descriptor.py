"""Descriptors of consumers and producers, for selectors and every other event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import threading

import pytest

import gpuring
from tests.helpers.processes import Pipe
from tests.helpers.rings import bells, publish_at_random, put, readable, small_ring, waiters


@pytest.mark.parametrize("greedy", [False, True])
def test_one_frame_a_turn_or_all_of_them_a_selector_misses_nothing(name, children, greedy):
    names = [f"{name}-{k}" for k in range(2)]
    rings = [small_ring(each) for each in names]
    consumers = [ring.consumer() for ring in rings]
    child = children(publish_at_random, names, 500, 4)
    child.send()
    seqs: list[list[int]] = [[], []]
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(20)
            assert events, "asleep with frames to read"
            for key, _ in events:
                consumer = key.fileobj
                try:
                    while True:
                        with consumer.acquire(0) as slot:
                            seqs[consumers.index(consumer)].append(slot.seq)
                        if not greedy:
                            break
                except gpuring.RingTimeout:
                    pass
                except gpuring.EndOfStream:
                    selector.unregister(consumer)
    assert [each == list(range(4, 4 + len(each))) for each in seqs] == [True, True]
    assert sum(map(len, seqs)) == 500
    child.result()
    for ring in rings:
        ring.close()


def test_a_descriptor_is_armed_by_who_finds_nothing_and_costs_one_bell(ring):
    with ring.producer() as producer, ring.consumer() as consumer:
        put(producer)
        assert (bells(ring), waiters(ring)) == (0, 0)
        assert readable(consumer)  # readable from the start
        assert consumer.fileno() == consumer.fileno()
        consumer.acquire(0).release()
        assert readable(consumer)  # still, because nobody has asked since
        assert waiters(ring) == 0
        with pytest.raises(gpuring.RingTimeout):
            consumer.acquire(0)
        assert not readable(consumer)
        assert waiters(ring) == 1
        put(producer)
        assert bells(ring) == 1
        assert readable(consumer, 20)
        assert waiters(ring) == 0
        put(producer, 2)
        assert bells(ring) == 1
        assert readable(producer)
        assert waiters(ring) == 0
        put(producer)
        with pytest.raises(gpuring.RingFull):
            producer.claim(0)
        assert not readable(producer)
        consumer.acquire(0).release()
        assert readable(producer, 20)
        producer.claim(0).abandon()


def test_a_peer_is_shown_as_waiting_while_its_descriptor_is_armed(ring):
    def waiting():
        return [peer.waiting for peer in ring.stats().peers if peer.role == "consumer"]

    with ring.producer() as producer, ring.consumer() as consumer:
        assert waiting() == [False]
        consumer.fileno()  # there is no frame, and the thread does not sleep
        assert waiting() == [True]
        put(producer)
        assert readable(consumer, 20)
        assert waiting() == [False]


def test_a_closed_one_is_readable_and_says_so(ring):
    with ring.producer():
        consumer = ring.consumer()
        fileno = consumer.fileno()
        assert not readable(consumer)
        consumer.close()
        assert readable(consumer)
        assert consumer.fileno() == fileno
        assert waiters(ring) == 0
        other = ring.consumer()
        other.close()
        with pytest.raises(gpuring.RingClosed):
            other.fileno()
        del consumer
        gc.collect()
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fileno)


def test_who_waits_hears_of_a_close_before_it_is_over(ring, monkeypatch):
    with ring.producer(), ring.consumer() as consumer:
        assert not readable(consumer)
        heard = []
        monkeypatch.setattr(consumer, "_finish", lambda: heard.append(readable(consumer)) or [])
        consumer.close()
    assert heard == [True]


def forks(pipe: Pipe, name: str) -> tuple[list[str], bool]:
    """Returns what a forked child gets.  Checks that its parent is still woken."""
    ring = small_ring(name)
    producer, consumer, idle = ring.producer(), ring.consumer(), ring.consumer()
    assert not readable(consumer)
    fileno = consumer.fileno()
    read, write = os.pipe()
    if os.fork() == 0:
        errors = []
        for call in (
            consumer.fileno, idle.fileno, lambda: gpuring.select([consumer])[0].acquire(0),
            lambda: asyncio.run(consumer.acquire_async()), lambda: os.fstat(fileno),
        ):  # fmt: skip
            try:
                call()
                errors.append("no error")
            except BaseException as error:
                errors.append(f"{type(error).__name__}: {error}")
        with gpuring.attach(name) as mine, mine.producer() as own, mine.consumer() as late:
            assert not readable(late)  # it has a notifier of its own
            put(own)
            errors.append(str(readable(late, 10)))
        del consumer, idle
        gc.collect()
        os.write(write, "\n".join(errors).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        errors = answers.read().splitlines()
    os.wait()
    assert waiters(ring) == 0  # the child's frame fired it
    consumer.acquire(0).release()
    with pytest.raises(gpuring.RingTimeout):
        consumer.acquire(0)
    threading.Timer(0.1, put, (producer,)).start()
    woken = readable(consumer, 20)
    ring.close()
    return errors, woken


def test_a_forked_child(name, children):
    errors, woken = children(forks, name).result()
    assert woken
    assert len(errors) == 6
    for error in errors[:4]:
        assert error.startswith("RingError"), errors
        assert "fork()" in error
    assert errors[4].startswith("OSError"), "it has a copy of the parent's descriptor"
    assert errors[5] == "True"

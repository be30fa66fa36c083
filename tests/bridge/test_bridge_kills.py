"""Both commands of a bridge are killed whole, and a lossless far reader has each frame once.

The subscription of a lossless importer is durable, so the near producers wait for an exporter that
is started again.  `python -m tests.bridge.killed_commands` is a long storm of this kind.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import gpuring
from tests.helpers.processes import Pipe, poll

pytest.importorskip("zmq")

from tests.bridge.killed_commands import (
    SLOTS,
    WAIT_S,
    commands,
    near_ring,
    put,
    storm,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_kills_of_whole_commands_cost_no_frame(near, far, seed):
    told = storm(near, far, frames=2000, kills=6, seed=seed, rate=400)
    assert told.numbers == [*range(2000)]
    assert (told.lost, told.kills) == (0, 6)


class Bridged:
    """The two commands of a bridge, and a reader of the far ring that goes on over restarts."""

    def __init__(self, stack: contextlib.ExitStack, near: str, far: str, *more: Any) -> None:
        self.out, self.into = commands(near, far, *more)
        stack.callback(self.into.end)
        stack.callback(self.out.end)
        there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
        reader = stack.enter_context(there.consumer("reader", start="oldest", reattach=True))
        self.frames = iter(reader)
        stack.callback(self.frames.close)

    def next(self) -> tuple[int, int]:
        """The number of the next frame, and how many were lost before it."""
        slot = next(self.frames)
        return int(slot.array[0]), slot.lost


@pytest.fixture
def ring(near) -> Iterator[gpuring.Ring]:
    with near_ring(near) as ring:
        yield ring


def durable(ring: gpuring.Ring) -> Any:
    (found,) = ring.stats().subscriptions
    assert found.durable
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_producers_wait_for_an_exporter_that_is_started_again(ring, near, far, how):
    with contextlib.ExitStack() as stack, ring.producer() as producer:
        both = Bridged(stack, near, far)
        put(producer, 0)
        assert both.next() == (0, 0)
        poll(lambda: durable(ring).lag == 0, WAIT_S)  # the exporter knows that frame 0 has arrived
        both.out.kill() if how == "kill" else both.out.end(signal.SIGTERM)
        for n in range(1, SLOTS + 1):
            put(producer, n)
        with pytest.raises(gpuring.RingFull, match=far):
            producer.claim(0.1)
        assert not durable(ring).members
        both.out.start()
        for n in range(1, SLOTS + 1):
            assert both.next() == (n, 0)


@pytest.mark.slow
def test_an_exporter_that_is_interrupted_holds_nobody_up(ring, near, far):
    with contextlib.ExitStack() as stack, ring.producer() as producer:
        both = Bridged(stack, near, far)
        put(producer, 0)
        assert both.next() == (0, 0)
        assert both.out.end() == 0
        assert not ring.stats().subscriptions
        both.out.start()


@pytest.mark.slow
def test_what_is_lost_when_the_patience_is_over_counts_once(ring, near, far):
    with contextlib.ExitStack() as stack, ring.producer() as producer:
        both = Bridged(stack, near, far, "--patience", "0.2")
        put(producer, 0)
        assert both.next() == (0, 0)
        poll(lambda: durable(ring).lag == 0, WAIT_S)
        both.out.kill()
        for n in range(1, 3 * SLOTS):  # the subscription is given up meanwhile
            put(producer, n)
        assert durable(ring).given_up
        both.out.start()
        n, lost = both.next()
        assert n == lost + 1 > SLOTS
        for m in range(n + 1, 3 * SLOTS):
            assert both.next() == (m, 0)


@pytest.mark.slow
def test_an_importer_that_comes_back_lossy_is_not_refused_for_what_the_last_exporter_left(
    ring, near, far
):
    with contextlib.ExitStack() as stack, ring.producer() as producer:
        both = Bridged(stack, near, far)
        put(producer, 0)
        assert both.next() == (0, 0)
        both.out.kill()
        both.into.kill()
        both.into.options += ("--lossy",)
        both.out.start()
        both.into.start()
        poll(lambda: [each.lossless for each in ring.stats().subscriptions] == [False], WAIT_S)


def create_and_put(pipe: Pipe, near: str) -> None:
    """The creator of the near ring, and its producer."""
    with near_ring(near) as ring, ring.producer() as producer:
        while numbers := pipe.receive():
            for n in range(*numbers):
                put(producer, n)
            pipe.send(None)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["lives", "dies"])
def test_what_only_the_ring_of_a_creator_that_was_killed_had_comes_or_counts(
    near, far, children, exporter
):
    """A command that was killed whole leaves nobody who could still read it."""
    with contextlib.ExitStack() as stack:
        first = children(create_and_put, near)
        both = Bridged(stack, near, far)
        poll(lambda: _subscriptions(near), WAIT_S)
        first.ask((0, 4))
        for n in range(4):
            assert both.next() == (n, 0)
        if exporter == "dies":
            poll(lambda: _subscriptions(near)[0].lag == 0, WAIT_S)
            both.out.kill()
        first.ask((4, 8))
        first.kill()
        second = children(create_and_put, near)
        second.ask((8, 12))
        if exporter == "dies":
            both.out.start()
        else:
            assert [both.next() for _ in range(4)] == [(n, 0) for n in range(4, 8)]
        assert both.next() == (8, 4 if exporter == "dies" else 0)
        assert [both.next() for _ in range(3)] == [(n, 0) for n in range(9, 12)]
        second.send(None)  # lets it close the ring
        second.result()


def _subscriptions(near: str) -> tuple[Any, ...]:
    with gpuring.attach(near, timeout=WAIT_S) as ring:
        return ring.stats().subscriptions

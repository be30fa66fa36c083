"""A loop that comes late to a ring that was made again says in `slot.lost` what it has missed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import gpuring
from tests.helpers.cameras import OPTIONS
from tests.helpers.promise import promise
from tests.helpers.rings import publish


def by_for(frames):
    yield from ((slot.seq, slot.restarted, slot.lost) for slot in frames)


def by_align(frames):
    yield from ((slot.seq, slot.restarted, slot.lost) for (slot,) in gpuring.align([frames]))


def by_async_for(frames):
    each = aiter(frames)

    async def step():
        slot = await anext(each)
        return slot.seq, slot.restarted, slot.lost

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        while True:
            yield loop.run_until_complete(step())


@pytest.fixture
def replaced(name):
    """Makes the next ring of that name when the readers of the first one have read everything."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(gpuring.create(name, **OPTIONS))

        def replace(published):
            first.close()
            ring = stack.enter_context(gpuring.create(name, **OPTIONS))
            producer = stack.enter_context(ring.producer())
            for value in range(published):
                publish(producer, value)
            return ring, producer

        yield first, replace


@contextlib.contextmanager
def reading(first, by, lossless):
    """A loop that has had the only frame of the first ring."""
    with gpuring.attach(first.name) as mine:
        frames = mine.consumer(lossless=lossless, reattach=True)
        with first.producer() as producer:
            publish(producer, 0)
        loop = by(frames)
        assert next(loop) == (4, False, 0)
        yield loop
        frames.close()


@promise(
    "failure.md",
    "Its `slot.lost` counts the frames of the new ring that the consumer came too late for.",
)
@pytest.mark.parametrize(
    ("by", "lossless"),
    [(by_for, True), (by_async_for, True), (by_for, False), (by_async_for, False),
     (by_align, False)],
)  # fmt: skip
def test_what_a_new_ring_has_overwritten_before_its_reader_came_is_lost(replaced, by, lossless):
    """A lossy reader that is aligned takes the newest frame."""
    first, replace = replaced
    with reading(first, by, lossless) as loop:
        ring, producer = replace(published=10)  # 4 … 13, in four slots
        seq, restarted, lost = next(loop)
        assert (restarted, lost) == (True, seq - 4)
        assert seq == (13 if by is by_align else 11)
        while seq < 13:
            seq, *told = next(loop)
            assert told == [False, 0]
        publish(producer, 10)
        assert next(loop) == (14, False, 0)
        seen = ring.stats()
        assert [peer.lost for peer in seen.peers if peer.role == "consumer"] == [lost]
        assert [sub.lost for sub in seen.subscriptions] == [lost]


@pytest.mark.parametrize("lossless", [True, False], ids=["lossless", "lossy"])
def test_a_reader_that_comes_to_a_new_ring_in_time_has_lost_nothing(replaced, lossless):
    first, replace = replaced
    with reading(first, by_for, lossless) as loop:
        replace(published=3)
        assert [next(loop) for _ in range(3)] == [(4, True, 0), (5, False, 0), (6, False, 0)]


def test_what_was_overwritten_before_a_subscription_came_is_counted_by_one_member(name, replaced):
    """The other member joins a subscription that exists already, and has missed nothing."""
    first, replace = replaced
    with gpuring.attach(name) as mine, gpuring.attach(name) as theirs:
        members = [ring.consumer("both", reattach=True) for ring in (mine, theirs)]
        with first.producer() as producer:
            publish(producer, 0)
        members[0].acquire(0).release()
        ring, _ = replace(published=10)
        told = [next(by_for(member)) for member in members]
        assert told == [(11, True, 7), (12, True, 0)]
        assert [sub.lost for sub in ring.stats().subscriptions] == [7]
        for member in members:
            member.close()


def test_what_was_overwritten_is_told_again_with_a_frame_that_was_given_back(name, replaced):
    """A Ctrl-C that comes before the body of the loop has the frame gives it back."""
    first, replace = replaced
    with gpuring.attach(name) as mine:
        frames = mine.consumer("x", reattach=True)
        with first.producer() as producer:
            publish(producer, 0)
        loop = iter(frames)
        next(loop)
        ring, _ = replace(published=10)
        frames._put_back(next(loop).index)
        with frames.acquire(0) as slot:
            assert (slot.seq, slot.lost) == (11, 7)
        assert [sub.lost for sub in ring.stats().subscriptions] == [7]
        loop.close()
        frames.close()

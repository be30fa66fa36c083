"""A peer that has joined with `reattach=True` waits an end out, and moves to the next ring.  The
processes that die for it are in tests/kill/test_following.py."""

from __future__ import annotations

import asyncio
import contextlib
import select

import numpy as np
import pytest

import gpuring
from tests.helpers.cameras import OPTIONS
from tests.helpers.processes import in_thread, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import publish


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_claim_waits_while_there_is_no_ring(name, stack):
    first = gpuring.create(name, **OPTIONS)
    ring = stack.enter_context(gpuring.attach(name))
    producer = stack.enter_context(ring.producer(reattach=True))
    first.close()
    for timeout in (0, 0.01):
        with pytest.raises(gpuring.RingFull, match="no other ring has its name yet"):
            producer.claim(timeout)
    claimed = in_thread(lambda: producer.claim(30))
    poll(lambda: producer._at_end is not None)
    second = stack.enter_context(gpuring.create(name, **OPTIONS))
    with claimed() as slot:
        assert slot.restarted
    assert second._header.live_peers() == [producer.peer]


def test_a_claim_that_waits_ends_when_its_producer_is_closed(name):
    first = gpuring.create(name, **OPTIONS)
    with gpuring.attach(name) as ring, ring.producer(reattach=True) as producer:
        first.close()
        claimed = in_thread(lambda: producer.claim(30))
        poll(lambda: producer._at_end is not None)
        producer.close()
        assert isinstance(claimed(), gpuring.RingClosed)


@promise(
    "failure.md",
    "It never moves: its ring is its own.",
)
def test_the_creators_own_producer_does_not_follow_who_took_its_name(name):
    with (
        gpuring.create(name, **OPTIONS) as ring,
        ring.producer(reattach=True) as producer,
        gpuring.create(name, **OPTIONS, replace=True),
    ):
        with pytest.raises(gpuring.RingClosed, match="Another ring has that name now") as refused:
            producer.claim(5)
        assert producer.ring is ring
        assert "Create the ring again, or attach to the new one" in str(refused.value)
        assert "reattach" not in str(refused.value)  # the peer has it already


def keeps(pipe, name):
    with gpuring.create(name, **OPTIONS):
        pipe.ask()


def test_any_other_producer_is_told_how_to_follow_who_took_its_name(name, children):
    camera = up(children(keeps, name))
    with (
        gpuring.attach(name) as ring,
        ring.producer() as producer,
        gpuring.create(name, **OPTIONS, replace=True),
        pytest.raises(gpuring.RingClosed, match=r"Attach again .* `reattach`"),
    ):
        producer.claim(5)
    camera.send()


def test_a_ring_of_another_shape_is_followed_by_both_sides(name):
    """A slot has the shape of its ring.  What does not fit is refused by name, and not cut off."""
    first = gpuring.create(name, **OPTIONS)
    with (
        gpuring.attach(name) as ring,
        ring.producer(reattach=True) as producer,
        ring.consumer(reattach=True) as frames,
        gpuring.create(name, **OPTIONS | {"shape": (2, 3)}, replace=True),
    ):
        assert frames._move(frames.ring._successor())
        with producer.claim(5) as slot:
            assert slot.array.shape == (2, 3)
            with pytest.raises(ValueError, match="shape"):
                slot.copy_from(np.arange(4))
        with pytest.raises(ValueError, match="shape"):
            producer.claim(5, shape=(9, 9))
        with frames.acquire(5) as slot:
            assert slot.array.shape == (2, 3)
    first.close()


def test_a_shape_that_does_not_fit_into_the_next_ring_is_refused(name):
    """The shape still fitted when the claim began."""
    first = gpuring.create(name, **OPTIONS)
    with (
        gpuring.attach(name) as ring,
        ring.producer(reattach=True) as producer,
        gpuring.create(name, **OPTIONS | {"shape": 2}, replace=True) as second,
    ):
        with pytest.raises(ValueError, match="shape"):
            producer.claim(5, shape=3)
        with producer.claim(5, shape=1) as slot:
            assert slot.restarted
            assert slot.array.shape == (1,)
        assert second._header.live_peers() == [producer.peer]
    first.close()


# ---- what a peer still has when it moves ---------------------------------------------------------


@promise(
    "failure.md", "Frames of the old ring that it still holds stay valid until it releases them."
)
@pytest.mark.parametrize("many", [False, True])
def test_frames_that_are_held_outlast_the_move(name, stack, many):
    old = gpuring.create(name, **OPTIONS)
    frames = stack.enter_context(gpuring.attach(name)).consumer(reattach=True)
    with old.producer() as producer:
        publish(producer, 1, 2, 3)
    held = list(frames.acquire_many(2, 0)) if many else [frames.acquire(0) for _ in range(2)]
    frames.acquire(0).release()
    new = stack.enter_context(gpuring.create(name, **OPTIONS, replace=True))
    producer = stack.enter_context(new.producer())
    publish(producer, 7)
    with frames.acquire(5) as slot:
        assert (slot.array[0], slot.restarted) == (7, True)
        assert [int(each.array[0]) for each in held] == [1, 2]
    assert len(old._header.live_peers()) == 1
    held.pop().release()
    assert len(old._header.live_peers()) == 1
    held.pop().release()
    assert old._header.live_peers() == []
    assert len(new._header.live_peers()) == 2
    frames.close()
    old.close()


@pytest.mark.parametrize("who", ["consumer", "ring"])
def test_a_close_also_ends_what_was_held_before_the_move(name, who):
    old = gpuring.create(name, **OPTIONS)
    with gpuring.attach(name) as mine:
        frames = mine.consumer(reattach=True)
        with old.producer() as producer:
            publish(producer, 1)
        held = frames.acquire(0)
        with gpuring.create(name, **OPTIONS, replace=True) as new, new.producer() as producer:
            publish(producer, 2)
            frames.acquire(5).release()
            (frames if who == "consumer" else mine).close()
            assert frames.closed
            with pytest.raises(gpuring.RingClosed, match="was given back when"):
                _ = held.array
            assert old._header.live_peers() == []
            assert new._header.live_peers() == [producer.peer]
    old.close()


def test_a_claim_that_was_begun_before_the_move_is_published_where_it_was_made(name):
    old = gpuring.create(name, **OPTIONS)
    with (
        old.consumer() as readers,
        gpuring.attach(name) as ring,
        ring.producer(reattach=True) as producer,
    ):
        begun = producer.claim(0)
        with gpuring.create(name, **OPTIONS, replace=True) as new, new.consumer() as frames:
            producer.claim(5).publish()
            frames.acquire(5).release()
            begun.array[:] = 1
            begun.publish()
            with readers.acquire(5) as slot:
                assert slot.array[0] == 1
            assert len(old._header.live_peers()) == 1
    old.close()


def test_align_moves_when_what_it_holds_was_handed_out(name, stack):
    """Frames that nobody has seen come again, so their stream stays in the ring that has them."""
    options = OPTIONS | {"meta": [("pts", "i8")]}
    rings = [gpuring.create(f"{name}-{k}", **options) for k in (0, 1)]
    ours = stack.enter_context(gpuring.attach(f"{name}-0"))
    frames = [ours.consumer(reattach=True), stack.enter_context(rings[1].consumer())]
    other = stack.enter_context(rings[1].producer())
    with rings[0].producer() as producer, producer.claim(0) as slot:
        slot.meta["pts"] = 1
    stack.enter_context(gpuring.create(f"{name}-0", **options, replace=True))
    aligned = gpuring.align(frames, "pts", timeout=0.2)
    with pytest.raises(gpuring.RingTimeout):
        next(aligned)
    assert frames[0].ring is ours
    aligned.close()
    with other.claim(0) as slot:
        slot.meta["pts"] = 1
    assert [slot.meta["pts"] for slot in next(aligned)] == [1, 1]
    with pytest.raises(gpuring.RingTimeout):
        next(aligned)
    assert frames[0].ring is not ours
    frames[0].close()
    for ring in rings:
        ring.close()


# ---- an end is a time without frames -------------------------------------------------------------


@promise(
    "failure.md",
    "With `reattach=True` a consumer never gets the end of the stream: a call whose time is up "
    "raises `RingTimeout`, and the next one goes on waiting.",
)
def test_a_call_whose_time_is_up_may_be_made_again(name):
    with (
        gpuring.create(name, **OPTIONS) as ring,
        ring.consumer(lossless=False, reattach=True) as frames,
    ):
        with ring.producer() as producer:
            publish(producer, 1)
        frames.acquire(0).release()
        for call in (
            lambda: frames.acquire(0), lambda: frames.acquire(0.01), lambda: frames.latest(0),
            lambda: frames.acquire_many(2, 0), lambda: frames.latest(0.01),
            lambda: asyncio.run(frames.acquire_async(0.01)),
        ):  # fmt: skip
            with pytest.raises(gpuring.RingTimeout, match=r"no producer is left.*Call again"):
                call()
        assert gpuring.select([frames], 0) == gpuring.select([frames], 0.01) == []
        with ring.producer() as producer:
            publish(producer, 2)
            with frames.acquire(5) as slot:
                assert (slot.array[0], slot.restarted) == (2, True)


def test_a_descriptor_is_not_readable_at_an_end_that_is_waited_out(name):
    """The descriptor becomes readable when another producer joins.  For the next ring see
    test_following_descriptor.py."""
    first = gpuring.create(name, **OPTIONS)
    with gpuring.attach(name) as ring, ring.consumer(reattach=True) as frames:
        frames.fileno()
        ring.producer().close()
        assert readable(frames, 20)
        with pytest.raises(gpuring.RingTimeout):
            frames.acquire(0)
        assert not readable(frames)
        with ring.producer(reattach=True) as producer:
            producer.fileno()
            publish(producer, 1)
            assert readable(frames, 20)
            first.close()
            assert readable(producer, 20)
            with pytest.raises(gpuring.RingFull):
                producer.claim(0)
            assert not readable(producer)


def readable(endpoint, seconds=0.0):
    return bool(select.select([endpoint], [], [], seconds)[0])


def test_two_threads_do_not_wait_out_one_end(name):
    with gpuring.create(name, **OPTIONS) as ring:
        frames = ring.consumer(reattach=True)
        ring.producer().close()
        waiting = in_thread(lambda: frames.acquire(30))
        poll(lambda: frames._at_end is not None)
        with pytest.raises(RuntimeError, match="another thread"):
            frames.acquire(5)
        frames.close()
        assert isinstance(waiting(), gpuring.RingClosed)


def test_select_waits_for_one_at_its_end_and_for_another_at_once(name, stack):
    """A ring at its end does not hold up the frames of the other one."""
    rings = [stack.enter_context(gpuring.create(f"{name}-{k}", **OPTIONS)) for k in (0, 1)]
    frames = [stack.enter_context(ring.consumer(reattach=True)) for ring in rings]
    rings[0].producer().close()
    producer = stack.enter_context(rings[1].producer())
    ready = in_thread(lambda: gpuring.select(frames, 30))
    publish(producer, 1)
    assert ready() == [frames[1]]
    frames[1].acquire(0).release()
    ready = in_thread(lambda: gpuring.select(frames, 30))
    publish(stack.enter_context(rings[0].producer()), 2)
    assert ready() == [frames[0]]
    assert frames[0].acquire(0).restarted


def test_latest_waits_while_another_member_holds_the_last_frame(name):
    """The ring is at its end, unless the other member gives its frame back."""
    with gpuring.create(name, **OPTIONS) as ring:
        members = [ring.consumer("both", lossless=False, reattach=True) for _ in range(2)]
        with ring.producer() as producer:
            publish(producer, 1)
        held = members[0].latest(0)
        for timeout in (0, 0.02):
            with pytest.raises(gpuring.RingTimeout):
                members[1].latest(timeout)
        held.release()
        for each in members:
            each.close()


# ---- who comes between two producers -------------------------------------------------------------

"""The frame that a reader has in hand when its program is ended."""

from __future__ import annotations

import asyncio

import pytest

import gpuring
from tests.helpers.durable import make, read
from tests.helpers.promise import promise
from tests.helpers.rings import publish
from tests.ring.ways_to_read import (
    has_a_block,
    loops,
    loops_in_a_block,
    loops_in_asyncio,
    loops_over_partial_tuples,
    loops_over_tuples,
    made,
    publish_times,
)


class Wrong(Exception):
    pass


ENDS = [KeyboardInterrupt, SystemExit]


def ends_in(has, end):
    """The block of a slot or of a batch, whose user has begun to work on the frames."""
    with has:
        for slot in [has] if isinstance(has, gpuring.ReadSlot) else has[1:]:
            assert slot.array is not None
        raise end


@pytest.mark.parametrize("end", ENDS)
def test_a_frame_whose_block_the_end_of_the_program_leaves_comes_again(name, end):
    with make(name) as ring, ring.producer() as producer:
        with ring.consumer("rec", durable=True) as reader:
            publish(producer, 0, 1, 2)
            assert read(reader, 1) == [(0, 0, False)]
            with pytest.raises(end):
                ends_in(reader.acquire(0), end)
        with ring.consumer("rec") as reader:
            assert read(reader, 2) == [(1, 0, True), (2, 0, False)]


def test_a_frame_whose_block_a_ctrl_c_leaves_comes_again_to_a_program_that_goes_on(name):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish(producer, 0)
        with pytest.raises(KeyboardInterrupt):
            ends_in(reader.acquire(0), KeyboardInterrupt)
        assert read(reader, 1) == [(0, 0, True)]
        reader.close()


@pytest.mark.parametrize("end", ENDS)
def test_the_frames_of_a_batch_whose_block_is_left_come_again(name, end):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish(producer, 0, 1, 2)
        batch = reader.acquire_many(3, 0)
        batch[0].release()
        with pytest.raises(end):
            ends_in(batch, end)
        assert read(reader, 2) == [(1, 0, True), (2, 0, True)]
        reader.close()


@pytest.mark.parametrize(
    ("end", "terms"),
    [
        (Wrong, {"durable": True}),
        (asyncio.CancelledError, {"durable": True}),
        (KeyboardInterrupt, {}),
        (KeyboardInterrupt, {"durable": True, "redeliver": False}),
        (KeyboardInterrupt, {"durable": True, "lossless": False}),
    ],
    ids=["an error", "a task that is cancelled", "not durable", "redeliver=False", "lossy"],
)
def test_a_frame_whose_block_is_left_otherwise_counts_as_read(name, end, terms):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", **terms)
        publish(producer, 0, 1)
        with pytest.raises(end):
            ends_in(reader.acquire(0), end)
        assert read(reader, 1) == [(1, 0, False)]
        reader.close()


# ---- loops ---------------------------------------------------------------------------------------


def leaves(loop, reader, how):
    """Leaves the body of a loop at the frame with the value 1."""

    def has(slot):
        if slot.array[0] == 1:
            raise how

    loop(reader, has)


LOOPS = [loops, loops_over_tuples, loops_over_partial_tuples, has_a_block, loops_in_a_block]


@promise(
    "failure.md",
    "So does a frame whose block or loop is left by Ctrl-C or `SystemExit`.",
)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("end", ENDS)
def test_the_frame_of_a_loop_that_the_end_of_the_program_leaves_comes_again(name, loop, end):
    with made(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish_times(producer, 0, 1, 2)
        with pytest.raises(end):
            leaves(loop, reader, end)
        reader.close()
        with ring.consumer("rec") as reader:
            assert read(reader, 2) == [(1, 0, True), (2, 0, False)]


def test_the_frame_of_an_asynchronous_loop_comes_again(name):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish(producer, 0, 1, 2)
        with pytest.raises(SystemExit):
            leaves(loops_in_asyncio, reader, SystemExit)
        assert read(reader, 2) == [(1, 0, True), (2, 0, False)]
        reader.close()


def test_the_frame_of_a_loop_whose_error_is_kept_comes_again(name):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish(producer, 0, 1)
        with pytest.raises(KeyboardInterrupt) as kept:
            leaves(loops, reader, KeyboardInterrupt)
        assert kept.traceback
        assert read(reader, 1) == [(1, 0, True)]
        reader.close()


def breaks(reader):
    for slot in reader:
        if slot.array[0] == 1:
            break


def breaks_while_an_error_is_handled(reader):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        breaks(reader)


def fails(reader):
    with pytest.raises(Wrong):
        leaves(loops, reader, Wrong)


def fails_over_tuples(reader):
    with pytest.raises(Wrong):
        leaves(loops_over_tuples, reader, Wrong)


def drops_a_generator(reader):
    def around():
        yield from reader

    frames = around()
    assert [int(next(frames).array[0]) for _ in range(2)] == [0, 1]


def is_cancelled(reader):
    with pytest.raises(asyncio.CancelledError):
        leaves(loops_in_asyncio, reader, asyncio.CancelledError)


@pytest.mark.parametrize(
    "leave",
    [
        breaks,
        breaks_while_an_error_is_handled,
        fails,
        fails_over_tuples,
        drops_a_generator,
        is_cancelled,
    ],
)
def test_the_frame_of_a_loop_that_is_left_otherwise_counts_as_read(name, leave):
    with made(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish_times(producer, 0, 1, 2)
        leave(reader)
        assert read(reader, 1) == [(2, 0, False)]
        reader.close()


def is_interrupted_at_once(readers, **terms):
    for slots in gpuring.align(readers, by="pts", **terms):
        assert all(slot.array[0] == 0 for slot in slots if slot is not None)
        raise KeyboardInterrupt


def test_of_a_tuple_only_the_frames_of_durable_subscriptions_come_again(name):
    with made(name) as ring, ring.producer() as producer:
        keeps = ring.consumer("rec", durable=True)
        plain = ring.consumer("plain")
        publish_times(producer, 0, 1)
        with pytest.raises(KeyboardInterrupt):
            is_interrupted_at_once([keeps, plain])
        assert read(keeps, 2) == [(0, 0, True), (1, 0, False)]
        assert read(plain, 1) == [(1, 0, False)]
        keeps.close()
        plain.close()


def test_the_frames_that_wait_for_their_partners_come_again_as_well(name):
    with (
        made(name) as ring,
        made(f"{name}-late") as late,
        ring.producer() as producer,
        late.producer() as other,
    ):
        keeps, waits_for = ring.consumer("rec", durable=True), late.consumer("rec")
        publish_times(other, 2)
        publish_times(producer, 0, 1, 2)
        with pytest.raises(KeyboardInterrupt):
            is_interrupted_at_once([keeps, waits_for], partial=True, depth=3)
        assert read(keeps, 3) == [(0, 0, True), (1, 0, False), (2, 0, False)]
        keeps.close()
        waits_for.close()


def test_a_lossy_reader_of_tuples_that_goes_on_counts_what_is_passed_meanwhile(name):
    with (
        made(name) as ring,
        made(f"{name}-late") as late,
        ring.producer() as producer,
        late.consumer() as waits_for,
    ):
        reader = ring.consumer(lossless=False)
        publish_times(producer, 0, 1, 2)

        def is_interrupted():
            for _ in gpuring.align([reader, waits_for], by="pts", partial=True, depth=3):
                raise KeyboardInterrupt  # before anybody has looked at the frame

        with pytest.raises(KeyboardInterrupt):
            is_interrupted()
        publish_times(producer, 3, 4, 5, 6, 7, 8)
        assert read(reader, 4) == [(5, 5, False), (6, 0, False), (7, 0, False), (8, 0, False)]
        reader.close()


def test_a_frame_of_a_ring_that_its_reader_has_left_goes_to_those_who_are_still_there(name):
    with make(name) as first:
        reader = first.consumer("rec", durable=True, reattach=True)
        other = first.consumer("rec")
        with first.producer() as producer:
            publish(producer, 0)
        slot = reader.acquire(0)
        assert slot.array[0] == 0
        with make(name, replace=True) as second, second.producer() as producer:
            publish(producer, 5)
            assert read(reader, 1) == [(5, 0, False)]
            with pytest.raises(KeyboardInterrupt):
                ends_in(slot, KeyboardInterrupt)
            with pytest.raises(gpuring.RingTimeout):
                reader.acquire(0)
            assert read(other, 1) == [(0, 0, True)]
            reader.close()


# ---- SIGTERM -------------------------------------------------------------------------------------

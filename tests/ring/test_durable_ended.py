"""What becomes of the frame that a reader has in hand when its program is ended."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import gpuring
from tests.helpers.processes import poll, runs
from tests.helpers.promise import promise
from tests.helpers.rings import publish
from tests.ring.test_durable import make, read


class Wrong(Exception):
    pass


ENDS = [KeyboardInterrupt, SystemExit]


def ends_in(has, end):
    """The block of a slot or of a batch, whose user has begun to work on the frames."""
    with has:
        for slot in [has] if isinstance(has, gpuring.ReadSlot) else has[1:]:
            assert slot.array is not None
        raise end


@promise("failure.md", "So does one whose block Ctrl-C or `SystemExit` leaves.")
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


def test_it_comes_again_to_a_program_that_goes_on(name):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", durable=True)
        publish(producer, 0)
        with pytest.raises(KeyboardInterrupt):
            ends_in(reader.acquire(0), KeyboardInterrupt)
        assert read(reader, 1) == [(0, 0, True)]
        reader.close()


@pytest.mark.parametrize("end", ENDS)
def test_so_do_the_frames_of_a_batch(name, end):
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
def test_otherwise_it_counts_as_read(name, end, terms):
    with make(name) as ring, ring.producer() as producer:
        reader = ring.consumer("rec", **terms)
        publish(producer, 0, 1)
        with pytest.raises(end):
            ends_in(reader.acquire(0), end)
        assert read(reader, 1) == [(1, 0, False)]
        reader.close()


# ---- SIGTERM -------------------------------------------------------------------------------------


def loops(reader, has):
    for slot in reader:
        has(slot)


def loops_over_batches(reader, has):
    while True:
        with reader.acquire_many(1) as batch:
            has(batch[0])


def loops_in_asyncio(reader, has):
    async def main():
        async for slot in reader:
            has(slot)

    asyncio.run(main())


def keeps_the_slot(reader, has):
    while True:
        slot = reader.acquire()
        has(slot)
        slot.release()


def reads(pipe, name, how):
    gpuring.exit_on_sigterm()
    ring = gpuring.attach(name)
    reader = ring.consumer("rec", durable=True)
    pipe.send()

    def has(slot):
        pipe.send(int(slot.array[0]))
        pipe.receive()

    how(reader, has)


@promise(
    "failure.md",
    "If SIGTERM so ends a reader of a lossless durable subscription, the frame that it has in hand "
    "comes again.",
)
@pytest.mark.parametrize("how", [loops, loops_over_batches, loops_in_asyncio, keeps_the_slot])
def test_the_frame_of_a_loop_that_sigterm_leaves_comes_again(name, children, how):
    with make(name) as ring, ring.producer() as producer:
        child = children(reads, name, how)
        child.receive()
        publish(producer, 0, 1, 2)
        assert child.receive() == 0
        child.send()
        assert child.receive() == 1
        os.kill(child.pid, signal.SIGTERM)
        poll(lambda: not runs(child.pid))
        with ring.consumer("rec") as reader:
            assert read(reader, 2) == [(1, 0, True), (2, 0, False)]

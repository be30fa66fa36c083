"""The frame that a durable reader has in hand when SIGTERM ends its program."""

from __future__ import annotations

import os
import signal

import pytest

import gpuring
from tests.helpers.durable import read
from tests.helpers.processes import poll, runs, up
from tests.helpers.promise import promise
from tests.ring.ways_to_read import (
    keeps_the_slot,
    loops,
    loops_in_asyncio,
    loops_over_batches,
    loops_over_tuples,
    made,
    publish_times,
)


def reads(pipe, name, how):
    gpuring.exit_on_sigterm()
    ring = gpuring.attach(name)
    reader = ring.consumer("rec", durable=True)
    pipe.send()

    def has(slot):
        pipe.ask(int(slot.array[0]))

    how(reader, has)


@promise(
    "failure.md",
    "**The frame in hand.** If SIGTERM ends a reader of a lossless durable subscription in this "
    "way, the frame that it holds comes again.",
)
@pytest.mark.parametrize(
    "how", [loops, loops_over_batches, loops_in_asyncio, loops_over_tuples, keeps_the_slot]
)
def test_the_frame_of_a_loop_that_sigterm_leaves_comes_again(name, children, how):
    with made(name) as ring, ring.producer() as producer:
        child = up(children(reads, name, how))
        publish_times(producer, 0, 1, 2)
        assert child.receive() == 0
        child.send()
        assert child.receive() == 1
        os.kill(child.pid, signal.SIGTERM)
        poll(lambda: not runs(child.pid))
        with ring.consumer("rec") as reader:
            assert read(reader, 2) == [(1, 0, True), (2, 0, False)]


def finishes_its_work(pipe, name):
    gpuring.exit_on_sigterm()
    ring = gpuring.attach(name)
    reader = ring.consumer("rec", durable=True)
    try:
        for slot in reader:
            pipe.ask(int(slot.array[0]))
    except SystemExit:
        for _ in range(2):
            for slot in reader:
                pipe.send((int(slot.array[0]), slot.redelivered))
                break
    reader.close()


def test_a_program_that_finishes_its_work_after_sigterm_gets_each_frame_once(name, children):
    with made(name) as ring, ring.producer() as producer:
        ring.subscribe("rec")
        child = children(finishes_its_work, name)
        publish_times(producer, 0, 1, 2)
        assert child.receive() == 0
        os.kill(child.pid, signal.SIGTERM)
        assert [child.receive(), child.receive()] == [(0, True), (1, False)]
        poll(lambda: not runs(child.pid))
        with ring.consumer("rec") as reader:
            assert read(reader, 1) == [(2, 0, False)]

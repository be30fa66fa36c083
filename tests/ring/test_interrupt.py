"""Ctrl-C at every opcode of the Python layer: nothing stays claimed, joined, open or named."""

from __future__ import annotations

import asyncio
import gc

import pytest

import gpuring
from tests.helpers.holdings import HOLDINGS, has_a_ring
from tests.helpers.interrupted import (
    Interrupt,
    InterruptOfALoop,
    at_each_place,
    interrupts,
)
from tests.helpers.rings import drain, small_ring
from tests.helpers.words import names

pytestmark = pytest.mark.filterwarnings("ignore:ring .* was not closed:ResourceWarning")


def put(producer: gpuring.Producer) -> int:
    slot = producer.claim(0)
    slot.publish()
    return slot.seq


# ---- verbs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_a_producers_verbs_run_nothing_that_can_be_interrupted(name, end):
    """Each call is one whole transition in the core.  A signal comes before it or after it."""
    with small_ring(name, 2) as ring, ring.producer() as producer:
        interrupt = Interrupt(1)
        with interrupt:
            getattr(producer.claim(0), end)()
            with producer.claim(0):
                pass
        assert interrupt.where is None


def test_the_with_of_a_batch_runs_nothing_that_can_be_interrupted(name):
    with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer() as reader:
        interrupt, batch = Interrupt(1), producer.claim_many(2, 0)
        with interrupt, batch:
            pass
        frames = reader.acquire_many(2, 0)
        with interrupt, frames:
            pass
        assert interrupt.where is None
        assert not any(slot._open for slot in batch + frames)


@pytest.mark.parametrize("verb", ["acquire", "latest"])
def test_a_consumers_verbs_run_nothing_that_can_be_interrupted(name, verb):
    with small_ring(name, 2) as ring, ring.producer() as producer:
        reader = ring.consumer(lossless=verb == "acquire")
        put(producer)
        put(producer)
        interrupt = Interrupt(1)
        with interrupt:
            getattr(reader, verb)(0).release()
        assert interrupt.where is None


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::ResourceWarning")
@pytest.mark.parametrize("kind", [Interrupt, InterruptOfALoop])
def test_an_interrupted_loop_of_a_task_holds_nothing_after_the_next_verb(name, kind):
    """A task keeps the error, whose traceback keeps the arguments of all functions, until the
    garbage collector comes.  Python warns of an interrupt between a call and its `await`."""

    async def loop(reader, left):
        async for slot in reader:
            assert slot.array is not None
            left -= 1
            if not left:
                return

    gc.disable()
    try:
        for interrupt in at_each_place(kind, 1):
            with (
                small_ring(name, 2) as ring,
                ring.producer() as producer,
                ring.consumer() as reader,
            ):
                put(producer)
                put(producer)
                with interrupt:
                    asyncio.run(loop(reader, 2))
                drain(reader)
                assert names(ring, reader.peer) == ["peer"], interrupt.where
    finally:
        gc.enable()
        gc.collect()


def test_an_interrupted_claim_of_a_smaller_frame_leaves_no_claim(name):
    """The shape of the claim is checked in Python."""
    for interrupt in interrupts():
        with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer() as reader:
            with interrupt:
                producer.claim(0, shape=[2]).abandon()
            assert producer._peer.holding() == [], interrupt.where
            seqs = [put(producer), put(producer)]
            assert drain(reader) == seqs, interrupt.where


@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_an_interrupted_end_of_a_batch_leaves_nothing_after_close(name, end):
    for interrupt in interrupts():
        with small_ring(name, 2) as ring, ring.consumer() as reader:
            producer = ring.producer()
            with interrupt:
                producer.claim_many(2, 0).abandon()  # 3.13 traces no function's first call
                getattr(producer.claim_many(2, 0), end)()
            producer.close()
            assert names(ring, producer.peer) == [], interrupt.where
            with ring.producer() as other:
                drain(reader)
                for _ in range(4):
                    seq = put(other)
                    assert drain(reader) == [seq], interrupt.where


def test_an_interrupted_release_of_a_batch_is_released_by_close(name):
    """The frames of the batch may have been handed out, so nobody else gets them.  They hold up no
    producer."""
    for interrupt in interrupts():
        with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer("x") as other:
            reader = ring.consumer("x")
            put(producer)
            put(producer)
            batch = reader.acquire_many(2, 0)
            with interrupt:
                batch.release()  # runs no Python
                reader.close()
            reader.close()
            assert names(ring, reader.peer) == [], interrupt.where
            assert drain(other) == [], interrupt.where
            for _ in range(4):
                seq = put(producer)
                assert drain(other) == [seq], interrupt.where


# ---- joining and leaving -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_an_interrupted_join_leaves_nobody_who_is_not_known(name, role, traces):
    for interrupt in interrupts():
        ring = small_ring(name, 2)
        header = ring._header
        with interrupt:
            getattr(ring, role)()
        known = {endpoint().peer for endpoint in ring._endpoints.values()}
        assert set(header.live_peers()) <= known, interrupt.where
        ring.close()
        assert header.live_peers() == [], interrupt.where
        assert traces(name) == [], interrupt.where


@pytest.mark.slow
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_an_interrupted_join_is_no_death_where_its_traceback_outlives_the_ring(name, role):
    """`with ring: ring.producer()` is such a case."""
    with small_ring(name, 2) as ring:
        for interrupt in interrupts():
            mine = gpuring.attach(name)
            with interrupt:
                try:
                    getattr(mine, role)()
                except KeyboardInterrupt:
                    mine.close()
                    raise
            mine.close()
            assert ring._header.reap() == [], interrupt.where
            assert ring._header.reaps == 0, interrupt.where
            assert ring._header.live_peers() == [], interrupt.where


@pytest.mark.parametrize("joins", [False, True], ids=["", "somebody joins meanwhile"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_an_interrupted_close_can_be_repeated(name, role, joins):
    for interrupt in interrupts():
        with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer("x") as other:
            if role == "producer":
                leaver = ring.producer()
                leaver.claim(0)
            else:
                leaver = ring.consumer("x")
                put(producer)
                held = leaver.acquire(0)
            with interrupt:
                leaver.close()
            assert role == "producer" or held.index == 0
            late = ring.consumer("late") if joins else None
            leaver.close()
            assert leaver.closed, interrupt.where
            if late is None:
                assert names(ring, leaver.peer) == [], interrupt.where
                assert leaver.peer not in ring._header.live_peers(), interrupt.where
            assert ring._header.reap() == [], interrupt.where
            assert ring._header.reaps == 0, interrupt.where
            assert drain(other) == [], interrupt.where
            for _ in range(4):
                seq = put(producer)
                assert drain(other) == [seq], interrupt.where
                if late is not None:
                    assert drain(late) == [seq], interrupt.where


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOLDINGS)
def test_whatever_was_interrupted_in_its_close_can_be_closed_again(name, kind, traces):
    for interrupt in interrupts(step=7 if kind is has_a_ring else 1):
        ring = small_ring(name)
        has = kind(ring, name, lambda each: each)
        closers = next(has)
        with interrupt:
            for each in closers:
                each.close()
        for each in closers:
            each.close()
        assert all(getattr(each, "closed", True) for each in closers), interrupt.where
        assert ring._header.live_peers() == [], interrupt.where
        has.close()
        with ring.producer() as producer, ring.consumer() as reader:
            for _ in range(5):
                seq = put(producer)
                assert drain(reader) == [seq], interrupt.where
        assert ring._header.reaps == 0, interrupt.where
        ring.close()
        assert traces(name) == [], interrupt.where


# ---- creating ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
def test_an_interrupted_create_leaves_nothing(name, replace, traces):
    for interrupt in interrupts(step=7):
        old = small_ring(name, 2) if replace else None
        ring = None
        with interrupt:
            ring = small_ring(name, 2, replace=replace)
        for each in (ring, old):
            if each is not None:
                each.close()
        if traces(name):
            gc.collect()
        assert traces(name) == [], interrupt.where
        small_ring(name, 2).close()

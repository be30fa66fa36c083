"""A peer that has joined with `reattach=True` goes on when the creator of the ring was started
again, in whatever form it waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal

import pytest

import gpuring
from gpuring.ring.waiting import select_async
from tests.helpers.cameras import OPTIONS, owns_and_publishes
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import readable

# ---- the forms of a reader: each yields the slots that it gets, which it has then ----------------


def by_for(frames):
    yield from frames


def by_acquire(frames):
    while True:
        with frames.acquire(30) as slot:
            yield slot


def by_looking(frames):
    while True:
        with contextlib.suppress(gpuring.RingTimeout), frames.acquire(0.01) as slot:
            yield slot


def by_latest(frames):
    while True:
        with frames.latest(30) as slot:
            yield slot


def by_batch(frames):
    while True:
        with frames.acquire_many(3, 30) as batch:
            yield from batch


def by_select(frames):
    while True:
        for each in gpuring.select([frames], 30):
            with each.acquire(0) as slot:
                yield slot


def by_fileno(frames):
    with selectors.DefaultSelector() as selector:
        selector.register(frames, selectors.EVENT_READ)
        while True:
            assert selector.select(30), "the descriptor never became readable"
            with contextlib.suppress(gpuring.RingTimeout), frames.acquire(0) as slot:
                yield slot


def by_align(frames):
    for (slot,) in gpuring.align([frames], timeout=30):
        yield slot


def in_turn(step):
    """The slots of an asynchronous step, which one event loop runs again and again."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        while True:
            with loop.run_until_complete(step()) as slot:
                yield slot


def by_async_for(frames):
    return in_turn(aiter(frames).__anext__)


def by_acquire_async(frames):
    return in_turn(lambda: frames.acquire_async(30))


def by_select_async(frames):
    async def step():
        while True:
            for each in await select_async([frames], 30):
                return each.acquire(0)

    return in_turn(step)


def by_align_async(frames):
    aligned = gpuring.align([frames], timeout=30)

    async def step():
        return (await anext(aligned))[0]

    return in_turn(step)


FORMS = [
    by_acquire, by_for, by_looking, by_latest, by_batch, by_select, by_fileno, by_align,
    by_async_for, by_acquire_async, by_select_async, by_align_async,
]  # fmt: skip


def follows(pipe, name, form, last):
    """Sends (value, restarted) of each frame, until the last one."""
    with (
        gpuring.attach(name, timeout=30) as ring,
        ring.consumer(lossless=form is not by_latest, start="oldest", reattach=True) as frames,
    ):
        for slot in form(frames):
            value = int(slot.array[0])
            pipe.send((value, slot.restarted))
            if value == last:
                return


@promise(
    "failure.md",
    "It goes on in the new ring, in whatever form it waits: in a loop, with `acquire`, `latest` "
    "and batches, with `gpuring.select` and `gpuring.align`, in asyncio, and in other event loops "
    "at its `fileno()`.",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("form", FORMS)
def test_a_reader_goes_on_however_it_waits(name, children, form):
    """The reader's camera dies and comes back while the reader waits.  Another camera comes while
    the reader is stopped, so that it finds the stream and the ring at their end at once."""
    camera = up(children(owns_and_publishes, name, [1]))
    reader = children(follows, name, form, 3)
    assert reader.receive() == (1, False)
    camera.kill()
    with gpuring.attach(name) as old:
        poll(lambda: old.stats().reaps == 1)
    camera = children(owns_and_publishes, name, [2])
    assert reader.receive() == (2, True)
    os.kill(reader.pid, signal.SIGSTOP)
    camera.kill()
    camera = up(children(owns_and_publishes, name, [3]))
    os.kill(reader.pid, signal.SIGCONT)
    assert reader.receive() == (3, True)
    reader.result()
    camera.finish()


# ---- producers -----------------------------------------------------------------------------------


def by_claim(producer):
    return producer.claim(30)


def by_claim_many(producer):
    return producer.claim_many(1, 30)[0]


def by_claim_async(producer):
    return asyncio.run(producer.claim_async(30))


def by_claim_of_select(producer):
    [ready] = gpuring.select([producer], 30)
    return ready.claim(0)


def by_claim_of_fileno(producer):
    while True:
        assert readable(producer, 30), "the descriptor never became readable"
        with contextlib.suppress(gpuring.RingFull):
            return producer.claim(0)


def publishes(pipe, name, form):
    with gpuring.attach(name, timeout=30) as ring, ring.producer(reattach=True) as producer:
        while (value := pipe.receive()) is not None:
            with form(producer) as slot:
                slot.array[:] = value
            pipe.send(slot.restarted)


def owns_and_reads(pipe, name, count):
    with gpuring.create(name, **OPTIONS) as ring, ring.consumer() as frames:
        pipe.send("created")
        for _ in range(count):
            with frames.acquire(30) as slot:
                pipe.send((int(slot.array[0]), slot.seq))
        pipe.receive()


@promise(
    "failure.md",
    "It publishes in the old ring until that is closed, and moves to the next one with its next "
    "claim.",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "form", [by_claim, by_claim_many, by_claim_async, by_claim_of_select, by_claim_of_fileno]
)
def test_a_producer_goes_on_in_the_ring_that_its_creator_has_made_again(name, children, form):
    """The producer publishes in the ring of its dead creator until there is another ring."""
    owner = up(children(owns_and_reads, name, 1))
    producer = children(publishes, name, form)
    producer.send(1)
    assert producer.receive() is False
    assert owner.receive() == (1, 4)
    owner.kill()
    producer.send(2)
    assert producer.receive() is False
    for value in (3, 4):
        owner = children(owns_and_reads, name, 1)
        assert owner.receive() == "created"
        producer.send(value)
        assert producer.receive() is True
        assert owner.receive() == (value, 4)
        if value == 3:
            owner.kill()
    producer.send(None)
    producer.result()
    owner.finish()


# ---- what a program that does not follow is told -------------------------------------------------


@promise(
    "failure.md",
    "Without it, `PeerLost` and `EndOfStream` say when there is a new ring of that name, and how "
    "to go on there.",
)
def test_who_does_not_follow_is_told_of_the_new_ring_in_the_same_words(name, children):
    camera = up(children(owns_and_publishes, name, [1]))
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        frames.acquire(5).release()
        camera.kill()
        with pytest.raises(gpuring.PeerLost, match="`reattach` waits for one, or for the next"):
            frames.acquire(5)
        again = up(children(owns_and_publishes, name, [2]))
        with pytest.raises(
            gpuring.EndOfStream,
            match=r"Another ring has that name now. Attach again .* `reattach`",
        ):
            frames.acquire(5)
        again.finish()

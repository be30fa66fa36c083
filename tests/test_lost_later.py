"""A slot that somebody had at the next verb, and nobody has later: it is given back then."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from support import poll
from test_interrupt import interrupts, make, names, put

import gpuring

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore:coroutine .* was never awaited:RuntimeWarning"
)


def held(ring: gpuring.Ring, endpoint: gpuring.Consumer | gpuring.Producer) -> list[str]:
    return [name for name in names(ring, endpoint.peer) if name != "peer"]


@pytest.mark.parametrize("many", [False, True], ids=["one", "batch"])
def test_a_slot_that_is_dropped_after_the_next_verb_is_given_back(name, many):
    with (
        gpuring.create(name, slots=8, shape=4, dtype="u1", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as reader,
    ):
        early = producer.claim_many(2, 0) if many else producer.claim(0)
        late = producer.claim_many(2, 0) if many else producer.claim(0)
        producer.claim(0).publish()
        assert len(held(ring, producer)) == 2 + 2 * many
        del early
        producer.claim(0).publish()
        assert len(held(ring, producer)) == 1 + many
        del late
        producer.claim(0).publish()
        assert held(ring, producer) == []
        early, late = reader.acquire(0), reader.acquire(0)
        seqs = early.seq, late.seq
        del early
        reader.acquire(0).release()
        assert len(held(ring, reader)) == 1
        late.release()
        assert held(ring, reader) == []
        assert seqs[0] < seqs[1]


def test_a_frame_that_nobody_has_looked_at_comes_again_when_it_is_dropped_later(name):
    with make(name) as ring, ring.producer() as producer, ring.consumer() as reader:
        first = put(producer)
        slot = reader.acquire(0)
        with pytest.raises(gpuring.RingTimeout):
            reader.acquire(0)
        del slot
        with reader.acquire(0) as again:
            assert again.seq == first


@pytest.mark.deadline(90)
def test_an_interrupted_asynchronous_loop_holds_nothing_after_the_next_verb(name):
    """Its task keeps the error, and that all that its frames have, until that is garbage."""
    for interrupt in interrupts():
        with make(name) as ring, ring.producer() as producer, ring.consumer() as reader:
            put(producer)

            async def main(reader: gpuring.Consumer = reader) -> None:
                async for slot in reader:
                    assert slot.seq
                    put(producer)
                    if slot.seq > 2:
                        return

            with interrupt:
                asyncio.run(main())
            with contextlib.suppress(gpuring.RingTimeout):
                reader.acquire(0).release()
            assert held(ring, reader) == [], interrupt.where
            producer.close()


def test_a_slot_that_another_thread_ends_while_a_verb_waits_is_remembered_once(name):
    """It is in hand when the verb begins, and again when the verb is done; so it goes on."""
    slots, rounds = 512, 8  # the list has room for 2048
    with (
        gpuring.create(name, slots=slots, shape=4, dtype="u1", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as reader,
    ):
        held: list[gpuring.ReadBatch] = []

        def end_all() -> None:
            poll(lambda: ring.stats().peers[reader.peer].waiting)
            while held:
                held.pop().release()
            producer.claim_many(slots, 10).publish()

        for _ in range(rounds):
            thread = threading.Thread(target=end_all)
            thread.start()
            first = reader.acquire_many(slots, 10)
            thread.join()
            held.append(first)
            while sum(map(len, held)) < slots:
                held.append(reader.acquire_many(slots, 10))
        assert held[-1][-1].seq == (rounds + 1) * slots - 1
        while held:
            held.pop().release()

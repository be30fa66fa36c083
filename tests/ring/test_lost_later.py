"""A slot that is still referred to at the next verb, and dropped later, is given back then."""

from __future__ import annotations

import signal
import threading

import pytest

import gpuring
from tests.helpers.processes import poll
from tests.helpers.rings import put, small_ring
from tests.helpers.words import names

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore:coroutine .* was never awaited:RuntimeWarning"
)


def held(ring: gpuring.Ring, endpoint: gpuring.Consumer | gpuring.Producer) -> list[str]:
    return [name for name in names(ring, endpoint.peer) if name != "peer"]


@pytest.mark.parametrize("many", [False, True], ids=["one", "batch"])
def test_a_slot_that_is_dropped_after_the_next_verb_is_given_back(name, many):
    with small_ring(name, 8) as ring, ring.producer() as producer, ring.consumer() as reader:
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
    with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer() as reader:
        (first,) = put(producer)
        slot = reader.acquire(0)
        with pytest.raises(gpuring.RingTimeout):
            reader.acquire(0)
        del slot
        with reader.acquire(0) as again:
            assert again.seq == first


def test_a_slot_that_is_ended_while_a_verb_waits_is_remembered_once(name):
    """The slot is in the list of open slots when the verb begins, and again when it is done.  Here
    a signal handler ends it.  Another thread could do so, too."""
    slots, rounds = 512, 12  # the list has room for 2048, and nothing but itself behind it
    with small_ring(name, slots) as ring, ring.producer() as producer, ring.consumer() as reader:
        producer.claim_many(slots, 0).publish()
        held = [reader.acquire_many(slots, 0)]

        def end_all(*_: object) -> None:
            if held:
                held.pop().release()
                producer.claim_many(slots, 0).publish()

        def signals() -> None:
            poll(lambda: ring.stats().peers[reader.peer].waiting)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, end_all)
        try:
            for _ in range(rounds):
                thread = threading.Thread(target=signals)
                thread.start()
                held.append(reader.acquire_many(slots, 10))
                thread.join()
                assert len(held[0]) == slots
        finally:
            signal.signal(signal.SIGUSR1, before)
        held.pop().release()


def test_of_many_slots_in_hand_each_that_is_dropped_is_found(name):
    """Each verb looks at a few of them only."""
    with small_ring(name, 64) as ring, ring.producer() as producer, ring.consumer() as reader:
        for _ in range(60):
            put(producer)
        slots = list(reader.acquire_many(60, 0))
        kept = [slot.seq for slot in slots][1::2]
        del slots[::2]
        for _ in range(16):
            with pytest.raises(gpuring.RingTimeout):
                reader.acquire(0)
        assert [seq for _, seq in reader._peer.holding()] == kept

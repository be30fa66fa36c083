"""A verb of a producer or consumer that is busy, in another thread or below a signal handler, is
refused.  It disturbs nothing of the verb in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import gpuring
from tests.helpers.gil import has_slot_without_gil, one_thread_at_a_time
from tests.helpers.processes import poll
from tests.helpers.rings import small_ring

pytestmark = pytest.mark.filterwarnings("ignore:.*nobody has its slot:ResourceWarning")


def busy(ring: gpuring.Ring, endpoint: Any, verb: Callable[[], Any]) -> threading.Thread:
    """A thread in which the endpoint waits."""
    thread = threading.Thread(target=verb)
    thread.start()
    poll(lambda: any(p.waiting for p in ring.stats().peers if p.number == endpoint.peer))
    return thread


@pytest.mark.parametrize(
    "second",
    [
        lambda frames: frames.acquire(0),
        lambda frames: frames.acquire_many(2, 0),
        lambda frames: gpuring.select([frames], 0),
    ],
    ids=["acquire", "acquire_many", "select"],
)
def test_an_acquire_beside_another_one_leaves_its_list_alone(ring, second):
    """Otherwise the list would lack a slot, which nobody would give back if it was lost."""
    with ring.producer() as producer, ring.consumer() as frames:
        producer.claim(0).publish()
        held, batches = frames.acquire(0), []
        thread = busy(ring, frames, lambda: batches.append(frames.acquire_many(2, 20)))
        held.release()
        with pytest.raises(
            RuntimeError, match=rf"ring {ring.name!r}: .* waiting in another thread"
        ):
            second(frames)
        slots = producer.claim_many(2, 0)
        for slot in reversed(slots):  # the second one first, so that one look finds both
            slot.publish()
        thread.join()
        kept = batches.pop()[0]  # the batch of the other thread is lost
        with frames.acquire(0) as again:
            assert again.seq == kept.seq + 1


def test_a_claim_beside_another_one_leaves_its_list_alone(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        for _ in range(3):
            producer.claim(0).publish()
        held, batches = producer.claim(0), []
        thread = busy(ring, producer, lambda: batches.append(producer.claim_many(2, 20)))
        held.abandon()
        with pytest.raises(
            RuntimeError, match=rf"ring {ring.name!r}: .* waiting in another thread"
        ):
            producer.claim(0)
        for slot in reversed(frames.acquire_many(3, 0)):
            slot.release()
        thread.join()
        kept = batches.pop()[0]
        with producer.claim(0) as slot:
            assert [seq for _, seq in sorted(producer._peer.holding())] == [kept.seq, slot.seq]


def test_a_slot_that_is_dropped_while_a_verb_waits_is_given_back_after_it(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        producer.claim(0).publish()
        held, taken = frames.acquire(0), []
        thread = busy(ring, frames, lambda: taken.append(frames.acquire(20)))
        dropped = held.seq
        del held
        frames._give_back_lost()
        assert [seq for _, seq in frames._peer.holding()] == [dropped]
        producer.claim(0).publish()
        thread.join()
        frames._give_back_lost()
        assert [seq for _, seq in frames._peer.holding()] == [taken.pop().seq]


def test_who_ends_a_slot_twice_does_not_end_that_of_a_thread_that_has_just_got_it(name):
    """The other thread has the slot again, but does not run yet, because it needs the GIL."""
    with (
        small_ring(name, 1) as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
        one_thread_at_a_time(),
    ):
        met, taken = False, []
        while not met:
            producer.claim(0).publish()
            held = frames.acquire(0)
            thread = busy(ring, frames, lambda: taken.append(frames.acquire(20)))
            with held:
                held.release()
                producer.claim(0).publish()
                met = has_slot_without_gil(frames._peer)
                with pytest.raises(gpuring.RingError, match="is no longer yours"):
                    held.release()
            thread.join()
            taken.pop().release()


def test_a_verb_while_a_lost_slot_is_given_back_gets_no_slot_that_is_taken_away(name, monkeypatch):
    """A signal handler, or another thread, would claim the slot that is about to be ended."""
    with small_ring(name, 1) as ring, ring.producer() as producer:
        got, refused = [], []

        def meanwhile(index: int, give_back: Any = producer._give_back) -> None:
            try:
                got.append(producer.claim(0))
            except RuntimeError as error:
                refused.append(error)
            give_back(index)

        producer.claim(0)
        monkeypatch.setattr(producer, "_give_back", meanwhile)
        got.append(producer.claim(0))
        monkeypatch.undo()
        assert len(refused) == 1
        assert [slot._open for slot in got] == [True]
        got.pop().abandon()

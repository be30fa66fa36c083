"""Open slots without references: the caller dropped them, or Ctrl-C came before it had them.

CPython looks for signals when a call has come back, and before its caller has the result.  So a
verb that was done may leave a claim, or a hold, which nobody knows of.  It is given back.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuring
from gpuring.ring import shutdown
from gpuring.ring.consumer import Consumer
from gpuring.ring.read_slot import ReadSlot
from tests.helpers.rings import drain, small_ring

pytestmark = pytest.mark.filterwarnings("ignore:.*nobody has its slot:ResourceWarning")


@pytest.fixture
def ring(name) -> Iterator[gpuring.Ring]:
    with gpuring.create(
        name, slots=2, shape=4, dtype="u1", meta=[("n", "i8")], device="host"
    ) as made:
        yield made


def put(producer: gpuring.Producer, value: int = 0) -> int:
    with producer.claim(1) as slot:
        slot.array[...] = value
    return slot.seq


# ---- what was dropped ----------------------------------------------------------------------------


def test_a_claim_that_was_dropped_is_abandoned_with_a_warning(ring):
    with ring.producer() as producer, ring.consumer() as reader:
        producer.claim(0).array[...] = 1
        with pytest.warns(
            ResourceWarning, match=r"sequence 2 was claimed, and nobody has its slot"
        ):
            put(producer)
        assert drain(reader) == [3]


def test_a_frame_that_was_seen_and_dropped_is_released_and_one_that_was_not_comes_again(ring):
    with ring.producer() as producer, ring.consumer() as reader:
        put(producer, 7)
        put(producer, 8)
        reader.acquire(0)
        with pytest.warns(ResourceWarning, match="sequence 2 was acquired"):
            assert reader.acquire(0).array[0] == 7
        assert reader.acquire(0).seq == 3
        assert drain(reader) == []


@pytest.mark.parametrize(
    "keep",
    [
        lambda slot: slot,
        lambda slot: slot.array,
        lambda slot: slot.array[1:],
        lambda slot: slot.meta,
        lambda slot: slot.meta["n"],
        lambda slot: memoryview(slot.array),
        lambda slot: slot.__dlpack__(),
        lambda slot: [(slot,)],
    ],
    ids=["slot", "array", "part", "meta", "item", "buffer", "capsule", "container"],
)
def test_what_somebody_has_stays_his(ring, keep):
    """A slot stays open as long as anything refers to its frame.  Numbers that were copied out of
    the metadata do not count.  A caller that had only the slot object has not seen the frame."""
    with ring.producer() as producer, ring.consumer() as reader:
        put(producer)
        put(producer)
        kept = keep(reader.acquire(0))
        other = reader.acquire(0)
        other.release()
        is_number = isinstance(kept, np.integer)
        unseen = isinstance(kept, ReadSlot | list)
        assert [seq for _, seq in reader._peer.holding()] == ([] if is_number else [2])
        del kept
        assert drain(reader) == ([2] if unseen else [])


def test_an_array_of_several_keeps_its_frame(name):
    fields = {"left": (4, "u1"), "right": (4, "u1")}
    with (
        gpuring.create(name, slots=2, fields=fields, device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as reader,
    ):
        producer.claim(0).publish()
        kept = reader.acquire(0)["right"]
        with pytest.raises(gpuring.RingTimeout):
            reader.acquire(0)
        assert [seq for _, seq in reader._peer.holding()] == [2]
        del kept


def test_close_gives_a_frame_that_nobody_has_seen_to_another_member(ring):
    with ring.producer() as producer, ring.consumer("x") as other:
        reader = ring.consumer("x")
        seqs = [put(producer), put(producer)]
        held = reader.acquire(0)
        reader.acquire(0)
        reader.close()
        assert drain(other) == seqs[1:]
        with pytest.raises(gpuring.RingClosed, match="given back when this consumer was closed"):
            held.check()


def test_who_is_blocked_by_a_lost_slot_of_its_own_process_gets_it(ring):
    with ring.producer() as producer, ring.consumer() as reader:
        put(producer)
        put(producer)
        reader.acquire(0).seq  # noqa: B018
        assert producer.claim(10).seq == 4


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize("seen", [False, True])
def test_a_consumer_that_was_dropped_with_its_slots_blocks_nobody_of_its_process(ring, seen):
    def forget():
        reader = ring.consumer()
        for _ in range(ring.slots):
            put(producer)
        kept = [reader.acquire(0) for _ in range(ring.slots)]
        assert not seen or all(slot.seq for slot in kept)

    gc.disable()  # which would drop them as well, at any time
    try:
        with ring.producer() as producer:
            forget()
            assert producer.claim(10).seq == 4
            assert [peer.role for peer in ring.stats().peers] == ["producer"]
    finally:
        gc.enable()


def test_who_waits_is_not_told_what_goes_wrong_with_the_slot_of_another(ring):
    """Here a warning is the error.  It could also be an error of a GPU."""
    with ring.producer() as producer, ring.consumer() as reader, warnings.catch_warnings():
        warnings.simplefilter("error")
        put(producer)
        put(producer)
        reader.acquire(0).seq  # noqa: B018
        assert producer.claim(10).seq == 4


def test_a_torn_frame_that_was_dropped_is_told_to_its_consumer(ring, monkeypatch):
    class Torn(ReadSlot):
        def _end(self) -> None:
            self.release()
            raise self._torn_of((self._seq,))

    class Reader(Consumer):
        _slot_type = Torn

    monkeypatch.setattr("gpuring.ring.ring.Consumer", Reader)
    with ring.producer() as producer, ring.consumer() as reader:
        for recover in (reader._give_back_lost, lambda: None):
            seqs = [put(producer), put(producer)]
            reader.acquire(0).seq  # noqa: B018
            recover()
            with pytest.raises(gpuring.FrameTorn) as told:
                reader.acquire(0)
            assert told.value.seqs == (seqs[0],)
            assert drain(reader) == seqs[1:]


def test_rings_come_and_go_at_each_line_of_a_look_for_lost_slots(ring):
    """They are rings of another thread, and must not disturb the verb that looks."""
    opened: list[gpuring.Ring] = []

    def come(*_: Any) -> Any:
        opened.append(gpuring.attach(ring.name))
        return come

    before = sys.gettrace()
    sys.settrace(come)
    try:
        shutdown._Blocked().give_back_lost()
    finally:
        sys.settrace(before)
        for other in opened:
            other.close()
    assert len(opened) > 5


def test_select_gives_back_first(ring):
    with ring.producer() as producer, ring.consumer() as reader:
        put(producer)
        reader.acquire(0)
        assert gpuring.select([reader], 0) == [reader]


def test_nobody_is_warned_of_what_was_ended(ring):
    with ring.producer() as producer, ring.consumer() as reader, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            put(producer)
            producer.claim_many(1, 0).publish()
            reader.acquire(0).release()
            reader.acquire_many(1, 0).release()


# ---- one object, one frame -----------------------------------------------------------------------


def test_with_ends_the_frame_that_it_began_or_none(name):
    with (
        small_ring(name, 1) as ring,
        ring.producer() as producer,
        ring.consumer(lossless=False) as reader,
    ):
        with producer.claim(0) as first:
            first.publish()
            second = producer.claim(0)
        assert producer._peer.holding() == [(0, second.seq)]
        second.publish()
        with reader.acquire(0) as first:
            first.release()
            put(producer)
            second = reader.acquire(0)
        assert reader._peer.holding() == [(0, second.seq)]
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            first.array[...]
        assert (first.seq, second.seq) == (2, 3)

"""A call for a batch that fails half-way: what it had taken goes back and comes again."""

from __future__ import annotations

import numpy as np
import pytest

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.layout import FIELDS
from tests.helpers.rings import drain, small_ring
from tests.helpers.victim import unpay
from tests.helpers.words import written_by_gpu
from tests.ring.batch import idle, seqs_of


def test_a_fence_that_is_not_paid_ends_a_batch_before_its_frame(name):
    """acquire_many waits on the host for the fence of its first frame only."""
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        producer.claim_many(4, 0).publish()
        header = ring._header
        written_by_gpu(ring, 6)
        unpay(ring, producer.peer, 2)
        with frames.acquire_many(4, 0) as batch:
            assert seqs_of(batch) == [4, 5]
        with pytest.raises(gpuring.RingTimeout, match="GPU work"):
            frames.acquire_many(4, 0)
        assert idle(frames)
        raw_verbs.raise_fence(header, producer.peer, 2, raw_verbs.work(header, producer.peer, 2))
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.redelivered) for slot in batch] == [(6, False), (7, False)]


def damage(ring, slot):
    """Gives a slot's frame 99 dimensions."""
    table = 4096 + 192 * ring._header.max_subscriptions + 256 * ring._header.max_peers
    words = np.memmap(f"/dev/shm/gpuring.{ring.name}", np.uint64, "r+")
    words[(table + 128 * slot + FIELDS["slot", "ndim"].offset) // 8] = 99


def test_a_damaged_frame_behind_the_first_is_told(name):
    """As with acquire, it is reported once and passed over.  The frames before it are not held."""
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        producer.claim_many(4, 0).publish()
        damage(ring, 2)
        with pytest.raises(gpuring.RingIncompatible):
            frames.acquire_many(4, 0)
        assert idle(frames)
        with frames.acquire_many(4, 0) as batch:
            assert seqs_of(batch) == [4, 5, 7]


class Full(Exception):
    pass


class NoRoom(tuple):
    def __init__(self, slots):
        raise Full


@pytest.fixture
def fail(monkeypatch):
    """Calls claim_many or acquire_many of an endpoint, while the batch object cannot be made."""

    def call(many):
        with monkeypatch.context() as patch:
            patch.setattr(many.__self__, "_batch", NoRoom)
            with pytest.raises(Full):
                many(4, 0)

    return call


def test_a_claim_that_raises_has_claimed_nothing(name, fail):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        fail(producer.claim_many)
        assert idle(producer)
        assert not any(slot._open for slot in producer._slots)
        producer.claim_many(4, 0).publish()
        assert drain(frames)


@pytest.mark.parametrize("lossless", [True, False])
def test_an_acquire_that_raises_holds_nothing(name, fail, lossless):
    with (
        small_ring(name) as ring,
        ring.producer() as producer,
        ring.consumer(lossless=lossless) as frames,
    ):
        producer.claim_many(4, 0).publish()
        fail(frames.acquire_many)
        assert idle(frames)
        assert not any(slot._open for slot in frames._slots)
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.lost, slot.redelivered) for slot in batch] == [
                (seq, 0, False) for seq in (4, 5, 6, 7)
            ]


def test_what_a_batch_gave_back_and_was_then_passed_counts_as_lost(name, fail):
    with (
        small_ring(name) as ring,
        ring.producer() as producer,
        ring.consumer(lossless=False) as frames,
    ):
        producer.claim_many(4, 0).publish()
        fail(frames.acquire_many)
        producer.claim_many(4, 0).publish()
        with frames.acquire_many(4, 0) as batch:
            assert [(slot.seq, slot.lost) for slot in batch] == [(8, 4), (9, 0), (10, 0), (11, 0)]

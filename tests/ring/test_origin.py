"""What readers learn of frames that a bridge has brought: where they come from, and what was lost
on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import gpuring
from gpuring import Consumer, Producer, Ring
from gpuring.cli.inspect import describe
from gpuring.registry.stats import Link
from gpuring.ring import inner
from tests.helpers.rings import create_far

HOST = {"slots": 8, "shape": (2,), "dtype": "u1", "device": "host"}
FROM = {"host": "camera-host", "ring": "cam0"}


@pytest.fixture
def ring(name: str) -> Iterator[Ring]:
    with create_far(name, FROM, **HOST) as made:
        yield made


def bring(producer: Producer, *losts: int) -> None:
    """Publishes frames as an importer does.  Each number is how many were lost in all before that
    frame."""
    for lost in losts:
        with producer.claim(timeout=0) as slot:
            slot._set_origin(1000 + slot._seq, 5_000_000_000 + slot._seq, lost)


def own(producer: Producer, frames: int = 1) -> None:
    for _ in range(frames):
        producer.claim(timeout=0).publish()


def losses(frames: Consumer, n: int) -> list[int]:
    """`slot.lost` of the next n frames."""
    told = []
    for _ in range(n):
        with frames.acquire(0) as slot:
            told.append(slot.lost)
    return told


def agrees(ring: Ring, consumer: Consumer, told: int) -> bool:
    """Whether the statistics say that the consumer, the only member of its subscription, has missed
    so many."""
    seen = ring.stats()
    peer = next(peer for peer in seen.peers if peer.number == consumer.peer)
    sub = next(sub for sub in seen.subscriptions if sub.name == consumer.subscription)
    return peer.lost == sub.lost == told


# ---- origin ------------------------------------------------------------------------------------


def test_a_frame_says_where_it_comes_from_to_every_process(ring):
    with ring.producer() as producer, ring.consumer() as frames, gpuring.attach(ring.name) as other:
        others = other.consumer()
        bring(producer, 0)
        with frames.acquire(0) as slot, others.acquire(0) as read:
            assert slot.origin == gpuring.Origin(1008, "camera-host", "cam0", 5_000_000_008)
            assert slot.origin.ring == "cam0"
            assert read.origin == slot.origin
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            _ = slot.origin


def test_the_age_counts_from_the_first_publication(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim(timeout=0) as slot:
            slot._set_origin(7, time.time_ns() - 3_600_000_000_000, 0)
        with frames.acquire(0) as read:
            assert read.origin is not None
            assert 3600 <= read.origin.age < 3600 + 600
            assert read.age < 600


def test_an_ordinary_frame_has_no_origin_also_in_a_slot_that_had_one(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        bring(producer, *[0] * 8)
        for _ in range(8):
            frames.acquire(0).release()
        own(producer)
        with frames.acquire(0) as slot:
            assert slot.seq == 16
            assert slot.origin is None


def test_a_frame_with_an_origin_in_a_ring_that_nobody_made_for_it(name):
    with (
        gpuring.create(name, **HOST) as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        bring(producer, 0)
        with frames.acquire(0) as slot:
            assert slot.origin == (1008, "", "", 5_000_000_008)


# ---- lost --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lossless", [True, False], ids=["lossless", "lossy"])
def test_what_was_lost_upstream_counts(ring, lossless):
    with ring.producer() as producer, ring.consumer(lossless=lossless) as frames:
        bring(producer, 7, 7, 10, 10, 11)  # 7 were lost before this consumer was there
        assert losses(frames, 5) == [0, 0, 3, 0, 1]
        assert agrees(ring, frames, 4)


def test_what_was_lost_upstream_since_the_ring_was_made_counts_from_its_beginning(name):
    with create_far(name, FROM, about={"lost": 3}, **HOST) as ring, ring.producer() as producer:
        with ring.consumer(start="oldest") as first:
            bring(producer, 8)
            assert losses(first, 1) == [5]
        with ring.consumer() as late:
            bring(producer, 9)
            assert losses(late, 1) == [0]


def test_a_lossy_reader_that_is_overtaken_has_both(ring):
    with ring.producer() as producer, ring.consumer(lossless=False) as frames:
        bring(producer, 0)
        frames.acquire(0).release()
        bring(producer, 1, 1, 3, 3, 3, 3, 4, 4, 4, 5)  # the first two of ten were overwritten
        with frames.acquire(0) as slot:
            assert slot.seq == 11
            assert slot.lost == 2 + 3
        assert agrees(ring, frames, 5)
        with frames.latest(0) as slot:
            assert slot.seq == 18
            assert slot.lost == 6 + 2
        assert agrees(ring, frames, 13)


@pytest.mark.parametrize("waits", ["sync", "async"])
def test_a_loop_counts(ring, waits):
    async def told(frames: Consumer) -> list[int]:
        return [slot.lost async for slot in frames]

    with ring.producer() as producer, ring.consumer() as frames:
        bring(producer, 0, 2, 2, 5)
        producer.close()
        found = [slot.lost for slot in frames] if waits == "sync" else asyncio.run(told(frames))
        assert found == [0, 2, 0, 3]
        assert agrees(ring, frames, 5)


def test_a_batch_counts(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        bring(producer, 0, 2, 2)
        with frames.acquire_many(8, 0) as batch:
            assert [slot.lost for slot in batch] == [0, 2, 0]
        bring(producer, 6, 6)
        with frames.acquire_many(8, 0) as batch:
            assert [slot.lost for slot in batch] == [4, 0]
        assert agrees(ring, frames, 6)


def test_select_counts(ring, name):
    with (
        create_far(f"{name}-other", FROM, **HOST) as second,
        ring.producer() as one,
        second.producer() as two,
        ring.consumer() as first_frames,
        second.consumer() as second_frames,
    ):
        bring(one, 0, 3)
        bring(two, 5, 6)
        told: dict[str, list[int]] = {"one": [], "two": []}
        while ready := gpuring.select([first_frames, second_frames], timeout=0):
            for frames in ready:
                with frames.acquire(0) as slot:
                    told["one" if frames is first_frames else "two"].append(slot.lost)
        assert told == {"one": [0, 3], "two": [0, 1]}


def test_the_count_goes_on_through_zero(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        bring(producer, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 2)
        assert losses(frames, 4) == [0, 1, 1, 2]


def test_frames_without_an_origin_count_nothing(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        own(producer)
        bring(producer, 4)
        own(producer)
        bring(producer, 6)
        assert losses(frames, 4) == [0, 0, 0, 2]


def test_each_member_counts_from_its_own_last_frame(ring):
    with ring.producer() as producer:
        one, two = ring.consumer("shared"), ring.consumer("shared")
        bring(producer, 0, 0, 3, 3)
        assert [losses(member, 1) for member in (one, two, one, two)] == [[0], [0], [3], [3]]
        seen = ring.stats()
        assert [peer.lost for peer in seen.peers if peer.role == "consumer"] == [3, 3]
        assert seen.subscriptions[0].lost == 6


def test_an_older_frame_that_comes_back_counts_nothing(ring):
    with ring.producer() as producer:
        one, two = ring.consumer("shared"), ring.consumer("shared")
        bring(producer, 0, 1, 4, 4)
        one.acquire(0).release()
        given = one.acquire(0)  # one was lost before this frame
        assert given.seq == 9
        two.acquire(0).release()
        one._put_back(given.index)
        with two.acquire(0) as slot:
            assert (slot.seq, slot.lost) == (9, 0)
        with two.acquire(0) as slot:
            assert (slot.seq, slot.lost) == (11, 0)
        assert {peer.lost for peer in ring.stats().peers if peer.number == two.peer} == {0}


@pytest.mark.parametrize("lossless", [True, False], ids=["lossless", "lossy"])
def test_what_was_told_with_a_frame_that_is_given_back_is_told_again(ring, lossless):
    with ring.producer() as producer, ring.consumer(lossless=lossless) as frames:
        bring(producer, 0, 2, 2, 5)
        frames.acquire(0).release()
        for _ in range(3):
            slot = frames.acquire(0)
            frames._put_back(slot.index)
        assert losses(frames, 3) == [2, 0, 3]
        assert agrees(ring, frames, 5)


@pytest.mark.parametrize("lossless", [True, False], ids=["lossless", "lossy"])
def test_what_was_told_with_a_batch_that_is_given_back_comes_with_the_first_frame(ring, lossless):
    """A Ctrl-C that comes before the caller has the batch gives it back."""
    with ring.producer() as producer, ring.consumer(lossless=lossless) as frames:
        bring(producer, 0, 2, 3, 3, 7)
        frames.acquire(0).release()
        for told in ([2, 1, 0, 4], [7, 0, 0, 0]):
            batch = frames.acquire_many(8, 0)
            assert [slot.lost for slot in batch] == told
            for slot in reversed(batch):
                frames._put_back(slot.index)
        with frames.acquire_many(8, 0) as batch:
            assert [slot.lost for slot in batch] == [7, 0, 0, 0]
        assert agrees(ring, frames, 7)


# ---- the tools -----------------------------------------------------------------------------------


def test_the_statistics_and_inspect_say_where_the_frames_come_from(ring, name):
    near = "its frames come from ring cam0 of camera-host"
    link = ring.stats().link
    assert link == Link("camera-host", "cam0", "", 0, 0, None, None)
    assert f"{near}, and none has come yet" in describe(ring.stats())
    with ring.producer() as producer:
        inner.set_link(ring, b"n" * 16, 1006, 0)
        assert f"{near}, up to its sequence 1006\n" in describe(ring.stats())
        bring(producer, 3)
        (seen,) = (one for one in gpuring.ls() if one.name == name)
        heard_s = seen.link.heard_s
        assert 0 <= heard_s < 60
        epoch = (b"n" * 16).hex()
        assert seen.link == Link("camera-host", "cam0", epoch, 1008, 3, None, heard_s)
        assert f"{near}, up to its sequence 1008; 3 before it were lost" in describe(seen)


def test_an_ordinary_ring_has_no_link(name):
    with gpuring.create(name, **HOST) as ring:
        assert ring.stats().link is None
        assert "come from" not in describe(ring.stats())


def test_the_names_of_an_origin_may_be_anything(name):
    odd = {"host": "\x1b[31mred", "ring": "x" * 200}
    with create_far(name, odd, **HOST) as ring:
        text = describe(ring.stats(), 80)
        assert "\x1b" not in text
        assert r"\x1b[31mred" in text

"""A client in C and Python programs hand frames to each other in one ring."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import gpuring
from tests.helpers.compiled import needs_compiler
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.rings import bells, waiters
from tests.native.stranger import Frame, Stranger, drain, frame_of, make, once, produce

pytestmark = needs_compiler

MANY = [2_000, 100_000]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("frames", MANY)
def test_a_client_reads_each_frame_of_a_python_producer(name, stranger, frames):
    with make(name) as ring:
        reader = stranger("consume", name, "x", "lossless", "next")
        assert reader.number() == 0
        with ring.producer() as producer:
            made = produce(producer, 7, range(frames))
        assert reader.end() == "ended"
        assert reader.frames == made
        assert waiters(ring) == 0
        assert ring.stats().subscriptions == ()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("frames", MANY)
def test_python_consumers_read_each_frame_of_a_client(name, stranger, frames):
    with make(name) as ring, ring.consumer("a") as one, ring.consumer("b", lossless=False) as other:
        writer = stranger("produce", name, 9, frames)
        got = drain(one)
        assert [each.k for each in got] == [*range(frames)]
        assert {each.who for each in got} == {9}
        assert [*range(8, 8 + frames)] == [each.seq for each in got]
        assert writer.end() == "done"
        assert set(drain(other)) <= set(got)
        assert ring.stats().producers_left == 1


def test_nobody_is_woken_where_nobody_sleeps(name, stranger):
    with make(name) as ring:
        assert stranger("produce", name, 9, 100).end() == "done"
        assert bells(ring) == 0


def test_a_client_that_sleeps_is_woken(name, stranger):
    """The bell rises with some of the frames.  With others the client was awake."""
    with make(name) as ring, ring.producer() as producer:
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        before = bells(ring)
        for k in range(5):
            poll(lambda: waiters(ring) == 1)
            produce(producer, 7, [k])
            reader.has(k + 1)
        assert bells(ring) > before


def test_a_client_wakes_who_sleeps(name, stranger):
    with make(name) as ring:
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        writer = stranger("produce", name, 9, 6, paused=True)
        writer.said("claimed 8")
        before = bells(ring)
        for k in range(5):
            poll(lambda: waiters(ring) == 1)
            writer.step()
            reader.has(k + 1)
        assert bells(ring) > before


def test_all_share_one_subscription(name, stranger):
    """Two producers and two members, one of each kind."""
    with make(name) as ring, ring.consumer("g") as member:
        reader = stranger("consume", name, "g", "lossless", "next")
        reader.number()
        with ring.producer() as producer:
            writer = stranger("produce", name, 9, 1000)
            writer.number()
            made, got = [], []
            for k in range(1000):
                made += produce(producer, 7, [k])
                got += take(member)
            while writer.process.poll() is None:
                got += take(member)
            assert writer.end() == "done"
        got += drain(member)
        assert reader.end() == "ended"
        assert got
        assert reader.frames
        assert once(got + reader.frames) == once(made + writer.frames)


def take(consumer: gpuring.Consumer) -> list[Frame]:
    """The next frame, if there is one."""
    try:
        with consumer.acquire(timeout=0) as slot:
            return [frame_of(slot)]
    except gpuring.RingTimeout:
        return []


# ---- lossy, latest -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "seen"), [("lossy", [8, 21, 22, 23, 25, 26, 28]), ("latest", [8, 28])]
)
def test_a_lossy_client_is_overtaken_and_counts_it(name, stranger, mode, seen):
    """The client holds 8, so 16 and 24 turn void in its slot.  27 is abandoned."""
    with make(name) as ring:
        reader = stranger("consume", name, "x", mode, "next", paused=True)
        reader.number()
        with ring.producer() as producer:
            produce(producer, 7, [0])
            reader.has(1)
            assert produce(producer, 7, range(1, 17))[-1].seq == 26
            with producer.claim() as slot:
                assert slot.seq == 27
                slot.abandon()
            assert produce(producer, 7, [17])[0].seq == 28
        reader.free()
        assert reader.end() == "ended"
        assert [each.seq for each in reader.frames] == seen
        assert reader.lost() == 29 - 8 - len(seen)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("frames", [2_000, 150_000])
def test_lossy_clients_have_whole_frames_and_count_the_rest(name, stranger, frames):
    """Two writers overwrite what the readers are about to take, and the client checks each word."""
    with make(name, words=64, slots=2) as ring:
        readers = {
            mode: stranger("consume", name, mode, mode, "next") for mode in ("lossy", "latest")
        }
        for reader in readers.values():
            reader.number()
        with ring.producer() as producer:
            writer = stranger("produce", name, 9, frames)
            made = produce(producer, 7, range(frames))
            assert writer.end() == "done"
        made += writer.frames
        behind = {"lossy": ring.stats().cursor, "latest": max(each.seq for each in made) + 1}
        for mode, reader in readers.items():
            assert reader.end() == "ended"
            seqs = [each.seq for each in reader.frames]
            assert seqs == sorted(set(seqs))
            assert set(reader.frames) <= set(made)
            assert reader.lost() + len(seqs) == behind[mode] - 2


def test_a_late_lossy_client_begins_where_it_is_told(name, stranger):
    with make(name) as ring, ring.producer() as producer:
        produce(producer, 7, range(20))
        readers = {
            start: stranger("consume", name, start, "lossy", start) for start in ("oldest", 26)
        }
        for reader in readers.values():
            reader.number()
        produce(producer, 7, [20])
        producer.close()
        for reader in readers.values():
            assert reader.end() == "ended"
        # of N slots, oldest gives at most N - 1 frames: 28 is the next one to be claimed
        assert [each.seq for each in readers["oldest"].frames] == [*range(21, 29)]
        assert [each.seq for each in readers[26].frames] == [26, 27, 28]


def test_a_second_member_has_lost_nothing_that_came_before(name, stranger):
    with make(name) as ring, ring.consumer("x", lossless=False), ring.producer() as producer:
        produce(producer, 7, range(40))
        reader = stranger("consume", name, "x", "lossy", "next")
        reader.has(8)
        producer.close()
        assert reader.end() == "ended"
        assert [each.seq for each in reader.frames] == [*range(40, 48)]
        assert reader.lost() == 0


def test_a_client_does_not_write_into_a_frame_that_is_read(name, stranger):
    """Sequences that it claims in the slot of a lossy reader turn void."""
    with make(name) as ring, ring.consumer(lossless=False) as reader, ring.producer() as producer:
        made = produce(producer, 7, [0])
        with reader.acquire(timeout=PATIENCE_S) as slot:
            writer = stranger("produce", name, 9, 20)
            assert writer.end() == "done"
            assert [frame_of(slot)] == made
            assert [each.seq for each in writer.frames] == [
                seq for seq in range(9, 9 + 22) if seq not in (16, 24)
            ]


def test_the_newest_frame_may_be_one_that_is_still_written(name, stranger):
    """The ring is closed while a producer writes.  A reader of the newest frame waits for it."""
    ring = make(name)
    reader = stranger("consume", name, "x", "latest", "next")
    reader.number()
    writer = stranger("produce", name, 9, 1, paused=True)
    writer.said("claimed 8")
    poll(lambda: waiters(ring) == 1)
    ring.close()
    slept = sleeps(reader)
    poll(lambda: sleeps(reader) >= slept + 2)  # it has looked in between
    writer.step()
    assert writer.end() == "done"
    assert reader.end() == "ended"
    assert reader.frames == writer.frames == [Frame(8, 9, 0)]


def sleeps(process: Stranger) -> int:
    process.check()
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


# ---- a process that stands still -----------------------------------------------------------------


def test_a_writer_that_is_stopped_is_waited_for(name, stranger):
    with make(name) as ring, ring.consumer() as consumer:
        writer = stranger("produce", name, 9, 1, paused=True)
        writer.said("claimed 8")
        writer.stop()
        with pytest.raises(gpuring.RingTimeout, match=f"pid {writer.pid}"):
            consumer.acquire(timeout=0.1)
        writer.step()
        writer.send(signal.SIGCONT)
        assert drain(consumer) == [Frame(8, 9, 0)]
        assert writer.end() == "done"
        assert ring.stats().reaps == 0


def test_a_reader_that_is_stopped_is_waited_for(name, stranger):
    with make(name) as ring, ring.producer() as producer:
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        reader.stop()
        made = produce(producer, 7, range(8))
        with pytest.raises(gpuring.RingFull, match="subscription 'x'"):
            producer.claim(timeout=0.1)
        reader.send(signal.SIGCONT)
        made += produce(producer, 7, range(8, 100))
        producer.close()
        assert reader.end() == "ended"
        assert reader.frames == made
        assert ring.stats().reaps == 0


def test_a_client_that_is_told_to_end_gives_back_what_it_has(name, stranger):
    with make(name) as ring, ring.consumer("x") as member:
        writer = stranger("produce", name, 9, 2, paused=True)
        reader = stranger("consume", name, "x", "lossless", "next", paused=True)
        reader.number()
        writer.said("claimed 8")
        writer.step()
        writer.said("claimed 9")
        reader.has(1)
        reader.send(signal.SIGTERM)
        writer.send(signal.SIGTERM)
        assert reader.end() == writer.end() == "done"
        assert drain(member) == [Frame(8, 9, 0)]
        assert ring.stats().reaps == 0

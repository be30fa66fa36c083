"""Ends, deaths, pauses and restarts of the elements, in any order."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from tests.gstreamer.pipelines import SHOWN, numbers, of_size, publish, read, taken_for_dead
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.helpers.rings import put, small_ring
from tests.helpers.words import locked


def read_what_is_there(frames):
    """Reads until nothing more comes, because the producer is stopped."""
    found = []
    with contextlib.suppress(gpuring.RingTimeout):
        while True:
            with frames.acquire(0.1) as slot:
                found.append(round(slot.meta["pts"] / 40_000_000))
    return found


def in_a_row(numbers):
    return [b - a for a, b in itertools.pairwise(numbers)] == [1] * (len(numbers) - 1)


def test_a_killed_sink_is_told_of_and_another_one_takes_its_place(name, launch):
    sink = launch(f"{numbers()} ! gpuringsink ring={name} readers=1")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        assert read(frames, 20) == [*range(20)]
        sink.kill()
        with pytest.raises(gpuring.PeerLost):
            read(frames, 20)
    again = launch(f"{numbers(30)} ! gpuringsink ring={name} readers=1")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        assert read(frames, 30) == [*range(30)]
        with pytest.raises(gpuring.EndOfStream):
            read(frames, 1)
    again.end()
    command("clean", name)


def test_a_killed_source_holds_up_nobody(name, launch):
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        source = launch(f"gpuringsrc ring={name} ! fakesink")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(20))
        source.kill()
        publish(producer, range(20))
        again = launch(f"gpuringsrc ring={name} ! fakesink")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(20))
        producer.close()
        again.end()


def dies_with_a_claim(pipe, name):
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        pipe.ask()
        publish(producer, range(3))
        producer.claim(PATIENCE_S)
        pipe.ask()


def writes_and_dies_with_a_claim(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        publish(producer, range(3))
        producer.claim(PATIENCE_S)
        pipe.ask()


@pytest.mark.parametrize("drop", ["true", "false"])
def test_a_sink_whose_ring_is_closed_says_what_a_pipeline_can_do(drop, name, launch):
    with small_ring(name, slots=4, shape=(36, 64)) as ring:
        sink = launch(f"{numbers()} ! gpuringsink ring={name} create=false drop={drop}")
        poll(lambda: ring.stats().producers)
    said = sink.end(1)
    assert "Start the pipeline again" in said
    assert "reattach" not in said


@pytest.mark.slow
def test_a_sink_that_cannot_leave_its_ring_says_so(name, launch):
    """Another process has the membership lock when the last frame was written."""
    with small_ring(name, slots=2, shape=(36, 64, 3)) as ring, ring.consumer() as frames:
        sink = launch(
            "videotestsrc num-buffers=4 ! video/x-raw,format=RGB,width=64,height=36 "
            f"! gpuringsink ring={name} create=false", "-v",
        )  # fmt: skip
        poll(lambda: any(peer.waiting for peer in ring.stats().producers))
        with locked(name):
            for _ in range(4):
                frames.acquire(PATIENCE_S).release()
            said = sink.end()
    assert "WARNING: from element" in said
    assert "GPURING_TIMEOUT" in said


def test_the_words_of_a_dead_producer_are_on_the_bus(name, launch, children):
    child = up(children(dies_with_a_claim, name))
    source = launch(f"gpuringsrc ring={name} ! fakesink")
    with gpuring.attach(name) as ring, ring.consumer() as frames:
        poll(lambda: len(ring.stats().subscriptions) == 2)
        child.ask()
        child.kill()
        for _ in range(3):
            frames.acquire(PATIENCE_S).release()
        with pytest.raises(gpuring.PeerLost) as error:
            frames.acquire(PATIENCE_S)
    said = source.end(1)
    assert str(error.value) in said
    assert "GPURING_PEER_LOST" in said
    command("clean", name)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_source_that_reattaches_goes_on_in_the_next_ring(how, name, launch, children):
    source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
    if how == "killed":
        child = up(children(dies_with_a_claim, name))
        with gpuring.attach(name) as ring:
            poll(lambda: ring.stats().subscriptions)
        child.ask()
        child.kill()
    else:
        with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
            poll(lambda: ring.stats().subscriptions)
            publish(producer, range(3))
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        publish(producer, range(3))  # the source begins with the oldest frame
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(3))
        assert "goes on in the next ring of that name" in source.until("chain", 9)
        assert "chain" not in source.interrupt()


def test_a_source_that_reattaches_keeps_its_place_in_a_ring_that_stays(name, launch):
    with small_ring(name, slots=4, shape=(4, 8)) as ring:
        source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        for k, frames in enumerate((10, 2, 3)):  # fewer than were read before, and more
            with ring.producer() as producer:
                publish(producer, range(frames))
            said = source.until("END_OF_STREAM", 1)
            assert said.count("chain") == frames
            assert said.count("goes on with the next producer") == min(k, 1)
        assert "chain" not in source.interrupt()


def test_a_source_that_was_taken_for_dead_joins_again(name, launch):
    """The source says so, begins behind the last frame that it had, and counts what it has
    missed."""
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(3))
        source.until("chain", 3)
        taken_for_dead(source.pid, name)
        poll(lambda: ring.stats().deaths)
        said = source.until("has joined again", 1)
        assert "this peer was taken for dead" in said
        publish(producer, range(6))
        assert source.until("chain", 6).count("chain") == 6
        assert "chain" not in source.interrupt()


@pytest.mark.parametrize("had", [0, 3])
def test_a_source_that_joins_again_twice_reads_no_frame_that_was_there_before(had, name, launch):
    """The source gets no frame in between.  It may also have had none before."""
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        publish(producer, range(3))
        source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(had))
        if had:
            source.until("chain", had)
            poll(lambda: ring.stats().subscriptions[0].lag == 0)
        for _ in range(2):
            taken_for_dead(source.pid, name)
            assert "chain" not in source.until("has joined again", 1)
        (seq,) = put(producer)
        assert f"offset: {seq}," in source.until("chain", 1)


def gives_up_a_claim(ring, producer):
    producer.claim(PATIENCE_S).abandon()
    publish(producer, range(2))


def lets_another_one_read(ring, producer):
    other = ring.consumer(subscription="s")
    publish(producer, range(3))
    for _ in range(3):
        other.acquire(PATIENCE_S).release()
    publish(producer, range(2))


def overwrites(ring, producer):
    publish(producer, range(10))


@pytest.mark.parametrize(
    ("does", "options", "has_lost"),
    [
        (gives_up_a_claim, "", False),
        (lets_another_one_read, "subscription=s", False),
        (overwrites, "", True),
    ],
)
def test_a_source_that_joins_again_counts_what_was_overwritten(
    does, options, has_lost, name, launch
):
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        source = launch(f"gpuringsrc ring={name} reattach=true {options} ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(3))
        source.until("chain", 3)
        poll(lambda: ring.stats().subscriptions[0].lag == 0)
        source.stop()
        taken_for_dead(source.pid, name)
        poll(lambda: ring.stats().deaths)
        does(ring, producer)
        source.go_on()
        said = source.until("has joined again", 1) + source.until("chain", 1)
        assert ("discont" in said) == has_lost
        assert "discont" not in source.until("chain", 1)  # the loss is marked once


def test_a_source_does_not_take_the_death_of_its_producer_for_its_own(name, launch, children):
    """The next producer comes while the source waits to look for one."""
    with small_ring(name, slots=4, shape=(4, 8)) as ring:
        source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        child = up(children(writes_and_dies_with_a_claim, name))
        child.kill()
        source.until("INFO", 1)
        with ring.producer() as producer:
            publish(producer, range(2))
            said = source.until("chain", 2)
        assert "has joined again" not in said
        assert "discont" not in said


def test_a_stopped_sink_and_a_stopped_source_lose_nothing(name, launch):
    sink = launch(f"{numbers()} ! gpuringsink ring={name}-a readers=1")
    between = launch(f"gpuringsrc ring={name}-a ! gpuringsink ring={name}-b readers=1")
    had = []
    with gpuring.attach(f"{name}-b", timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        for each in (sink, between, sink, between):
            had += read(frames, 30)
            each.stop()
            had += read_what_is_there(frames)
            each.go_on()
        had += read(frames, 30)
    assert in_a_row(had)
    sink.interrupt()
    between.interrupt()


@pytest.mark.parametrize("waits", ["for a ring", "for frames"])
def test_a_ctrl_c_ends_a_source_that_waits(waits, name, launch):
    with small_ring(name, slots=4, shape=(4, 8)) as ring:
        of = name if waits == "for frames" else f"{name}-2"
        source = launch(f"gpuringsrc ring={of} ! fakesink", "-v")
        source.until("to PLAYING", 1)
        if waits == "for frames":
            poll(lambda: ring.stats().subscriptions)
        source.interrupt()
        assert not ring.stats().subscriptions


@pytest.mark.parametrize("waits", ["for readers", "for a slot"])
def test_a_ctrl_c_ends_a_sink_that_waits(waits, name, launch):
    readers = 1 if waits == "for a slot" else 2
    sink = launch(f"{numbers()} ! gpuringsink ring={name} readers={readers}")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        if waits == "for a slot":
            poll(lambda: ring.stats().subscriptions[0].lag == 8)
        sink.interrupt()
        if waits == "for a slot":
            assert read(frames, 8) == [*range(8)]
        with pytest.raises((gpuring.EndOfStream, gpuring.RingClosed)):
            read(frames, 1)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name)


@pytest.mark.parametrize(
    "who", ["gpuringsrc {} ! fakesink", f"{numbers()} ! gpuringsink {{}} create=false"]
)
def test_the_words_of_a_ring_that_is_missing_are_on_the_bus(who, name, launch):
    said = launch(who.format(f"ring={name} timeout=0.2")).end(1)
    with pytest.raises(gpuring.RingNotFound) as error:
        gpuring.attach(name)
    assert str(error.value).partition(":")[0] in said  # the rest lists the rings of the host
    assert "No living ring of that name came within 0.2 s" in said
    assert "GPURING_NOT_FOUND" in said


def test_a_timeout_may_be_as_long_as_it_likes(name, launch):
    """A long timeout lasts longer than a short one that began later.  There are eight sources,
    because a time that has overflowed is right again in the next microsecond."""
    source = launch(f"gpuringsrc ring={name} timeout=1e300 ! fakesink " * 8, "-v")
    source.until("to PLAYING", 1)
    launch(f"gpuringsrc ring={name} timeout=0.2 ! fakesink").end(1)
    assert source.process.poll() is None
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        poll(lambda: len(ring.stats().subscriptions) == 8)
        publish(producer, range(3))
        producer.close()
        source.end()


@pytest.mark.parametrize("continued", [False, True], ids=["killed", "stopped in it"])
def test_a_ring_of_the_dead_with_other_slots_makes_way(name, launch, continued):
    """A source moves to the new ring, and so does a program that is in the old one."""
    source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
    sink = launch(f"{numbers()} ! gpuringsink ring={name} readers=2")
    ring = gpuring.attach(name, timeout=PATIENCE_S)
    with ring.consumer(lossless=False, reattach=True) as frames:
        read(frames, 2)
        sink.kill()
        if continued:
            launch(f"{numbers(3)} ! gpuringsink ring={name}").end()
            assert ring.stats().creator_alive is False
        wide = launch(f"{of_size(640, 36, 'GRAY8', 3)} ! gpuringsink ring={name} readers=2")
        while (slot := frames.acquire(PATIENCE_S)).array.shape != (36, 640):
            slot.release()
        assert slot.restarted
        slot.release()
        source.until("width=(int)640", 1)
        wide.end()


def test_a_ring_of_the_dead_that_is_just_being_removed_makes_way(name, launch):
    """The last reader may remove it, for example."""
    sink = launch(f"{numbers()} ! gpuringsink ring={name}")
    header = Path(f"/dev/shm/gpuring.{name}")
    poll(header.exists)
    sink.kill()
    with header.open("r+b") as file:
        assert native.lock(file.fileno(), native.NAME_BYTE)
        again = launch(f"{numbers(3)} ! gpuringsink ring={name} readers=1")
        poll(lambda: [*header.parent.glob(f"{header.name}+*.header")] or again.process.poll())
        assert again.process.returncode is None
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        assert read(frames, 3) == [*range(3)]
    again.end()


def test_a_ring_of_the_dead_in_which_a_sink_goes_on_makes_way_for_other_caps(name, launch):
    sink = launch(f"{numbers()} ! gpuringsink ring={name} readers=1")
    with (
        gpuring.attach(name, timeout=PATIENCE_S) as ring,
        ring.consumer(lossless=False, reattach=True) as frames,
    ):
        read(frames, 2)
        sink.kill()
        parts = f"{numbers(3)} ! c. {of_size(640, 36, 'GRAY8', 3)} ! c."
        again = launch(f"concat name=c ! gpuringsink ring={name} readers=1 {parts}")
        while frames.acquire(PATIENCE_S).array.shape != (36, 640):
            pass
        again.end()


def test_a_sink_does_not_mix_its_frames_with_those_of_a_program_that_runs(name, launch):
    """create=false asks for it.  A ring of the dead is in use while somebody writes into it."""
    first = launch(f"{numbers()} ! gpuringsink ring={name} readers=1")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        said = launch(f"{numbers(3)} ! gpuringsink ring={name}").end(1)
        assert f"ring '{name}' is in use: its creator, pid {first.pid}, is alive" in said
        assert "create=false" in said
        second = launch(f"{numbers()} ! gpuringsink ring={name} create=false")
        while len(ring.stats().producers) < 2:
            read(frames, 1)
        first.kill()
        said = launch(f"{numbers(3)} ! gpuringsink ring={name}").end(1)
        assert f"ring '{name}' is in use: it has a producer" in said
        second.kill()
    command("clean", name)


@pytest.mark.parametrize(
    ("given", "told"),
    [("", "needs the name of a ring"), ("ring=x timeout=-0.5", "has timeout=-0.5, and of the")],
)
def test_elements_need_a_name_and_a_timeout_that_means_something(given, told, launch):
    assert told in launch(f"gpuringsrc {given} ! fakesink").end(255)
    assert told in launch(f"{numbers()} ! gpuringsink {given}").end(255)

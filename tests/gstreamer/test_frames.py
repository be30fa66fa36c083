"""Frames in pipelines: their sizes and caps, their times, and losses."""

from __future__ import annotations

import re

import pytest

import gpuring
from tests.gstreamer.pipelines import GRAY, META, SHOWN, numbers, of_size, publish, read
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.rings import small_ring


def test_caps_that_the_slots_do_not_hold_are_told_of(name, launch):
    with gpuring.create(name, slots=2, shape=(4, 8, 3), dtype="u1", device="host"):
        said = launch(f"{numbers()} ! gpuringsink ring={name} create=false").end(1)
        assert f"ring '{name}': its slots hold array (4, 8, 3) |u1, not GRAY8 pictures" in said


def test_caps_that_the_metadata_does_not_hold_are_told_of(name, launch):
    caps = f"{GRAY},note=(string){'n' * 500}"
    said = launch(f"videotestsrc num-buffers=2 ! {caps} ! gpuringsink ring={name}").end(1)
    assert f"ring '{name}': the metadata `caps` has room for 512 bytes, and not for these" in said


def widths_in(said):
    return re.findall(r"fakesink0\.\S+sink: caps = .*?width=\(int\)(\d+)", said)


def test_smaller_pictures_go_into_the_same_ring(name, launch):
    sizes = [(64, 36), (32, 18), (64, 36)]
    parts = " ".join(f"{of_size(*each, 'RGB', 4)} ! c." for each in sizes)
    source = launch(f"gpuringsrc ring={name} ! fakesink", "-v")
    sink = launch(f"concat name=c ! gpuringsink ring={name} readers=2 {parts}")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        shapes = [slot.array.shape for slot in frames]
    assert shapes == [(height, width, 3) for width, height in sizes for _ in range(4)]
    sink.end()
    assert widths_in(source.end()) == ["64", "32", "64"]


def test_the_times_of_a_frame_are_its_own(name, launch):
    """The producer claims the slot again as soon as it may."""
    through = launch(
        f"gpuringsrc ring={name}-a copy=true ! gpuringsink ring={name}-b slots=64 readers=1"
    )
    launch(f"{numbers(2000)} ! gpuringsink ring={name}-a slots=4 readers=1")
    with gpuring.attach(f"{name}-b", timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        assert read(frames, 2000) == [*range(2000)]
    through.end()


def test_other_pictures_get_another_ring_and_a_source_follows(name, launch):
    sizes = [(64, 36), (96, 54)]
    parts = " ".join(f"{of_size(*each, 'NV12', 5)} ! c." for each in sizes)
    source = launch(f"gpuringsrc ring={name} reattach=true ! {SHOWN}", "-v")
    sink = launch(f"concat name=c ! gpuringsink ring={name} readers=1 {parts}")
    sink.end()
    said = source.until("chain", 10)
    assert "chain" not in source.interrupt()
    assert widths_in(said) == ["64", "96"]


def test_a_sink_that_drops_waits_for_nobody(name, launch):
    sink = launch(f"{numbers(30)} ! gpuringsink ring={name} readers=1 drop=true")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        sink.end()
        assert read(frames, 8) == [*range(8)]
        assert ring.stats().dropped == 22


def test_a_lossy_source_says_what_it_has_lost(name, launch):
    with small_ring(name, slots=4, shape=(4, 8)) as ring, ring.producer() as producer:
        source = launch(f"gpuringsrc ring={name} lossless=false ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, [0])
        source.until("chain", 1)  # the first buffer of every source is a discontinuity
        source.stop()
        publish(producer, range(20))
        source.go_on()
        producer.close()
        said = source.end()
    assert said.count("chain") == 4
    assert said.count("discont") == 1


@pytest.mark.parametrize("is_live", ["true", "false"])
def test_the_first_frame_plays_at_once_and_so_does_the_first_one_of_a_restart(
    is_live, name, launch
):
    """The sink waits for the clock, and the pts are those of pipelines that have run for long."""
    caps = b"video/x-raw,format=GRAY8,width=8,height=4,framerate=25/1"
    with small_ring(name, slots=16, shape=(4, 8), meta=META) as ring, ring.producer() as producer:
        source = launch(f"gpuringsrc ring={name} is-live={is_live} ! fakesink sync=true")
        poll(lambda: ring.stats().subscriptions)
        for hours in (5, 3):
            for k in range(3):
                pts = hours * 3_600_000_000_000 + 40_000_000 * k
                publish(producer, [0], pts=pts, caps=caps)
        producer.close()
        source.end()


@pytest.mark.parametrize("is_live", ["true", "false"])
def test_frames_whose_pts_begin_anew_play_behind_those_before(is_live, name, launch):
    """The frames come faster than they play, as those of two files, one after the other."""
    caps = b"video/x-raw,format=GRAY8,width=8,height=4,framerate=1/10"
    with small_ring(name, slots=4, shape=(4, 8), meta=META) as ring, ring.producer() as producer:
        source = launch(f"gpuringsrc ring={name} is-live={is_live} ! {SHOWN}", "-v")
        poll(lambda: ring.stats().subscriptions)
        for _ in range(2):
            for k in range(3):
                publish(producer, [0], pts=10_000_000_000 * k, caps=caps)
        producer.close()
        said = source.end()
    assert re.findall(r"pts: 0:00:(\d+)[.]0+,", said) == ["00", "10", "20", "30", "40", "50"]
    assert said.count("GstEventSegment") == 1


@pytest.mark.slow
def test_full_speed_without_a_loss(name, launch, record_property):
    """1080p NV12, as fast as they are made.  The rate depends on the machine."""
    frames = 1000
    source = launch(f"gpuringsrc ring={name} ! fakesink", "-v")
    sink = launch(
        f"videotestsrc pattern=black num-buffers={frames} ! video/x-raw,format=NV12,width=1920,"
        f"height=1080,framerate=25/1 ! gpuringsink ring={name} readers=2", "-v",
    )  # fmt: skip
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as reader:
        assert read(reader, frames) == [*range(frames)]
    took = re.search(r"Execution ended after (\d+):(\d+):([\d.]+)", sink.end())
    assert took
    source.end()
    seconds = float(took[3]) + 60 * int(took[2])
    record_property("frames_per_s", frames / seconds)
    print(f"{frames / seconds:.0f} frames/s")


@pytest.mark.parametrize(("samples", "shapes"), [(1024, [600, 1000, 1000]), (250, [250, 250, 100])])
def test_a_sink_that_reattaches_goes_on_in_the_next_ring(samples, shapes, name, launch):
    """The slots of that ring may have another size.  The first ring is closed when 400 samples of
    the first buffer are in it, and it is full."""
    of = {"slots": 4, "dtype": "<i2", "device": "host"}
    source = "audiotestsrc samplesperbuffer=1000 ! audio/x-raw,format=S16LE,channels=1"
    options = "create=false reattach=true readers=1"
    ring = gpuring.create(name, shape=(100, 1), **of)
    with ring, gpuring.attach(name) as second, second.consumer():
        sink = launch(f"{source} ! gpuringsink ring={name} {options}", "-v")
        poll(lambda: ring.stats().subscriptions[0].lag == 4)
        ring.close()
        sink.until("This sink goes on in the next ring of that name", 1)
    with gpuring.create(name, shape=(samples, 1), **of) as ring, ring.consumer() as frames:
        for expected in shapes:
            with frames.acquire(PATIENCE_S) as slot:
                assert slot.array.shape == (expected, 1)
    sink.kill()

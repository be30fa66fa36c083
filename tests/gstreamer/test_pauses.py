"""Pauses, restarts and queries, which gst-launch-1.0 has no option for."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuring
from tests.gstreamer.pipelines import taken_for_dead
from tests.helpers.compiled import CC
from tests.helpers.processes import PATIENCE_S, poll

SOURCE = Path(__file__).with_name("pauses.c")
FRAME_NS = 40_000_000
CAPS = b"video/x-raw,format=GRAY8,width=8,height=4,framerate=25/1"
OTHER_CAPS = b"video/x-raw,format=GRAY8,width=4,height=4,framerate=25/1"


@pytest.fixture(scope="module")
def program(plugins, tmp_path_factory):
    if CC is None or not shutil.which("pkg-config"):
        pytest.skip("no C compiler, or no pkg-config")
    made = tmp_path_factory.mktemp("pauses") / "pauses"
    asked = ["pkg-config", "--cflags", "--libs", "gstreamer-1.0"]
    flags = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    command = [CC, "-Wall", "-Wextra", "-Werror", SOURCE, "-o", made, *flags.stdout.split()]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return made


@pytest.fixture
def ring(name) -> Iterator[gpuring.Ring]:
    with gpuring.create(
        name, slots=4, shape=(4, 8), dtype="u1", meta=[("pts", "i8"), ("caps", "S512")],
        device="host",
    ) as ring:  # fmt: skip
        yield ring


@pytest.fixture
def play(program, plugins):
    """Starts a pipeline in the program.  Returns a function that sends the program a line and gets
    its answer."""
    started = []

    def play(pipeline):
        process = subprocess.Popen(
            [program, pipeline], env=os.environ | plugins, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)

        def ask(what):
            process.stdin.write(f"{what}\n")
            return process.stdout.readline().rstrip()

        ask.pid = process.pid
        return ask

    yield play
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def player(ring, play):
    ask = play(f"gpuringsrc name=it ring={ring.name} ! fakesink sync=false")
    poll(lambda: ring.stats().subscriptions)
    return ask


def publish(producer, frames, timeout=PATIENCE_S, caps=CAPS):
    for k in frames:
        with producer.claim(timeout) as slot:
            slot.meta["pts"], slot.meta["caps"] = k * FRAME_NS, caps


def test_a_pause_holds_up_the_producer_and_loses_nothing(ring, player):
    with ring.producer() as producer:
        publish(producer, range(20))
        assert player("frames 20") == "frames 20"
        assert player("pause") == "PAUSED"
        with pytest.raises(gpuring.RingFull):
            publish(producer, range(20, 40), timeout=0.1)
        assert player("play") == "PLAYING"
        publish(producer, range(20))
        counted = int(player("frames 40").split()[1])
        assert 40 <= counted <= 46
        assert player("lost") == "lost 0"


def test_a_latency_query_is_answered(ring, player):
    with ring.producer() as producer:
        publish(producer, range(2))
        assert player("frames 2") == "frames 2"
        assert player("latency") == f"latency 1 1 {FRAME_NS} {4 * FRAME_NS}"


def test_a_stopped_pipeline_leaves_the_ring_and_plays_again(ring, player):
    with ring.producer() as producer:
        for k in range(3):
            publish(producer, range(10))
            assert player(f"frames {10 * k + 10}") == f"frames {10 * k + 10}"
            assert player("stop") == "NULL"
            assert not ring.stats().subscriptions
            publish(producer, range(10))
            assert player("play") == "PLAYING"
            poll(lambda: ring.stats().subscriptions)


def test_the_frames_after_a_stop_play_at_once_whatever_their_pts_is(ring, play):
    with ring.producer() as producer:
        ask = play(f"gpuringsrc name=it ring={ring.name} ! fakesink sync=true")
        for k, begin in enumerate((0, 100_000)):
            poll(lambda: ring.stats().subscriptions)
            publish(producer, range(begin, begin + 3))
            assert ask(f"frames {3 * k + 3}") == f"frames {3 * k + 3}"
            assert ask("stop") == "NULL"
            assert ask("play") == "PLAYING"


def test_frames_play_at_once_after_a_pause_in_which_others_were_dropped(ring, play):
    with ring.producer() as producer:
        ask = play(f"gpuringsrc name=it ring={ring.name} ! fakesink sync=true")
        poll(lambda: ring.stats().subscriptions)
        publish(producer, range(3))
        assert ask("frames 3") == "frames 3"
        assert ask("pause") == "PAUSED"
        publish(producer, [50_000])
        assert ask("play") == "PLAYING"
        publish(producer, range(100_000, 100_010))
        assert ask("frames 14") == "frames 14"


def test_a_lossy_source_does_not_play_the_frames_of_a_pause_one_behind_the_other(name, play):
    meta = [("pts", "i8"), ("duration", "i8"), ("caps", "S512")]
    with (
        gpuring.create(name, slots=4, shape=(4, 8), dtype="u1", meta=meta, device="host") as ring,
        ring.producer() as producer,
    ):
        ask = play(f"gpuringsrc name=it ring={name} lossless=false ! fakesink sync=true")
        poll(lambda: ring.stats().subscriptions)
        for k in range(4):
            with producer.claim(PATIENCE_S) as slot:
                slot.meta["pts"] = slot.meta["duration"] = k * 10**12  # of many minutes
                slot.meta["caps"] = CAPS
            if k == 0:
                assert ask("frames 1") == "frames 1"
                assert ask("pause") == "PAUSED"
        assert ask("play") == "PLAYING"
        assert ask("frames 4") == "frames 4"


def test_a_buffer_that_is_kept_for_long_is_asked_back(ring, player):
    """As that of the frame that a sink shows, while it drops later ones because they are late."""
    with ring.producer() as producer:
        publish(producer, range(10))
        assert player("frames 10") == "frames 10"
        assert player("keep") == "keep"
        publish(producer, range(10))
        assert player("frames 20") == "frames 20"


def test_what_was_missed_before_a_stop_is_not_counted_after_it(ring, play):
    with ring.producer() as producer:
        ask = play(f"gpuringsrc name=it ring={ring.name} reattach=true ! fakesink sync=false")
        poll(lambda: ring.stats().subscriptions)
        assert ask("pause") == "PAUSED"
        taken_for_dead(ask.pid, ring.name)
        poll(lambda: ring.stats().deaths)
        for _ in range(10):
            producer.claim(PATIENCE_S).abandon()
        assert ask("play") == "PLAYING"
        poll(lambda: ring.stats().subscriptions)
        assert ask("stop") == "NULL"
        assert ask("play") == "PLAYING"
        poll(lambda: ring.stats().subscriptions)
        publish(producer, [0])
        assert ask("frames 1") == "frames 1"
        assert ask("lost") == "lost 0"


def test_a_stop_while_caps_change_is_no_error(ring, player):
    with ring.producer() as producer:
        publish(producer, [0])
        assert player("frames 1") == "frames 1"
        assert player("hold") == "hold"
        publish(producer, [1], caps=OTHER_CAPS)
        assert player("ready") == "errors 0"


@pytest.mark.parametrize(("before", "is_lent"), [(0, False), (10, True)])
def test_a_buffer_kept_after_the_stop_keeps_the_ring_only_if_it_lies_in_a_slot(
    before, is_lent, ring, player
):
    """The first buffers are copies.  When four of them have come back, the next ones are slots."""
    with ring.producer() as producer:
        publish(producer, range(before))
        assert player(f"frames {before}") == f"frames {before}"
        assert player("keep") == "keep"
        publish(producer, [before])
        assert player(f"frames {before + 1}") == f"frames {before + 1}"
        assert player("stop") == "NULL"
        assert bool(ring.stats().subscriptions) == is_lent
        assert player("free") == "free"
        assert not ring.stats().subscriptions
        publish(producer, range(10))


def test_a_sink_says_how_many_frames_it_has_dropped(ring, play):
    """The number is the ring's own."""
    picture = CAPS.decode()
    with ring.consumer():
        ask = play(
            f"videotestsrc num-buffers=10 ! {picture} ! "
            f"gpuringsink name=it ring={ring.name} create=false drop=true"
        )
        poll(lambda: ring.stats().producers_left)  # the end of the stream is behind all buffers
        assert ask("dropped") == "dropped 6"
        assert ring.stats().dropped == 6


def test_each_frame_of_a_long_audio_buffer_that_is_dropped_is_counted(name, play):
    caps = "audio/x-raw,format=S16LE,rate=8000,channels=2,layout=interleaved"
    made = gpuring.create(name, slots=4, shape=(100, 2), dtype="i2", device="host")
    with made as ring, ring.consumer():
        ask = play(
            f"audiotestsrc num-buffers=2 samplesperbuffer=250 ! {caps} ! "
            f"gpuringsink name=it ring={name} create=false drop=true"
        )
        poll(lambda: ring.stats().producers_left)  # the end of the stream is behind all buffers
        assert ask("dropped") == "dropped 2"
        assert ring.stats().dropped == 2


@pytest.mark.parametrize("waits", ["for a slot", "for its reader"])
def test_a_sink_that_waits_can_be_paused_and_played_in_quick_succession(waits, ring, play):
    with contextlib.ExitStack() as readers:
        if waits == "for a slot":
            frames = readers.enter_context(ring.consumer())
        ask = play(
            f"videotestsrc ! {CAPS.decode()} ! "
            f"gpuringsink name=it ring={ring.name} create=false readers=1"
        )
        if waits == "for a slot":
            poll(lambda: ring.stats().producers and ring.stats().producers[0].waiting)
        assert ask("flicker") == "flicker"
        if waits == "for its reader":
            frames = readers.enter_context(ring.consumer())
        for _ in range(10):
            frames.acquire(PATIENCE_S).release()


def test_a_sink_that_waits_for_a_slot_goes_on_after_a_step(ring, play):
    picture = CAPS.decode()
    with ring.consumer() as frames:
        ask = play(f"videotestsrc ! {picture} ! gpuringsink name=it ring={ring.name} create=false")
        poll(lambda: ring.stats().producers and ring.stats().producers[0].waiting)
        assert ask("pause") == "PAUSED"
        assert ask("step") == "step"
        assert ask("play") == "PLAYING"
        for _ in range(10):
            frames.acquire(PATIENCE_S).release()


def test_a_flush_gets_through_to_a_sink_that_waits_while_the_pipeline_begins_to_play(ring, play):
    with ring.consumer():
        ask = play(
            f"gpuringsink name=it ring={ring.name} create=false fakesrc num-buffers=0 ! fakesink"
        )
        assert ask("flush") == "flush"


def test_a_reader_gets_the_end_from_a_pipeline_that_has_ended_and_was_not_stopped(ring, play):
    with ring.consumer() as frames:
        ask = play(
            f"videotestsrc num-buffers=2 ! {CAPS.decode()} ! "
            f"gpuringsink name=it ring={ring.name} create=false"
        )
        for _ in range(2):
            frames.acquire(PATIENCE_S).release()
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(PATIENCE_S)
        assert ask("dropped") == "dropped 0"  # the element still answers


def test_only_a_sink_that_rests_may_be_given_another_ring(name, play):
    ask = play(f"videotestsrc ! {CAPS.decode()} ! gpuringsink name=it ring={name}")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        frames.acquire(PATIENCE_S).release()
        assert ask(f"ring {name}-next") == f"ring {name}"  # it plays
        assert ask("rest") == "READY"
        for _ in frames:  # to the end of the stream
            pass
    assert ask(f"ring {name}-next") == f"ring {name}-next"
    assert ask("play") == "PLAYING"
    gpuring.attach(f"{name}-next", timeout=PATIENCE_S).close()
    assert ask("stop") == "NULL"

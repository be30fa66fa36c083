"""Rings that replay a recording: which frames come, and when."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gpuring

pytest.importorskip("mcap")

from gpuring.recording import replay
from gpuring.recording.files import Files
from gpuring.recording.recorder import Source
from gpuring.recording.replay import Replay
from tests.helpers.processes import in_thread, poll
from tests.recording.recordings import put, record, values

TIMES_NS = (10**15, 10**15 + 500_000_000, 10**15 + 500_000_000, 10**15 + 2_000_000_000)


@pytest.fixture
def recording(name, tmp_path, monkeypatch):
    """A recording of four frames with these times."""
    with (
        gpuring.create(name, slots=8, shape=2, dtype="i8", device="host") as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        times, write = iter(TIMES_NS), Files.write

        def write_at_its_time(files, frame):
            frame._head["unix_ns"] = next(times)
            write(files, frame)

        monkeypatch.setattr(Files, "write", write_at_its_time)
        put(producer, range(4))
        producer.close()
        yield record([source], tmp_path / "run.mcap")


def test_on_the_same_kind_of_memory(place, name, tmp_path):
    shape = (3, 5)
    with (
        place.create(name, slots=4, shape=shape, dtype="f4", meta=[("pts", "i8")]) as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        for value in range(3):
            with producer.claim(10) as slot:
                place.fill(slot, value)
                slot.meta["pts"] = 40 * value
        producer.close()
        recording = record([source], tmp_path / "run.mcap")
    assert values(recording) == [0, 1, 2]
    assert [int(frame.meta["pts"]) for frame in recording] == [0, 40, 80]
    with Replay(recording) as made, made.rings[0].consumer() as frames:
        assert (made.rings[0].memory == "host") == (not place.on_gpu)
        made.run(rate=math.inf)
        for value in range(3):
            with frames.acquire(10) as slot:
                assert place.read(slot).tolist() == np.full(shape, value).tolist()
                assert slot.meta["pts"] == 40 * value


class Clock:
    """A clock whose sleeps take no time.  Publishing a frame takes a moment of it."""

    def __init__(self):
        self.now_s = 77.0
        self.slept = []

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now_s += seconds


@pytest.mark.parametrize(
    ("rate", "slept"),
    [(1, [0, 0.5, 0, 1.5]), (0.5, [0, 1, 0, 3]), (2, [0, 0.25, 0, 0.75]), (math.inf, [0] * 4)],
)
def test_the_gaps_are_those_of_the_recording(name, recording, monkeypatch, rate, slept):
    clock = Clock()
    monkeypatch.setattr(replay, "time", clock)
    with Replay(recording, names={name: f"{name}-2"}) as made, made.rings[0].consumer() as frames:
        made.run(rate=rate)
        assert clock.slept == slept
        assert [int(frames.acquire(0).array[0]) for _ in range(4)] == [0, 1, 2, 3]


def test_what_was_late_is_caught_up_with(name, recording, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(replay, "time", clock)
    with Replay(recording, names={name: f"{name}-2"}) as made:
        publish = made._publish

        def slow(frame):
            clock.now_s += 0.7
            publish(frame)

        monkeypatch.setattr(made, "_publish", slow)
        made.run()
    assert clock.slept == [0, 0, 0, 0]
    assert clock.now_s == pytest.approx(77 + 4 * 0.7)


def test_frames_of_a_time(name, recording):
    with Replay(recording, names={name: f"{name}-2"}) as made, made.rings[0].consumer() as frames:
        made.run(rate=math.inf, start_ns=TIMES_NS[1], end_ns=TIMES_NS[3])
        assert made.published == 2
        assert [int(frames.acquire(0).array[0]) for _ in range(2)] == [1, 2]
        (ring,) = made.rings
    assert (ring.closed, made.rings) == (True, [])


def test_it_waits_for_readers(name, recording, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(replay, "time", clock)
    with Replay(recording, names={name: f"{name}-2"}) as made:
        (ring,) = made.rings
        with ring.consumer():
            told = []
            waiting = in_thread(lambda: made.wait_for_readers(2, told.append))
            poll(lambda: told)  # it looks again and again, and finds too few readers
            with ring.consumer():
                assert waiting() is None
            assert told == [[ring.name]]


def test_a_ring_that_is_there_is_not_replaced(name, recording):
    """The rings that were made before it are removed again."""
    with pytest.raises(gpuring.RingExists):
        Replay(recording)
    assert [each.name for each in gpuring.ls() if each.name.startswith(name)] == [name]

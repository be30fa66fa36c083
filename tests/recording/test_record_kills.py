"""A recorder of a lossless durable subscription is killed and started again, and loses nothing."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

import gpuring

pytest.importorskip("mcap")

from gpuring.recording import read
from gpuring.recording.files import Files
from gpuring.recording.index import IndexedFile
from gpuring.recording.recorder import Recorder, Source
from tests.helpers.processes import poll, up
from tests.recording.recordings import put, values


def publishes(pipe, name):
    """Publishes until it is told to end.  Returns how many frames it has published."""
    with gpuring.attach(name, timeout=10) as ring, ring.producer() as producer:
        pipe.send()
        published = 0
        while not pipe.told():
            with producer.claim(30) as slot:
                slot.array[...] = published
            published += 1
    return published


def records(_pipe, name, path, durable="recorder"):
    with Source(name, lossless=True, durable=durable) as source:
        Recorder([source], Files(path, durable=durable is not None)).run()


@pytest.mark.slow
def test_the_chunks_that_were_ended_are_there(name, children, tmp_path):
    """They are there without a durable subscription, too."""
    path = tmp_path / "run.mcap"
    with (
        gpuring.create(name, slots=16, shape=2, dtype="i8", device="host") as ring,
        ring.producer() as producer,
    ):
        recorder = children(records, name, path, None)
        poll(lambda: len(ring.stats().peers) == 2)
        put(producer, range(5))
        poll(lambda: path.exists() and len([*read(path)]) == 5)  # a chunk is ended after a second
        put(producer, range(5, 8))
        recorder.kill()
    recording = read(path)
    assert values(recording)[:5] == [*range(5)]
    assert not recording.complete


@pytest.mark.slow(keep=1)
@pytest.mark.deadline(300)
@pytest.mark.parametrize(("kills", "slots"), [(15, 8), (100, 8), (50, 2)])
def test_each_frame_is_there_once_or_comes_again_and_says_so(
    name, children, tmp_path, kills, slots
):
    chance, path = random.Random(28), tmp_path / "run.mcap"

    def taken(pid):
        return sum(each.frames for each in ring.stats().peers if each.pid == pid)

    with gpuring.create(name, slots=slots, shape=64, dtype="i8", device="host") as ring:
        ring.subscribe("recorder", start="oldest")
        producer = up(children(publishes, name))
        for _ in range(kills):
            recorder = children(records, name, path)
            poll(lambda pid=recorder.pid: taken(pid) > slots)
            time.sleep(chance.random() * 0.01)  # it dies at a random moment
            os.kill(recorder.pid, signal.SIGKILL)
            recorder.process.join()
        producer.send("end")
        last = children(records, name, path)
        published = producer.result()
        last.result()
        assert ring.stats().reaps >= kills
        ring.unsubscribe("recorder")
    files = [*tmp_path.iterdir()]
    recording = read(*files)
    assert sum(not part.complete for part in map(read, files)) >= kills // 2
    assert values(recording) == [*range(published)]
    assert recording.counts[name].lost == 0
    assert recording.counts[name].redelivered > 0
    had = set()
    for file in sorted(map(IndexedFile, files), key=lambda file: file.start_ns):
        for frame in file.frames(None, None, None):
            value = int(frame.array[0])
            assert value not in had or frame.redelivered
            had.add(value)

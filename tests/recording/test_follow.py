"""A recorder that follows goes on in the next ring of that name, and its replay does so, too."""

from __future__ import annotations

import math

import pytest

import gpuring

pytest.importorskip("mcap")

from gpuring.recording import read
from gpuring.recording.files import Files
from gpuring.recording.recorder import Recorder, Source
from gpuring.recording.replay import Replay
from tests.helpers.processes import in_thread, poll
from tests.recording.recordings import put, values


@pytest.mark.parametrize("shapes", [(2, 3, 1), (2, 2, 2)], ids=["other slots", "the same slots"])
def test_a_recording_goes_on_over_restarts(name, tmp_path, monkeypatch, shapes):
    monkeypatch.setattr("gpuring.recording.recorder._LOOK_S", 0.001)
    files = Files(tmp_path / "run.mcap")
    looks = [0]

    def looks_around(_recorder):
        looks[0] += 1
        count_torn(_recorder)

    count_torn = Recorder._count_torn
    monkeypatch.setattr(Recorder, "_count_torn", looks_around)
    for k, shape in enumerate(shapes):
        with gpuring.create(name, slots=8, shape=shape, dtype="i8", device="host") as ring:
            if k == 0:
                source = Source(name, follow=True).__enter__()
                recorder = Recorder([source], files)
                running = in_thread(recorder.run)
            with ring.producer() as producer:
                poll(lambda ring=ring: any(p.role == "consumer" for p in ring.stats().peers))
                seen = looks[0]
                poll(lambda seen=seen: looks[0] > seen + 2, 30)  # also without frames
                put(producer, range(3 * k, 3 * k + 3))
                poll(lambda ring=ring: not ring.stats().subscriptions[0].untaken, 30)
    recorder.end()
    assert running() is None
    source.__exit__()
    recording = read(tmp_path / "run.mcap")
    assert values(recording) == [*range(9)]
    assert [frame.array.shape for frame in recording] == [(shapes[k // 3],) for k in range(9)]
    assert [k for k, frame in enumerate(recording) if frame.restarted] == [3, 6]
    assert [ring.name for ring in recording.rings] == [name] * 3
    assert len({ring.epoch for ring in recording.rings}) == 3
    assert recording.counts[name].frames == 9
    with (
        Replay(recording) as replay,
        gpuring.attach(name) as ring,
        ring.consumer(reattach=True) as frames,
    ):

        def read_all():
            had = []
            while len(had) < 9:
                with frames.acquire(10) as slot:
                    had.append((int(slot.array[0]), slot.array.shape))
            return had

        had = in_thread(read_all)
        replay.run(rate=math.inf)
        assert had() == [(k, (shapes[k // 3],)) for k in range(9)]

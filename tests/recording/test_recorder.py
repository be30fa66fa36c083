"""What a recorder writes and counts, whom it keeps waiting, and when it releases a frame."""

from __future__ import annotations

import contextlib
import os
import resource

import pytest

import gpuring

pytest.importorskip("mcap")

from gpuring.recording import read
from gpuring.recording.files import Files
from gpuring.recording.message import RecordedRing
from gpuring.recording.recorder import Recorder, Source
from tests.helpers.processes import in_thread, poll
from tests.helpers.words import tear
from tests.recording.recordings import put, record, values


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=8, shape=2, dtype="i8", device="host") as ring:
        yield ring


def held(ring):
    """How many frames the recorder holds."""
    return sum(len(peer.holding) for peer in ring.stats().peers if peer.role == "consumer")


def test_a_producer_does_not_wait_for_it_and_the_lost_are_counted(ring, tmp_path):
    with Source(ring.name) as source, ring.producer() as producer:
        put(producer, range(100))
        producer.close()
        recording = record([source], tmp_path / "run.mcap")
    counts = recording.counts[ring.name]
    assert values(recording) == [*range(100)][-counts.frames :]
    assert counts.frames >= 7
    assert counts.lost == sum(frame.lost for frame in recording) == 100 - counts.frames


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("durable", [None, "recorder"])
def test_lossless_misses_none_and_never_blocks_itself(name, tmp_path, monkeypatch, slots, durable):
    """That is true also if a chunk has more frames than the ring has slots."""
    monkeypatch.setattr("gpuring.recording.files.CHUNK_S", 1e9)
    with (
        gpuring.create(name, slots=slots, shape=2, dtype="i8", device="host") as ring,
        Source(name, lossless=True, durable=durable) as source,
    ):

        def publish():
            with ring.producer() as producer:
                for value in range(40):
                    with producer.claim(10) as slot:
                        slot.array[...] = value

        done = in_thread(publish)
        recording = record([source], tmp_path / "run.mcap")
        assert done() is None
        ring.unsubscribe("recorder")
    assert values(recording) == [*range(40)]
    assert recording.counts[name].lost == 0


def test_a_durable_one_lets_a_frame_go_when_it_is_on_the_disk(ring, tmp_path, monkeypatch):
    synced, had, finished = [], [], []

    def fdatasync(fd):
        had.append(held(ring))
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr("gpuring.recording.files.os.fdatasync", fdatasync)

    def fsync(fd):
        finished.append(os.fstat(fd).st_size)

    monkeypatch.setattr("gpuring.recording.files.os.fsync", fsync)
    with (
        ring.producer() as producer,
        Source(ring.name, lossless=True, durable="recorder") as source,
    ):
        put(producer, range(4))
        producer.close()
        recording = record([source], tmp_path / "run.mcap", durable=True)
        ring.unsubscribe("recorder")
    assert had == [4]
    assert synced[0] > 4 * 128
    assert finished == [(tmp_path / "run.mcap").stat().st_size]
    assert values(recording) == [*range(4)]


def test_what_is_in_a_file_that_is_finished_is_not_held_until_the_next_frame(ring, tmp_path):
    with (
        ring.producer() as producer,
        Source(ring.name, lossless=True, durable="recorder") as source,
    ):
        files = Files(tmp_path / "run.mcap", split_s=1e-9)
        recording = in_thread(Recorder([source], files).run)
        put(producer, [7])
        poll(lambda: read(*files.written).complete and not held(ring))
        producer.close()
        assert recording() is None
        ring.unsubscribe("recorder")
    assert values(read(*files.written)) == [7]


@pytest.mark.parametrize("durable", [None, "recorder"])
def test_a_disk_that_is_full(ring, tmp_path, durable):
    """Frames that were not written come again, if the subscription is durable."""
    path, limits = tmp_path / "run.mcap", resource.getrlimit(resource.RLIMIT_FSIZE)
    with ring.producer() as producer:
        with Source(ring.name, lossless=True, durable=durable) as source:
            recorder = Recorder([source], Files(path))
            put(producer, range(4))
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
            try:
                with pytest.raises(OSError, match="File too large"):
                    recorder.run()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert values(read(path)) == []
        producer.close()
        if durable:
            with ring.consumer(durable, durable=True) as frames, frames.acquire_many(9, 0) as came:
                assert [(int(slot.array[0]), slot.redelivered) for slot in came] == [
                    (value, True) for value in range(4)
                ]
            ring.unsubscribe("recorder")
    assert not ring.stats().subscriptions


def test_a_disk_that_is_full_before_it_begins_gets_no_empty_file(tmp_path):
    """A supervisor starts the recorder again and again."""
    path, limits = tmp_path / "run.mcap", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            Files(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.filename == str(path)
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_is_full_before_another_file_begins_leaves_those_before(ring, tmp_path):
    path, limits = tmp_path / "run.mcap", resource.getrlimit(resource.RLIMIT_FSIZE)
    with Source(ring.name) as source, ring.producer() as producer:
        files = Files(path)
        put(producer, range(4))
        source.take(files)
        files.finish()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                Recorder([source], files).run()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*tmp_path.iterdir()] == [path]
    assert values(read(path)) == [0]


def test_a_ring_that_goes_while_others_are_awaited_is_awaited_again(name):
    with gpuring.create(name, slots=2, shape=1, dtype="u1", device="host"):
        source = Source(name, timeout=1)
    with pytest.raises(gpuring.RingNotFound, match="came within"), source:
        pass


def test_torn_frames_are_left_out_and_counted(ring, tmp_path):
    """Some are passed over.  The producer of another one dies while that is copied."""
    with Source(ring.name) as source, ring.producer() as producer:
        put(producer, range(6))
        tear(ring, 9)
        copy = source._copy

        def copy_and_tear(slot):
            if slot.seq == 11:
                tear(ring, 11, slot)
            return copy(slot)

        source._copy = copy_and_tear
        producer.close()
        recording = record([source], tmp_path / "run.mcap")
    assert values(recording) == [0, 2, 4, 5]
    assert recording.counts[ring.name].torn == 2
    whole = (tmp_path / "run.mcap").read_bytes()
    (tmp_path / "run.mcap").write_bytes(whole[:-1])  # a later cut keeps the counts
    cut = read(tmp_path / "run.mcap")
    assert (cut.complete, cut.counts[ring.name].torn) == (False, 2)


def test_what_was_torn_after_a_split_is_counted_in_the_next_file(ring, tmp_path):
    files = Files(tmp_path / "run.mcap")
    for torn in (1, 2):
        files.add_torn(RecordedRing.of(ring), torn)
        files.finish()
    assert [read(path).counts[ring.name].torn for path in files.written] == [1, 2]
    assert read(*files.written).counts[ring.name].torn == 3


def test_several_rings_in_one_file_in_order_of_their_times(name, tmp_path):
    with contextlib.ExitStack() as stack:
        rings = [
            stack.enter_context(
                gpuring.create(f"{name}-{k}", slots=8, shape=k + 1, dtype="i8", device="host")
            )
            for k in range(3)
        ]
        sources = [stack.enter_context(Source(ring.name)) for ring in rings]
        producers = [stack.enter_context(ring.producer()) for ring in rings]
        order = [0, 2, 2, 1, 0, 1, 2, 0, 0, 1]
        for value, k in enumerate(order):
            put(producers[k], [value])
        for producer in producers:
            producer.close()
        recording = record(sources, tmp_path / "run.mcap")
    assert values(recording) == [*range(10)]
    assert [frame.array.shape for frame in recording] == [(k + 1,) for k in order]
    assert {ring.name for ring in recording.rings} == {ring.name for ring in rings}
    assert f"4 frames of {rings[0].name!r}, 3 frames of " in repr(recording)
    assert repr(recording.rings[0]) == f"<RecordedRing {rings[0].name!r}: 8 × (1,) int64, host>"
    with pytest.raises(KeyError, match="has no field 'y'; its fields: 'array'"):
        next(iter(recording))["y"]
    assert values(recording.frames([rings[2].name])) == [1, 2, 6]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, [range(20)]),
        ({"split_nbytes": 1}, [[value] for value in range(20)]),
        ({"split_s": 1e-9}, [[value] for value in range(20)]),
        ({"split_nbytes": 2500}, [range(k, k + 4) for k in range(0, 20, 4)]),
    ],
)
def test_another_file_after_so_much_or_so_long_and_none_is_written_over(
    name, tmp_path, monkeypatch, options, parts
):
    monkeypatch.setattr("gpuring.recording.files.CHUNK_NBYTES", 1)
    path = tmp_path / "run.mcap"
    path.write_bytes(b"of somebody else")
    with (
        gpuring.create(name, slots=32, shape=32, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        Source(ring.name) as source,
    ):
        put(producer, range(20))
        producer.close()
        record([source], path, **options)
    files = [tmp_path / f"run-{k + 1}.mcap" for k in range(len(parts))]
    assert path.read_bytes() == b"of somebody else"
    assert {*tmp_path.iterdir()} == {path, *files}
    assert [values(read(each)) for each in files] == [[*part] for part in parts]
    whole = read(*reversed(files))
    assert whole.complete
    assert values(whole) == [*range(20)]
    assert whole.counts[name].frames == 20

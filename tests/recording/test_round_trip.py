"""A recording has all that a producer publishes, and its replay gives it back bit for bit."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuring
from gpuring import slot_layout

pytest.importorskip("mcap")

from mcap.reader import make_reader

from gpuring.recording import RecordedRing, read
from gpuring.recording.files import Files
from gpuring.recording.message import REDELIVERED, copier
from gpuring.recording.recorder import Source
from gpuring.recording.replay import Replay
from gpuring.ring import inner
from tests.helpers.rings import create_far
from tests.recording.recordings import bits, put, record, values

KINDS = st.sampled_from(["?", "u1", "<i2", ">u4", "<f4", "<f8", "c16", "S5", "U2", "V3", "M8[ns]"])
STRUCTURES = st.lists(KINDS, min_size=1, max_size=3).map(
    lambda kinds: [(f"f{k}", kind) for k, kind in enumerate(kinds)]
)
GAPS = st.just({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [3, 8], "itemsize": 19})
DTYPES = KINDS | STRUCTURES | GAPS | st.sampled_from(sorted(slot_layout.EXTENDED))
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
SLOTS = 4
NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=4)


@st.composite
def rings(draw):
    """What `create` takes, and the bits and shape of each frame."""
    options = {"meta": draw(st.none() | STRUCTURES | GAPS)}
    if draw(st.booleans()):
        named = draw(st.dictionaries(NAMES, st.tuples(SHAPES, DTYPES), min_size=1, max_size=3))
        return options | {"fields": named}, [(None, draw(st.binary())) for _ in range(SLOTS - 1)]
    shape = draw(SHAPES)
    smaller = st.none() | st.just((1, *shape[1:]))
    frames = [(draw(smaller), draw(st.binary())) for _ in range(SLOTS - 1)]
    return options | {"shape": shape, "dtype": draw(DTYPES)}, frames


def fill(buffer, pattern):
    """Repeats a pattern over all bytes of an array."""
    raw = np.frombuffer((pattern or b"\0") * buffer.nbytes, "u1", buffer.nbytes)
    buffer[...] = raw.view(f"V{buffer.dtype.itemsize}").reshape(buffer.shape)


def publish(ring, producer, frames):
    """Returns the bits of each frame, as a reader gets them."""
    for shape, pattern in frames:
        with producer.claim(0, shape=shape) as slot:
            for field in ring.spec.fields:
                array = slot[field.name]
                fill(array.view(f"V{array.dtype.itemsize}"), pattern)
            if ring.spec.meta is not None:
                raw = inner.metadata(ring, writable=True, dtype=f"V{ring.spec.meta.itemsize}")
                fill(raw[slot.index : slot.index + 1], pattern[::-1])


def had_by(consumer, frames):
    had = []
    for _ in range(frames):
        with consumer.acquire(10) as slot:
            had.append((bits(slot, consumer.ring.spec), slot.seq))
    return had


@settings(max_examples=60)
@given(described=rings(), compressed=st.booleans())
def test_every_bit_of_a_frame_is_recorded(tmp_path_factory, described, compressed):
    options, frames = described
    name, path = f"test-{os.getpid()}-bits", tmp_path_factory.mktemp("r") / "a"
    with gpuring.create(name, slots=SLOTS, device="host", **options) as ring:
        with ring.producer() as producer, Source(name) as source:
            reader = ring.consumer(start="oldest")
            publish(ring, producer, frames)
            published = had_by(reader, len(frames))
            producer.close()
            recording = record([source], path, compressed=compressed)
        spec = ring.spec
    (recorded,) = recording.rings
    assert (recorded.name, recorded.spec.fields, recorded.spec.meta) == (
        name, spec.fields, spec.meta,
    )  # fmt: skip
    assert [(bits(frame, spec), frame.seq) for frame in recording] == published
    with Replay(recording) as replay, replay.rings[0].consumer() as reader:
        assert replay.rings[0].spec == spec
        replay.run(rate=math.inf)
        assert had_by(reader, len(frames)) == published


def test_times_and_what_was_known_of_a_frame(name, tmp_path):
    with (
        gpuring.create(name, slots=4, shape=2, dtype="i8", device="host") as ring,
        Source(name) as source,
    ):
        with ring.producer() as producer, ring.consumer(lossless=False) as reader:
            put(producer, range(6))
            seen = [(slot.seq, slot.time_ns, slot.lost) for slot in (reader.acquire(0),)]
            producer.close()
            seen += [(slot.seq, slot.time_ns, slot.lost) for slot in reader]
        recording = record([source], tmp_path / "run.mcap")
    frames = list(recording)
    assert [(frame.seq, frame.time_ns, frame.lost) for frame in frames] == seen
    assert not any(frame.redelivered or frame.restarted or frame.origin for frame in frames)
    assert len({frame.unix_ns - frame.time_ns for frame in frames}) == 1
    assert abs(time.time_ns() - frames[-1].unix_ns) < 600e9
    assert (recording.start_ns, recording.end_ns) == (frames[0].unix_ns, frames[-1].unix_ns)
    lost = sum(lost for *_, lost in seen)
    assert lost > 0
    assert recording.counts[name].lost == lost


def test_what_mcap_has_of_a_message(name, tmp_path):
    """A message has the frame's own time, and as much of the sequence as there is room for."""
    meta = [("pts", "i8"), ("time_ns", "i8")]
    files = Files(tmp_path / "run.mcap")
    with (
        gpuring.create(name, slots=4, shape=2, dtype="i8", meta=meta, device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        copy = copier(RecordedRing.of(ring))
        for own in (1234, -1):
            with producer.claim(0) as slot:
                slot.meta["time_ns"] = own
            with frames.acquire(0) as slot:
                frame = copy(slot)
                frame._head["seq"] = 2**33 + 5
                files.write(frame)
    files.finish()
    recording = [*read(tmp_path / "run.mcap")]
    assert [frame.seq for frame in recording] == [2**33 + 5] * 2
    with (tmp_path / "run.mcap").open("rb") as file:
        messages = [message for *_, message in make_reader(file).iter_messages()]
    assert [message.sequence for message in messages] == [5, 5]
    published = [frame.unix_ns for frame in recording]
    assert [message.log_time for message in messages] == published
    assert [message.publish_time for message in messages] == [1234, published[1]]


def test_a_frame_that_is_there_twice_comes_once(name, tmp_path):
    """A frame that comes to a recorder a second time, and was not written the first time, is there,
    too."""
    with (
        gpuring.create(name, slots=4, shape=2, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        copy = copier(RecordedRing.of(ring))
        parts = [Files(tmp_path / "run.mcap"), Files(tmp_path / "run.mcap")]
        for value in range(3):
            put(producer, [value])
            with frames.acquire(0) as slot:
                frame = copy(slot)
                if value < 2:
                    parts[0].write(frame)
                if value > 0:
                    frame._head["flags"] |= REDELIVERED
                    parts[1].write(frame)
        for part in parts:
            part.finish()
    recording = read(*tmp_path.iterdir())
    assert [(int(f.array[0]), f.redelivered) for f in recording] == [
        (0, False), (1, False), (2, True),
    ]  # fmt: skip
    counts = recording.counts[name]
    assert (counts.frames, counts.redelivered) == (4, 2)


def test_the_origin_of_a_frame_from_another_host(name, tmp_path):
    origin = {"host": "far away", "ring": "cam7"}
    with (
        create_far(name, origin, slots=4, device="host", shape=2, dtype="i8") as ring,
        Source(name) as source,
        ring.producer() as producer,
        ring.consumer() as reader,
    ):
        with producer.claim(0) as slot:
            inner.set_origin(slot, 1041, 1_700_000_000_000_000_000, 0)
        producer.close()
        with reader.acquire(0) as slot:
            expected = slot.origin
        recording = record([source], tmp_path / "run.mcap")
    (frame,) = recording
    assert frame.origin == expected
    assert (expected.seq, expected.host, expected.ring) == (1041, "far away", "cam7")


def test_frames_of_a_time(name, tmp_path, monkeypatch):
    """Only the chunks of that time are read."""
    monkeypatch.setattr("gpuring.recording.files.CHUNK_NBYTES", 1)
    with (
        gpuring.create(name, slots=64, shape=2, dtype="i8", device="host") as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        put(producer, range(50))
        producer.close()
        recording = record([source], tmp_path / "run.mcap")
    times = [frame.unix_ns for frame in recording]
    data = bytearray((tmp_path / "run.mcap").read_bytes())
    data[200:1000] = bytes(800)  # damages the first chunks
    (tmp_path / "run.mcap").write_bytes(data)
    assert values(recording.frames(start_ns=times[20], end_ns=times[30])) == [*range(20, 30)]
    assert values(recording.frames([name], start_ns=times[45])) == [*range(45, 50)]
    with pytest.raises(gpuring.RingError, match="is damaged"):
        list(recording)
    with pytest.raises(ValueError, match="no ring 'other'"):
        recording.frames(["other"])
    with pytest.raises(TypeError, match="names must be several names"):
        recording.frames(name)


def test_a_time_begins_with_the_last_frame_of_a_file_and_ends_before_the_first_one(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr("gpuring.recording.files.CHUNK_NBYTES", 1)
    with (
        gpuring.create(name, slots=64, shape=2, dtype="i8", device="host") as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        put(producer, range(5))
        producer.close()
        recording = record([source], tmp_path / "run.mcap", split_nbytes=1)
    assert len(list(tmp_path.iterdir())) == 5
    for k, time_ns in enumerate(frame.unix_ns for frame in recording):
        assert values(recording.frames(start_ns=time_ns)) == [*range(k, 5)]
        assert values(recording.frames(end_ns=time_ns)) == [*range(k)]


def test_what_is_no_recording(tmp_path, monkeypatch):
    for text in ("no recording at all, but long enough", "no"):
        (tmp_path / "text").write_text(text)
        with pytest.raises(gpuring.RingError, match="text is not a recording"):
            read(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    for no_paths in ((), ([tmp_path / "text"],)):
        with pytest.raises(TypeError, match=r"paths .*read\(\*paths\)"):
            read(*no_paths)
    monkeypatch.setattr("gpuring.recording.reading.find_spec", lambda _: None)
    with pytest.raises(gpuring.RingError, match=r"need mcap: pip install 'gpuring\[record\]'"):
        read(tmp_path / "missing")

"""A file whose recorder was killed is read up to its last whole chunk, wherever it was cut off."""

from __future__ import annotations

import errno
import struct
from io import BytesIO

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpuring

pytest.importorskip("mcap")

from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.writer import MCAP0_MAGIC, Writer

from gpuring.recording import read
from gpuring.recording.counts import RecordedCounts
from gpuring.recording.files import Files
from gpuring.recording.message import RecordedRing, copier
from gpuring.recording.recorder import Source
from tests.recording.recordings import put, record, values


@pytest.fixture(params=[False, True], ids=["plain", "zstd"])
def whole(request, name, tmp_path, monkeypatch):
    """A file of 20 chunks, each of one frame.  Gives its bytes, and where each chunk ends."""
    monkeypatch.setattr("gpuring.recording.files.CHUNK_NBYTES", 1)
    with (
        gpuring.create(name, slots=32, shape=9, dtype="i8", device="host") as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        put(producer, range(20))
        producer.close()
        record([source], tmp_path / "run.mcap", compressed=request.param)
    with (tmp_path / "run.mcap").open("rb") as file:
        chunks = make_reader(file).get_summary().chunk_indexes
    ends = [chunk.chunk_start_offset + chunk.chunk_length for chunk in chunks]
    assert len(ends) == 20
    return (tmp_path / "run.mcap").read_bytes(), ends


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
@example(share=0)
@example(share=0.0005)
def test_cut_anywhere(whole, tmp_path, share):
    data, ends = whole
    nbytes = int(share * (len(data) - 1))
    path = tmp_path / "cut.mcap"
    path.write_bytes(data[:nbytes])
    there = sum(end <= nbytes for end in ends)
    recording = read(path)
    assert values(recording) == [*range(there)]
    assert not recording.complete
    assert [counts.frames for counts in recording.counts.values()] == [there] * (there > 0)
    frames = list(recording)
    if there > 2:
        middle = recording.frames(start_ns=frames[1].unix_ns, end_ns=frames[-1].unix_ns)
        assert values(middle) == [*range(1, there - 1)]


def test_cut_behind_the_last_chunk(whole, tmp_path):
    """It is cut at each byte of the records that follow."""
    data, ends = whole
    path = tmp_path / "cut.mcap"
    assert data.find(b"gpuring.counts", ends[-1]) < ends[-1] + 200
    for end in range(ends[-1], ends[-1] + 300):
        path.write_bytes(data[:end])
        recording = read(path)
        assert not recording.complete
        assert [counts.frames for counts in recording.counts.values()] == [20]
    assert values(recording) == [*range(20)]


def test_pages_that_were_never_written(whole, tmp_path):
    """A machine that broke down may leave a file of the right length, with zeros in it."""
    data, ends = whole
    path = tmp_path / "cut.mcap"
    for end in (ends[6] - 30, ends[6]):
        path.write_bytes(data[:end].ljust(len(data), b"\0"))
        recording = read(path)
        assert values(recording) == [*range(6 + (end == ends[6]))]
        assert not recording.complete
    path.write_bytes(data[: ends[6]] + bytes(90) + data[ends[7] :])
    assert values(read(path)) == [*range(7)]  # what may be behind such a page is not looked for


@pytest.mark.parametrize("cut", [False, True])
def test_what_other_programs_have_in_the_file_is_passed_over(whole, tmp_path, cut):
    path = tmp_path / "more.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema, channel, _ = next(make_reader(BytesIO(whole[0])).iter_messages())
        at = writer.register_schema(schema.name, schema.encoding, schema.data)
        told = channel.topic, channel.message_encoding, at, channel.metadata
        ours, theirs = writer.register_channel(*told), writer.register_channel("log", "json", 0)
        writer.add_metadata("log", {"of": "another program"})
        for _, _, message in make_reader(BytesIO(whole[0])).iter_messages():
            for number, content in ((theirs, b"{}"), (ours, message.data)):
                writer.add_message(number, message.log_time, content, message.publish_time)
        writer.finish()
    if cut:
        path.write_bytes(path.read_bytes()[:-1])
    recording = read(path)
    assert (len(recording.rings), recording.complete) == (1, not cut)
    assert values(recording) == [*range(20)]


@pytest.mark.parametrize("content", [b"\1\0\0\0\xff", b"\1"], ids=["no text", "no length"])
def test_a_file_whose_records_say_nothing_is_damaged(tmp_path, content):
    record = struct.pack("<BQ", Opcode.METADATA, len(content)) + content
    (tmp_path / "run.mcap").write_bytes(MCAP0_MAGIC + record)
    with pytest.raises(gpuring.RingError, match=r"run\.mcap is damaged"):
        read(tmp_path / "run.mcap")


def test_a_disk_that_fails_is_no_damage_of_the_file(whole, tmp_path, monkeypatch):
    def fails(*_, **__):
        yield from ()
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "run.mcap").write_bytes(whole[0])
    recording = read(tmp_path / "run.mcap")
    monkeypatch.setattr("mcap.reader.SeekingReader.iter_messages", fails)
    with pytest.raises(OSError, match="Input/output error"):
        list(recording)


def test_a_bit_that_has_changed_is_found(whole, tmp_path):
    data, ends = whole
    path = tmp_path / "run.mcap"
    path.write_bytes(data[: ends[3] - 9] + bytes([data[ends[3] - 9] ^ 1]) + data[ends[3] - 8 :])
    frames = iter(read(path))
    assert values(next(frames) for _ in range(3)) == [0, 1, 2]
    with pytest.raises(gpuring.RingError, match=r"run\.mcap is damaged"):
        next(frames)
    path.write_bytes(path.read_bytes()[:-1])
    assert values(read(path)) == [0, 1, 2]


def test_a_part_of_a_chunk_is_found_by_its_times(name, tmp_path):
    with (
        gpuring.create(name, slots=32, shape=9, dtype="i8", device="host") as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        put(producer, range(20))
        producer.close()
        record([source], tmp_path / "run.mcap")
    (tmp_path / "run.mcap").write_bytes((tmp_path / "run.mcap").read_bytes()[:-1])
    recording = read(tmp_path / "run.mcap")
    frames = list(recording)
    assert values(recording.frames(start_ns=frames[10].unix_ns)) == [*range(10, 20)]


def test_a_file_is_read_while_it_is_written(name, tmp_path):
    with (
        gpuring.create(name, slots=8, shape=2, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        files = Files(tmp_path / "run.mcap")
        copy = copier(RecordedRing.of(ring))
        for value in range(3):
            put(producer, [value])
            with frames.acquire(0) as slot:
                files.write(copy(slot))
            assert values(read(tmp_path / "run.mcap")) == [*range(value)]
            files.add_torn(RecordedRing.of(ring), 1)
            files.end_chunk()
            unfinished = read(tmp_path / "run.mcap")
            assert values(unfinished) == [*range(value + 1)]
            assert unfinished.counts[name] == RecordedCounts(frames=value + 1, torn=value + 1)
        files.finish()
    recording = read(tmp_path / "run.mcap")
    assert (values(recording), recording.complete) == ([0, 1, 2], True)

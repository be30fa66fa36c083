"""What a damaged file raises says which file that is and what is wrong with it."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers import commands

pytest.importorskip("mcap")

from mcap.reader import make_reader
from mcap.writer import Writer

from gpuring.recording import read
from gpuring.recording.counts import COUNTS, RecordedCounts
from gpuring.recording.recorder import Source
from tests.recording.recordings import put, record, values


@pytest.fixture
def copied(name, tmp_path):
    """Copies a recording of three frames, with changes, into run.mcap."""
    with (
        gpuring.create(name, slots=8, shape=9, dtype="i8", device="host") as ring,
        Source(name) as source,
        ring.producer() as producer,
    ):
        put(producer, range(3))
        producer.close()
        record([source], tmp_path / "whole.mcap")

    def copy(counts=None, channel=None, schema=None, message=None):
        path = tmp_path / "run.mcap"
        with (tmp_path / "whole.mcap").open("rb") as whole, path.open("wb") as file:
            reader, writer = make_reader(whole), Writer(file)
            writer.start()
            for _, had, each in reader.iter_messages():
                of = reader.get_summary().schemas[had.schema_id]
                text = schema(of.data) if schema else of.data
                at = writer.register_schema(of.name, of.encoding, text) if text else 0
                about = had.metadata | (channel or {})
                to = writer.register_channel(had.topic, had.message_encoding, at, about)
                data = message(each.data) if message else each.data
                writer.add_message(to, each.log_time, data, each.publish_time)
            for note in reader.iter_metadata():
                kept = {key: it for key, it in note.metadata.items() if key != counts}
                writer.add_metadata(note.name, kept)
            writer.finish()
        return path

    return copy


def test_a_copy_is_read(copied):
    assert values(read(copied())) == [0, 1, 2]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize(
    ("counts", "told"),
    [("frames", "has no number 'frames'"), ("epoch", "does not say of which ring it is")],
)
def test_counts_that_say_too_little(copied, cut, counts, told):
    path = copied(counts)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    with pytest.raises(gpuring.RingError, match=rf"run\.mcap is damaged: its .*{COUNTS} {told}"):
        read(path)


@pytest.mark.parametrize("number", ["-1", "x", ""])
def test_counts_that_are_no_numbers(number):
    with pytest.raises(ValueError, match="has no number 'lost'"):
        RecordedCounts.from_text(RecordedCounts().to_text() | {"lost": number})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"channel": {"slots": "0"}}, "slots must be 1 … 1024, not 0"),
        ({"schema": lambda _: b""}, "has no schema"),
        ({"schema": lambda text: text.replace(b"<i8", b"zzz")}, "a dtype has no size"),
    ],
    ids=["slots", "no schema", "dtype"],
)
def test_channels_that_cannot_be(copied, name, changes, told):
    with pytest.raises(gpuring.RingError, match=rf"run\.mcap is damaged: .*'{name}'.* {told}"):
        read(copied(**changes))


@pytest.mark.parametrize(
    "message",
    [
        lambda data: b"",
        lambda data: data[:50],
        lambda data: data[:-8],
        lambda data: data + bytes(8),
        lambda data: data[:52] + b"\1\0\0\0" + data[56:],
        lambda data: data[:52] + b"\1\0\0\0" + b"\377" * 8 + data[64:],
        lambda data: data[:52] + b"\1\0\0\0\12" + data[57:] + bytes(8),
    ],
    ids=[
        "empty",
        "short head",
        "short",
        "long",
        "no extent",
        "large extent",
        "larger than its slot",
    ],
)
def test_messages_that_are_no_frames(copied, message):
    path = copied(message=message)
    with pytest.raises(gpuring.RingError, match=r"run\.mcap is damaged: "):
        list(read(path))


def test_replay_says_so(copied):
    told = commands.gpuring("replay", path := copied("torn"))
    why = f"{path} is damaged: its record {COUNTS} has no number 'torn'"
    assert (told.returncode, told.stderr) == (1, f"gpuring replay: {why}\n")

"""Where the parts of a file are: what it says at its end, or what is found in one that was cut
off."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.reader import SeekingReader
from mcap.records import Channel, Chunk, ChunkIndex, McapRecord, Message, Metadata, Schema
from mcap.stream_reader import breakup_chunk
from mcap.summary import Summary
from mcap.writer import MCAP0_MAGIC

from gpuring.errors import RingError
from gpuring.recording.counts import COUNTS, RecordedCounts
from gpuring.recording.message import ENCODING, Frame, RecordedRing

_RECORD = struct.Struct("<BQ")  # opcode, length


class IndexedFile:
    """A file of a recording.  It is open only while it is read."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and RingError if it is no recording, or a damaged one."""
        self.path = path
        self.complete = True
        """Whether it was finished.  Otherwise it ends with its last whole chunk."""
        self.rings: dict[int, RecordedRing] = {}
        """By the ids of their channels."""
        self._counts: defaultdict[tuple[str, str], RecordedCounts] = defaultdict(RecordedCounts)
        """By the names and epochs of rings."""
        with path.open("rb") as file:
            begin = file.read(len(MCAP0_MAGIC))
            if not MCAP0_MAGIC.startswith(begin):  # a recorder that was just killed wrote less
                raise RingError(f"{path} is not a recording of gpuring: it does not begin like one")
            try:
                self._summary = self._at_the_end(file) or self._found(file)
            except (McapError, ValueError, struct.error) as error:
                raise RingError(f"{path} is damaged: {error}") from error
        chunks = self._summary.chunk_indexes
        self.start_ns = min((chunk.message_start_time for chunk in chunks), default=0)
        self.end_ns = max((chunk.message_end_time for chunk in chunks), default=0)
        """When its first and its last frame were published.  0 if it has none."""

    @property
    def counts(self) -> Iterator[tuple[str, RecordedCounts]]:
        """The name of a ring, and what the file has of it.  A name may come several times."""
        return ((name, counts) for (name, _), counts in self._counts.items())

    def frames(
        self, names: Collection[str] | None, start_ns: int | None, end_ns: int | None
    ) -> Iterator[Frame]:
        """In order of their times.  Raises OSError, and RingError if the file is damaged."""
        with self.path.open("rb") as file:
            reader = _Reader(file, validate_crcs=True)
            reader.summary = self._summary
            found = reader.iter_messages(names, starting_at=start_ns, ending_before=end_ns)
            try:
                for _, channel, message in found:
                    if ring := self.rings.get(channel.id):
                        yield Frame(ring, message.data).checked()
            except OSError:
                raise
            except Exception as error:  # of mcap, zstandard, struct, …
                raise RingError(f"{self.path} is damaged: {error}") from error

    def _at_the_end(self, file: IO[bytes]) -> Summary | None:
        """What the file says of itself at its end.  None if that is missing."""
        try:
            file.seek(0)
            reader = SeekingReader(file)
            summary = reader.get_summary()
            notes = list(reader.iter_metadata()) if summary is not None else []
        except (McapError, OSError, ValueError, struct.error):
            return None
        if summary is not None:
            self._name(summary.channels.values(), summary)
            for note in notes:
                self._note(note)
        return summary

    def _found(self, file: IO[bytes]) -> Summary:
        """What a look at the whole file finds, up to where it was cut off."""
        self.complete = False
        summary = Summary()
        size, position = os.fstat(file.fileno()).st_size, len(MCAP0_MAGIC)
        while position + _RECORD.size <= size:
            file.seek(position)
            opcode, length = _RECORD.unpack(file.read(_RECORD.size))
            end = position + _RECORD.size + length
            if end > size or opcode == 0:  # pages that have no data
                break
            if opcode == Opcode.METADATA:
                self._note(Metadata.read(ReadDataStream(file)))
            if opcode == Opcode.CHUNK:
                try:
                    chunk = Chunk.read(ReadDataStream(file))
                    records = breakup_chunk(chunk, validate_crc=True)
                except Exception:  # a machine that broke down may leave pages that have no data
                    break
                summary.chunk_indexes.append(_index(chunk, position, end - position))
                self._read(records, summary)
            position = end
        return summary

    def _read(self, records: Iterable[McapRecord], summary: Summary) -> None:
        """Notes what a chunk has."""
        for record in records:
            if isinstance(record, Schema):
                summary.schemas[record.id] = record
            if isinstance(record, Channel):
                summary.channels[record.id] = record
                self._name([record], summary)
            if isinstance(record, Message) and (ring := self.rings.get(record.channel_id)):
                self._counts[ring.name, ring.epoch].add(Frame(ring, record.data))

    def _name(self, channels: Iterable[Channel], summary: Summary) -> None:
        for channel in channels:
            if channel.message_encoding == ENCODING:  # other programs may have theirs in the file
                schema = summary.schemas.get(channel.schema_id)
                if schema is None:
                    raise ValueError(f"its channel {channel.topic!r} has no schema")
                ring = RecordedRing.from_mcap(channel.topic, channel.metadata, schema.data)
                self.rings[channel.id] = ring

    def _note(self, record: Metadata) -> None:
        if record.name == COUNTS:
            said = RecordedCounts.from_text(record.metadata)
            if not {"ring", "epoch"} <= {*record.metadata}:
                raise ValueError(f"its record {COUNTS} does not say of which ring it is")
            counts = self._counts[record.metadata["ring"], record.metadata["epoch"]]
            counts.torn = said.torn
            if self.complete:  # else what is found is counted
                counts.frames, counts.lost = said.frames, said.lost
                counts.redelivered = said.redelivered


class _Reader(SeekingReader):
    """Reads chunks by a summary that the file may not have."""

    summary: Summary

    def get_summary(self) -> Summary:
        return self.summary


def _index(chunk: Chunk, position: int, nbytes: int) -> ChunkIndex:
    return ChunkIndex(
        chunk_length=nbytes,
        chunk_start_offset=position,
        compression=chunk.compression,
        compressed_size=len(chunk.data),
        message_end_time=chunk.message_end_time,
        message_index_length=0,
        message_index_offsets={},
        message_start_time=chunk.message_start_time,
        uncompressed_size=chunk.uncompressed_size,
    )

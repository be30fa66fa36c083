"""The files of a recording: what they are called, what is written into them, and when one ends."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from mcap.writer import CompressionType, Writer

from gpuring.memory import freed
from gpuring.recording.counts import COUNTS, RecordedCounts
from gpuring.recording.message import ENCODING, Frame, RecordedRing

CHUNK_NBYTES = 4 << 20
"""A chunk ends when it has as many bytes.  A frame that is larger is a chunk of its own."""
CHUNK_S = 1.0
"""It also ends when its first frame has been in it for so long."""

_SCHEMA = "gpuring.frame"
_NEVER = 1 << 62
"""The size of a chunk for mcap.  So it ends none by itself, and it is known what is written."""


class Files:
    """Writes frames into `path`, and after a split, or if that is there, into the next free one of
    path-1, path-2, ….  No file is ever written over.

    A file that was not finished, because its writer was killed, has all chunks that were ended.
    """

    def __init__(
        self,
        path: Path,
        *,
        compressed: bool = False,
        split_nbytes: float = math.inf,
        split_s: float = math.inf,
        durable: bool = False,
        say: Callable[[str], object] = str,
    ) -> None:
        """durable: a chunk, or a file, is on the disk when it was ended.  `say` is told when
        another file is begun."""
        self._path = path
        self._compression = CompressionType.ZSTD if compressed else CompressionType.NONE
        self._split_nbytes, self._split_s = split_nbytes, split_s
        self._durable, self._say = durable, say
        self._number = 0
        self.written: list[Path] = []
        """All files so far."""
        self.counts: defaultdict[str, RecordedCounts] = defaultdict(RecordedCounts)
        """What all files have, by the names of rings.  The last one is counted when it is
        finished."""
        self.readable: Counter[str] = Counter()
        """How many frames are in chunks that were ended, by the names of rings."""
        self._pending: Counter[str] = Counter()
        self._open()

    def _open(self) -> None:
        while True:
            numbered = f"{self._path.stem}-{self._number}{self._path.suffix}"
            path = self._path.with_name(numbered) if self._number else self._path
            self._number += 1
            try:
                self._file = path.open("xb")
                break
            except FileExistsError:
                continue
        self._channels: dict[RecordedRing, int] = {}
        self._writer = Writer(self._file, _NEVER, self._compression)
        try:
            self._writer.start()
            self._writer.flush()
        except OSError as error:  # each start of a recorder would leave an empty file
            with contextlib.suppress(OSError):
                self._file.close()
            path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from None
        if self.written:
            self._say(f"goes on in {path}")
        self.written.append(path)
        self._counts: defaultdict[RecordedRing, RecordedCounts] = defaultdict(RecordedCounts)
        self._began_s = time.monotonic()
        self._empty_chunk()

    def _empty_chunk(self) -> None:
        self._pending.clear()
        self._pending_nbytes, self._pending_s = 0, math.inf

    def write(self, frame: Frame) -> None:
        """Puts a frame into the chunk.  It is written with that.  Raises OSError."""
        if self._file.closed:
            self._open()
        if frame.ring not in self._channels:
            schema = self._writer.register_schema(_SCHEMA, ENCODING, frame.ring.schema)
            self._channels[frame.ring] = self._writer.register_channel(
                frame.ring.name, ENCODING, schema, frame.ring.metadata
            )
        if not self._pending_nbytes:
            self._pending_s = time.monotonic()
        self._pending_nbytes += len(frame.data)
        self._writer.add_message(
            self._channels[frame.ring],
            log_time=frame.unix_ns,
            publish_time=own_time_ns(frame),
            sequence=frame.seq & 0xFFFF_FFFF,
            data=frame.data,
        )
        self._counts[frame.ring].add(frame)
        self._pending[frame.ring.name] += 1

    def add_torn(self, ring: RecordedRing, torn: int) -> None:
        """Notes in the file that so many torn frames were left out."""
        if self._file.closed:
            self._open()
        self._counts[ring].torn += torn
        self._note(ring)

    def _note(self, ring: RecordedRing) -> None:
        named = {"ring": ring.name, "epoch": ring.epoch}
        self._writer.add_metadata(COUNTS, named | self._counts[ring].to_text())

    @property
    def chunk_due_s(self) -> float:
        """When the chunk has to be ended, on the clock of time.monotonic."""
        return 0.0 if self._pending_nbytes >= CHUNK_NBYTES else self._pending_s + CHUNK_S

    @property
    def split_due(self) -> bool:
        """Whether the file has to be finished before the next frame."""
        return bool(self._channels) and (
            self._file.tell() >= self._split_nbytes
            or time.monotonic() - self._began_s >= self._split_s
        )

    def end_chunk(self) -> None:
        """Writes the frames of the chunk.  When this returns, a kill loses none of them.  Raises
        OSError."""
        if self._file.closed:
            return
        self._writer.flush()
        if self._durable and self._pending_nbytes:
            os.fdatasync(self._file.fileno())
        self.readable += self._pending
        self._empty_chunk()

    def finish(self) -> None:
        """Ends the chunk and the file.  The next frame opens another one.  Raises OSError."""
        if self._file.closed:
            return
        self.end_chunk()
        for ring, counts in self._counts.items():
            self._note(ring)
            self.counts[ring.name] += counts
        self._writer.finish()
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())
        self._file.close()
        self._channels = {}

    def give_up(self) -> None:
        """Closes the file as it is, after an error.  One without a frame is removed."""
        with contextlib.suppress(OSError):  # of what is still in its buffer
            self._file.close()
        if not self._counts:
            self.written[-1].unlink(missing_ok=True)


def keep_freed_memory() -> None:
    """mcap copies a chunk several times, each time into fresh memory.  Its pages cost more than the
    copies."""
    freed.keep(256 << 20, below=32 << 20)


def own_time_ns(frame: Frame) -> int:
    """The frame's own time, as MCAP's `publish_time`: its integer metadata field `time_ns`, or when
    it was first published on another host.  Else when it was published here."""
    if frame.meta is not None and "time_ns" in (frame.meta.dtype.names or ()):
        own = frame.meta["time_ns"]
        if own.dtype.kind in "iu" and own.ndim == 0 and own >= 0:
            return int(own)
    return frame.unix_ns if frame.origin is None else max(0, frame.origin.time_ns)

"""From rings into files."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import EndOfStream, FrameTorn, PeerLost, RingTimeout
from gpuring.recording.files import Files
from gpuring.recording.message import RecordedRing, copier
from gpuring.recording.places import place_of
from gpuring.ring import inner
from gpuring.ring.attaching import attach
from gpuring.ring.read_slot import ReadSlot
from gpuring.ring.waiting import select

_LOOK_S = 0.5
"""How often it looks around while no frame comes."""
_GPU_S = 0.005
"""How long a frame that is there may take until its GPU work is done, before others have a turn."""


class Source:
    """A ring whose frames are recorded.  It is a context manager, and a consumer of the ring in its
    block."""

    def __init__(
        self,
        name: str,
        *,
        timeout: float = 0.0,
        owner: int | None = None,
        lossless: bool = False,
        durable: str | None = None,
        patience: float | None = None,
        follow: bool = False,
        say: Callable[[str], object] = str,
    ) -> None:
        """Waits so many seconds for the ring.  Its block joins it, from the oldest frame on.  If it
        has gone meanwhile, the block waits for it for the rest of the time.

        * `owner`: that of `attach`.  `lossless`, `patience`: those of `Ring.consumer`.
        * `durable`: the name of a durable subscription.  If it is lossless, a frame is released
          when its chunk was written, and not when it was copied.  So a kill loses none.
        * `follow`: whether it goes on over restarts.  `say` is told when it is in another ring.

        Both raise what `attach` and `Ring.consumer` raise.
        """
        self._name, self._owner = name, owner
        self._lossless, self._durable = lossless, durable
        self._patience, self._follow, self._say = patience, follow, say
        self._holds = lossless and durable is not None
        self._held: list[ReadSlot] = []
        self._deadline = deadline_of(timeout)
        self._place = place_of(name, timeout)

    def __enter__(self) -> Source:
        with self._place:
            self._handle = attach(self._name, timeout=left_s(self._deadline), owner=self._owner)
            try:
                # gate: a stream that waits for a killed producer's event never wakes.
                self.frames = self._handle.consumer(
                    self._durable,
                    lossless=self._lossless,
                    start="oldest",
                    gate="host",
                    reattach=self._follow,
                    durable=self._durable is not None,
                    patience=self._patience,
                    label="record",
                )
                if not self._follow:
                    inner.expect_end(self.frames)
                self._settle_in()
            except BaseException:
                self._handle.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._place:
            self.frames.close()
            self._handle.close()

    def _settle_in(self) -> None:
        """In the ring in which the consumer is now."""
        self._in_ring = self.frames.ring
        self._ring = RecordedRing.of(self._in_ring)
        self._copy = copier(self._ring)
        self._torn_before = 0

    @property
    def full(self) -> bool:
        """Whether it holds so many slots that producers might have to wait."""
        return len(self._held) >= max(1, self._in_ring.slots // 2)

    def take(self, files: Files) -> None:
        """Writes the next frame, if there is one.  Raises EndOfStream, PeerLost, OSError."""
        with self._place:
            try:
                slot = self.frames.acquire(_GPU_S)
            except RingTimeout:
                return
            self._held.append(slot)
            if self.frames.ring is not self._in_ring:
                self._settle_in()
                self._say(f"{self._name} was made again, and goes on")
            try:
                frame = self._copy(slot)
            except FrameTorn:
                files.add_torn(self._ring, 1)
                self._release(self._held.pop())
                return
            if not self._holds:
                self._release(self._held.pop())
            files.write(frame)

    def release(self) -> None:
        """Gives the frames back.  They are written."""
        with self._place:
            while self._held:
                self._release(self._held.pop(0))

    def give_back(self) -> None:
        """Gives the frames back, after an error.  Those of a durable subscription come again, with
        `redelivered`, because they may be in the file or not."""
        with self._place:
            for slot in self._held:
                slot.__exit__(SystemExit, None, None)
        self._held.clear()

    def count_torn(self, files: Files) -> None:
        """Counts those that the consumer has passed over since the last look."""
        if self.frames.ring is not self._in_ring:
            return  # it has moved, and has no frame there yet
        peers = self._in_ring.stats().peers
        torn = sum(peer.torn for peer in peers if peer.number == self.frames.peer)
        if torn > self._torn_before:
            files.add_torn(self._ring, torn - self._torn_before)
        self._torn_before = torn

    @staticmethod
    def _release(slot: ReadSlot) -> None:
        with contextlib.suppress(FrameTorn):  # it was looked at when the copy was complete
            slot.release()


class Recorder:
    """Writes the frames of all sources until their streams have ended, or until `end`."""

    def __init__(self, sources: Sequence[Source], files: Files) -> None:
        self._files = files
        self._sources = list(sources)
        self._going_on = list(sources)
        self._ended = False
        self._waiting = 0
        """The thread that waits for frames.  0: none does."""
        self.trouble: list[PeerLost] = []
        """Streams that have ended by a death."""

    def end(self) -> None:
        """Ends it within half a second.  A signal handler ends its wait at once: there this may
        raise KeyboardInterrupt, once, which `run` catches."""
        ended_before, self._ended = self._ended, True
        if not ended_before and self._waiting == threading.get_ident():
            raise KeyboardInterrupt

    def run(self) -> None:
        """Returns when everything is written.  Raises OSError: then the file has what was written
        before, and what was not is given back."""
        try:
            self._run()
            self._end_chunk()
            self._files.finish()
        except BaseException:
            for source in self._sources:
                source.give_back()
            self._files.give_up()
            raise

    def _run(self) -> None:
        while self._going_on and not self._ended:
            try:
                ready = self._ready()
            except KeyboardInterrupt:
                if self._ended:
                    return
                raise
            for source in ready:
                try:
                    source.take(self._files)
                except EndOfStream:
                    self._going_on.remove(source)
                except PeerLost as lost:
                    self._going_on.remove(source)
                    self.trouble.append(lost)
            if not ready:
                self._count_torn()
            due = time.monotonic() >= self._files.chunk_due_s
            if due or any(source.full for source in self._sources):
                self._end_chunk()
            if self._files.split_due:
                self._end_chunk()
                self._files.finish()

    def _ready(self) -> list[Source]:
        """The sources that have a frame.  None if a chunk is due, or if this was ended."""
        by = {source.frames: source for source in self._going_on}
        patience_s = min(_LOOK_S, self._files.chunk_due_s - time.monotonic())
        try:
            self._waiting = threading.get_ident()
            ready = [] if self._ended else select(by, max(0.0, patience_s))
            return [by[frames] for frames in ready]
        finally:
            self._waiting = 0

    def _count_torn(self) -> None:
        for source in self._sources:
            source.count_torn(self._files)

    def _end_chunk(self) -> None:
        self._count_torn()
        self._files.end_chunk()
        for source in self._sources:
            source.release()

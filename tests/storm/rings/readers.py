"""Ways to take frames, as programs do, and what a program does that was interrupted while it did.

As soon as a verb has returned, its result is in `slot`, `second` or `batch`.  So exactly the frames
that an interrupt finds there were handed out.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import gpuring
from gpuring.native.snapshot import snapshot
from tests.helpers import loops
from tests.helpers.arrays import array_of, to_host
from tests.storm.paper import RingSheet, content

from .program import WAIT_S, Program

Way = Callable[["Reader", float], None]
END = gpuring.EndOfStream, gpuring.PeerLost


class Reader:
    """A consumer, its sheet, and the frames in its hands."""

    def __init__(self, program: Program, index: int, ways: tuple[Way, ...], **options: Any) -> None:
        self.program, self.index, self.ways, self.options = program, index, ways, options
        self.slot: Any = None
        self.second: Any = None
        self.batch: Any = ()
        self.looping = False
        self.over = False
        self.sheet: RingSheet | None = None
        self.peer: Any = None
        self._complete = False
        self._noted: set[int] = set()
        self._who = f"{program.role}.{program.number}"

    def join(self, ring: gpuring.Ring) -> None:
        with self.program.quiet():
            self.sheet = self._new_sheet(ring)
        self.peer = ring.consumer(**self.options)
        self._begin(ring)

    def _new_sheet(self, ring: gpuring.Ring) -> RingSheet:
        who = f"{self._who}.{self.program.participation()}"
        return RingSheet(self.program.folder, ring, self.index, who)

    def _begin(self, ring: Any) -> None:
        with self.program.quiet():
            self._ring = ring
            ours = snapshot(ring._header)["subscriptions"][self.peer._peer.subscription]
            assert self.sheet
            self.sheet("S", seq=ours["start"], k=ours["created_ns"])

    def _moved(self) -> None:
        """Notes that the loop has gone on in a later ring, so it had read this one to the end."""
        before = self.sheet
        assert before
        self.sheet = self._new_sheet(self.peer.ring)
        before("Z", lost=1)
        before.close()
        self._begin(self.peer.ring)

    def left(self) -> None:
        """Notes that the reader has closed."""
        if self.sheet:
            self.sheet("Z", lost=self._complete)
            self.sheet.close()

    # ---- frames --------------------------------------------------------------------------------

    def step(self, timeout: float = WAIT_S) -> None:
        self.program.chance.choice(self.ways)(self, timeout)
        self._empty()

    def note(self, slot: Any) -> None:
        with self.program.quiet():
            if self.peer.ring is not self._ring:
                self._moved()
            producer, k = int(slot.meta["producer"]), int(slot.meta["k"])
            if not (to_host(array_of(slot)) == content(producer, k)).all():
                self.program.find(f"frame {slot.seq} is not what producer {producer} wrote as {k}")
            self._write("A", slot, producer, k)
        if self.program.chance.random() < 0.05:
            time.sleep(self.program.chance.random() * 0.002)

    def _write(self, mark: str, slot: Any, producer: int, k: int) -> None:
        assert self.sheet
        self.sheet(mark, producer=producer, k=k, seq=slot.seq, lost=slot.lost,
                   again=slot.redelivered)  # fmt: skip
        self._noted.add(slot.seq)
        self.program.step()

    def salvage(self) -> None:
        """Gives back what the reader still has after an interrupt.

        If it has not looked at a frame, and does not have it any more, then the `with` block of a
        slot or a batch has given it back, or a loop has released it.  A loop may have released one
        frame that the reader never had.
        """
        for slot in (self.slot, self.second, *self.batch):
            if slot is None:
                continue
            if slot.seq not in self._noted and (slot._open or self.looping):
                if self.peer.ring is not self._ring:
                    self._moved()
                self._write("a", slot, -1, 0)
            with contextlib.suppress(gpuring.RingError):  # it was released
                slot.release()
        if self.looping and self.sheet:
            self.sheet("L")
        self._empty()

    def _empty(self) -> None:
        self.slot = self.second = None
        self.batch = ()
        self.looping = False
        self._noted.clear()

    def recover(self) -> None:
        """Checks that after an interrupt the reader holds nothing, at the latest after the next
        verb."""
        assert self.sheet
        self.sheet("I")
        self.salvage()
        try:
            with self.peer.acquire(0) as self.slot:
                self.note(self.slot)
        except (gpuring.RingTimeout, *END):
            pass
        self.salvage()
        if held := self._holding():
            self.program.find(f"holds {held} of {self._ring.name} after an interrupt")

    def _holding(self) -> Any:
        peers = self.peer.ring.stats().peers
        return next((p.holding for p in peers if p.number == self.peer.peer), ())

    def ended(self) -> None:
        """Notes the end of the stream.  The reader has read everything if that is still so when the
        ring is known to be closed."""
        self.looping = False
        if not self.peer.ring.stats().closed:
            time.sleep(0.002)
            return
        try:
            with self.peer.acquire(0) as self.slot:
                self.note(self.slot)
        except END:
            self._complete = self.over = True


# ---- ways --------------------------------------------------------------------------------------


def by_hand(reader: Reader, timeout: float) -> None:
    reader.slot = reader.peer.acquire(timeout)
    reader.note(reader.slot)
    reader.slot.release()


def two_at_once(reader: Reader, timeout: float) -> None:
    reader.slot = reader.peer.acquire(timeout)
    reader.note(reader.slot)
    try:
        reader.second = reader.peer.acquire(0)
    except (gpuring.RingTimeout, *END):
        pass
    else:
        reader.note(reader.second)
        reader.second.release()
    reader.slot.release()


def with_block(reader: Reader, timeout: float) -> None:
    with reader.peer.acquire(timeout) as reader.slot:
        reader.note(reader.slot)


def latest(reader: Reader, timeout: float) -> None:
    with reader.peer.latest(timeout) as reader.slot:
        reader.note(reader.slot)


def many(reader: Reader, timeout: float) -> None:
    n = reader.program.chance.randrange(1, 5)
    with reader.peer.acquire_many(n, timeout) as reader.batch:
        for slot in reader.batch:
            reader.note(slot)
            if reader.program.chance.random() < 0.2:
                slot.release()


def loop(reader: Reader, timeout: float) -> None:
    """Reads in a loop until the stream ends, or some frames are read."""
    left = reader.program.chance.randrange(1, 50)
    reader.looping = True
    for reader.slot in reader.peer:  # noqa: B020
        reader.note(reader.slot)
        left -= 1
        if not left or reader.program.ending:
            return
        reader.slot = None  # noqa: PLW2901
        reader._noted.clear()
    reader.looping = False
    by_hand(reader, 0)  # raises the reason


def awaited(reader: Reader, timeout: float) -> None:
    async def main() -> None:
        for _ in range(reader.program.chance.randrange(1, 20)):
            reader.slot = await reader.peer.acquire_async(timeout)
            reader.note(reader.slot)
            reader.slot.release()
            reader.slot = None
            reader._noted.clear()

    loops.run(main())


def awaited_loop(reader: Reader, timeout: float) -> None:
    async def main() -> None:
        left = reader.program.chance.randrange(1, 20)
        reader.looping = True
        async for reader.slot in reader.peer:  # noqa: B020
            reader.note(reader.slot)
            left -= 1
            if not left:
                return
            reader.slot = None  # noqa: PLW2901
            reader._noted.clear()
        reader.looping = False
        by_hand(reader, 0)

    loops.run(main())


def by_another_thread(reader: Reader, timeout: float) -> None:
    helper = _Helper.get()
    reader.slot = reader.peer.acquire(timeout)
    reader.note(reader.slot)
    with reader.program.quiet():  # an endpoint is used by one thread at a time
        helper(reader.slot)


class _Helper:
    """A thread that releases slots."""

    _one: _Helper | None = None

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    @classmethod
    def get(cls) -> _Helper:
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def _run(self) -> None:
        while True:
            slot = self._work.get()
            try:
                slot.release()
            except BaseException as error:
                self._done.put(error)
            else:
                del slot  # its array keeps the memory
                self._done.put(None)

    def __call__(self, slot: Any) -> None:
        self._work.put(slot)
        if error := self._done.get():
            raise error

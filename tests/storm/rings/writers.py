"""Ways to make frames, as programs do, and what a program does that was interrupted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import gpuring
from tests.helpers import loops
from tests.helpers.arrays import array_of, assign
from tests.storm.paper import RingSheet, content

from .program import WAIT_S, Program

Way = Callable[["Writer", float], None]
PACE_S = 0.006
MOST_AT_ONCE = 4


class ChangedMind(Exception):
    pass


class Writer:
    """A producer, its sheet, and the claims in its hands."""

    def __init__(self, program: Program, index: int, ways: tuple[Way, ...]) -> None:
        self.program, self.index, self.ways = program, index, ways
        self.slot: Any = None
        self.batch: Any = ()
        self.sheet: RingSheet | None = None
        self.peer: Any = None
        self._over = False
        self._k = 0

    def join(self, ring: gpuring.Ring) -> None:
        n = self.program.participation()
        self._me = self.program.number << 12 | n
        with self.program.quiet():
            who = f"{self.program.role}.{self.program.number}.{n}"
            self.sheet = RingSheet(self.program.folder, ring, self.index, who)
        self.peer = ring.producer()
        self._ring = ring

    def left(self) -> None:
        if self.sheet:
            self.sheet("Z")
            self.sheet.close()

    @property
    def over(self) -> bool:
        return self._over or self.program.finishing

    # ---- frames --------------------------------------------------------------------------------

    def step(self, timeout: float = WAIT_S) -> None:
        with contextlib.suppress(ChangedMind):
            self.program.chance.choice(self.ways)(self, timeout)
        self.slot, self.batch = None, ()
        time.sleep(self.program.chance.random() * PACE_S)

    def fill(self, slot: Any) -> int:
        """Writes the next frame, and notes that it may be published.  Returns its number."""
        with self.program.quiet():
            k, self._k = self._k, self._k + 1
            assign(array_of(slot), content(self._me, k))
            slot.meta["producer"], slot.meta["k"] = self._me, k
            assert self.sheet
            self.sheet("p", producer=self._me, k=k, seq=slot.seq)
        return k

    def done(self, *frames: tuple[int, int]) -> None:
        """Notes the (seq, k) of each frame that is published."""
        with self.program.quiet():
            assert self.sheet
            for seq, k in frames:
                self.sheet("P", producer=self._me, k=k, seq=seq)
                self.program.step()

    def salvage(self) -> None:
        for slot in (self.slot, *self.batch):
            if slot is not None:
                with contextlib.suppress(gpuring.RingError):  # the claim was ended
                    slot.abandon()
        self.slot, self.batch = None, ()

    def recover(self) -> None:
        """Checks that after an interrupt the writer has no claim, at the latest after the next
        verb."""
        assert self.sheet
        self.sheet("I")
        self.salvage()
        with contextlib.suppress(gpuring.RingFull, gpuring.RingClosed):
            self.peer.claim(0).abandon()
        if held := self._holding():
            self.program.find(f"has claimed {held} of {self._ring.name} after an interrupt")

    def _holding(self) -> Any:
        peers = self._ring.stats().peers
        return next((p.holding for p in peers if p.number == self.peer.peer), ())

    def ended(self) -> None:
        self._over = True


# ---- ways --------------------------------------------------------------------------------------


def by_hand(writer: Writer, timeout: float) -> None:
    writer.slot = writer.peer.claim(timeout)
    if writer.program.chance.random() < 0.05:
        writer.slot.abandon()
        return
    seq, k = writer.slot.seq, writer.fill(writer.slot)
    writer.slot.publish()
    writer.done((seq, k))


def with_block(writer: Writer, timeout: float) -> None:
    with writer.peer.claim(timeout) as writer.slot:
        if writer.program.chance.random() < 0.03:
            raise ChangedMind
        seq, k = writer.slot.seq, writer.fill(writer.slot)
    writer.done((seq, k))


def many(writer: Writer, timeout: float) -> None:
    n = writer.program.chance.randrange(1, MOST_AT_ONCE + 1)
    frames = []
    with writer.peer.claim_many(n, timeout) as writer.batch:
        for slot in writer.batch:
            if writer.program.chance.random() < 0.1:
                slot.abandon()
                continue
            frames.append((slot.seq, writer.fill(slot)))
    writer.done(*frames)


def awaited(writer: Writer, timeout: float) -> None:
    async def main() -> None:
        for _ in range(writer.program.chance.randrange(1, 20)):
            with await writer.peer.claim_async(timeout) as writer.slot:
                seq, k = writer.slot.seq, writer.fill(writer.slot)
            writer.done((seq, k))
            writer.slot = None
            await asyncio.sleep(writer.program.chance.random() * PACE_S)

    loops.run(main())

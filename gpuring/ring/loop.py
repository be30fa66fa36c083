"""Loops over the frames of a consumer: `for` and `async for`.

A loop is one around acquire, which waits for restarts by itself (following.py).  It holds one
frame, that of its body.  These are ordinary Python, so a signal handler may come at any place of a
loop.  `undo` and `leave` give back what it holds then.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gpuring.errors import EndOfStream, FrameTorn
from gpuring.native.signals import begun_elsewhere
from gpuring.ring.not_copyable import Unique

if TYPE_CHECKING:
    from gpuring.ring.read_slot import ReadSlot


class Looped(Protocol):
    """What a loop needs of its consumer, whose module imports this one."""

    _untold: list[int]

    @property
    def _ring(self) -> Any: ...
    def acquire(self) -> ReadSlot: ...
    async def acquire_async(self) -> ReadSlot: ...


def frames_of(consumer: Looped) -> Iterator[ReadSlot]:
    """The frames of `for slot in consumer`."""
    loop = Loop(consumer)
    try:
        while True:
            try:
                loop.slot = consumer.acquire()
            except EndOfStream:
                return
            yield loop.slot
            loop.give_back()
    except GeneratorExit:
        loop.leave()
        raise
    except BaseException:  # an interrupt, or an error that was thrown into the generator
        loop.undo()
        raise


class Loop:
    """The frame of a loop, and how it goes back.  It neither acquires nor waits: `frames_of` and
    `AsyncFrames` do, which use it."""

    __slots__ = ("_consumer", "slot")

    def __init__(self, consumer: Looped) -> None:
        self._consumer = consumer
        self.slot: ReadSlot | None = None
        """The slot in the body of the loop.  No local variable has it, because a traceback keeps
        local variables, and somebody would then still have the slot."""

    def give_back(self, left: bool = False) -> None:
        """Releases the frame that the body is done with.  After an interrupt `undo` does it.

        `left`: the body may not be done, because the loop was left."""
        try:
            if self.slot is not None and self.slot._open:
                (self.slot._end if left else self.slot.release)()
        except Exception:
            self.slot = None
            raise
        self.slot = None

    def undo(self) -> None:
        """After an interrupt.  If the body did not have its frame yet, the frame comes again."""
        if self._is_forked():
            return
        if self.slot is not None and self.slot._open and not self.slot._seen:
            self.slot._owner._put_back(self.slot.index)
        self.give_back()

    def leave(self) -> None:
        """After the loop was left, where nothing can be raised.  The next acquire, or close, raises
        FrameTorn for a torn frame."""
        if self._is_forked():
            return
        try:
            self.give_back(left=True)
        except FrameTorn as torn:
            self._consumer._untold += torn.seqs

    def _is_forked(self) -> bool:
        """Whether this is a forked child, which has nothing to end here."""
        return bool(self._consumer._ring._header.forked)


async def _next_frame(this: weakref.ref[AsyncFrames]) -> ReadSlot:
    try:
        frames = this()
        assert frames is not None  # the `async for` has it
        consumer, loop = frames._consumer, frames._loop
        loop.give_back()
        try:
            loop.slot = await consumer.acquire_async()
        except EndOfStream:
            raise StopAsyncIteration from None
        return loop.slot
    except (KeyboardInterrupt, SystemExit):  # the task keeps the error and our local variables
        if (frames := this()) is not None:
            frames._loop.undo()
        raise


class AsyncFrames(Unique):
    """The iterator of `async for slot in consumer`.  It does what that of `for` does."""

    def __init__(self, consumer: Looped) -> None:
        self._consumer = consumer
        self._loop = Loop(consumer)

    def __aiter__(self) -> AsyncFrames:
        return self

    __anext__ = begun_elsewhere(_next_frame)

    def __del__(self) -> None:
        """After the loop was left, by break or by an error."""
        if loop := getattr(self, "_loop", None):  # an interrupt may have come before there was one
            loop.leave()

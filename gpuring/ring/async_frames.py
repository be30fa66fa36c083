"""The iterator of `async for slot in consumer`.  frames.pyx has that of `for`, and what both share.

This is ordinary Python, so a signal handler may come at any place of it.  `undo` gives back what it
holds then.
"""

from __future__ import annotations

import weakref

from gpuring.errors import EndOfStream
from gpuring.native.signals import begun_elsewhere
from gpuring.ring.frames import OneFrame, hears_how_it_is_left
from gpuring.ring.read_slot import ReadSlot


async def _next_frame(this: weakref.ref[AsyncFrames]) -> ReadSlot:
    try:
        frames = this()
        assert frames is not None  # the `async for` has it
        frames.give_back()
        try:
            frames.slot = await frames.consumer.acquire_async()
        except EndOfStream:
            raise StopAsyncIteration from None
        return frames.slot
    except (KeyboardInterrupt, SystemExit):  # the task keeps the error and our local variables
        if (frames := this()) is not None:
            frames.undo()
        raise


@hears_how_it_is_left
class AsyncFrames(OneFrame):
    """The iterator of `async for slot in consumer`.  It does what that of `for` does."""

    def __aiter__(self) -> AsyncFrames:
        return self

    __anext__ = begun_elsewhere(_next_frame)

"""Loops over the frames of a consumer: `for` and `async for`.

A loop holds one frame, that of its body.  These are ordinary Python, so a signal handler may come
at any place of a loop.  `undo` and `leave` give back what it holds then.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gpuring import native
from gpuring.errors import EndOfStream, FrameTorn, PeerLost
from gpuring.native.signals import begun_elsewhere
from gpuring.registry.new_names import Arrivals
from gpuring.ring.not_copyable import Unique

if TYPE_CHECKING:
    from gpuring.native import Notifier, Peer
    from gpuring.ring.slot import ReadSlot


class Looped(Protocol):
    """What a loop needs of its consumer, whose module imports this one."""

    _at_end: Notifier | None
    _closed: bool
    _reattach: bool
    _restarted: bool
    _untold: list[int]

    @property
    def _peer(self) -> Peer: ...
    @property
    def _ring(self) -> Any: ...
    def acquire(self) -> ReadSlot: ...
    async def acquire_async(self) -> ReadSlot: ...
    def _answers_nothing(self) -> bool: ...
    def _move(self, successor: Any) -> bool: ...
    def _put_back(self, index: int) -> None: ...


def frames_of(consumer: Looped) -> Iterator[ReadSlot]:
    """The frames of `for slot in consumer`."""
    loop = Loop(consumer)
    try:
        while True:
            try:
                loop.slot = consumer.acquire()
            except (EndOfStream, PeerLost) as end:
                if loop.is_over(end):
                    return
                with loop.arrivals() as arrivals:
                    while not loop.goes_on():
                        arrivals.wait(math.inf)
            else:
                yield loop.taken()
                loop.give_back()
    except GeneratorExit:
        loop.leave()
        raise
    except BaseException:  # an interrupt, or an error that was thrown into the generator
        loop.undo()
        raise


class Loop:
    """What a loop over a consumer does next.  It neither acquires nor waits: `frames_of` and
    `AsyncFrames` do, which use it."""

    __slots__ = ("_consumer", "slot")

    def __init__(self, consumer: Looped) -> None:
        self._consumer = consumer
        self.slot: ReadSlot | None = None
        """The slot in the body of the loop.  No local variable has it, because a traceback keeps
        local variables, and somebody would then still have the slot."""

    def taken(self) -> ReadSlot:
        """Returns the frame that was acquired, for the body of the loop."""
        assert self.slot is not None
        consumer = self._consumer
        if consumer._restarted:
            self.slot._restarted, consumer._restarted = True, False
        return self.slot

    def give_back(self) -> None:
        """Releases the frame that the body is done with.  After an interrupt `undo` does it."""
        try:
            if self.slot is not None and self.slot._open:
                self.slot.release()
        except Exception:
            self.slot = None
            raise
        self.slot = None

    def undo(self) -> None:
        """After an interrupt.  If the body did not have its frame yet, the frame comes again."""
        if self._is_forked():
            return
        if self.slot is not None and self.slot._open and not self.slot._seen:
            self._consumer._put_back(self.slot.index)
        self.give_back()

    def leave(self) -> None:
        """After the loop was left, where nothing can be raised.  The next acquire, or close, raises
        FrameTorn for a torn frame."""
        if self._is_forked():
            return
        try:
            self.give_back()
        except FrameTorn as torn:
            self._consumer._untold += torn.seqs

    def _is_forked(self) -> bool:
        """Whether this is a forked child, which has nothing to end here."""
        return bool(self._consumer._ring._header.forked)

    def is_over(self, end: EndOfStream | PeerLost) -> bool:
        """Whether the loop ends with what acquire raised.  Raises it again if the loop raises it.
        False means: wait until the stream goes on, and acquire again."""
        consumer = self._consumer
        if consumer._closed or not consumer._reattach:
            if isinstance(end, EndOfStream):
                return True
            raise end
        consumer._restarted = True
        return False

    @contextlib.contextmanager
    def arrivals(self) -> Iterator[Arrivals]:
        """What a loop waits with at the end of the stream."""
        consumer, descriptor = self._consumer, -1
        with contextlib.suppress(OSError):  # without a descriptor or a thread it looks now and then
            consumer._at_end = native.Notifier()
            descriptor = consumer._at_end.fileno()
        try:
            yield Arrivals(descriptor)
        finally:
            consumer._at_end = None

    def goes_on(self) -> bool:
        """Whether a producer has joined the ring since, or the consumer was closed, or another ring
        has the name; then the consumer moves there.  If not, `arrivals` wakes up when it may be
        so."""
        consumer = self._consumer
        if consumer._answers_nothing():
            return True  # the next acquire says so
        if consumer._at_end is not None:
            consumer._at_end.arm(consumer._peer, at_end=True)  # before the look
        if native.look(consumer._peer)[0] not in (native.ENDED, native.PEER_LOST):
            return True
        successor = consumer._ring._successor()
        return successor is not None and consumer._move(successor)


async def _next_frame(this: weakref.ref[AsyncFrames]) -> ReadSlot:
    try:
        frames = this()
        assert frames is not None  # the `async for` has it
        consumer, loop = frames._consumer, frames._loop
        loop.give_back()
        while True:
            try:
                loop.slot = await consumer.acquire_async()
                return loop.taken()
            except (EndOfStream, PeerLost) as end:
                if loop.is_over(end):
                    raise StopAsyncIteration from None
            with loop.arrivals() as arrivals:
                while not loop.goes_on():
                    await arrivals.wait_async()
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

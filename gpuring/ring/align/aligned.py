"""Frames of several streams that belong together, as tuples.

`Aligned._look` decides: it returns the next tuple, or None if it has to wait.  It never waits
itself.  Its two drivers do: `__next__` with `select`, `__anext__` with `select_async`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from gpuring.errors import EndOfStream, PeerLost, RingTimeout
from gpuring.ring import caller
from gpuring.ring.align.lookahead import Frame, Lookahead, passed_over
from gpuring.ring.consumer import Consumer
from gpuring.ring.frames import hears_how_it_is_left
from gpuring.ring.not_copyable import Unique
from gpuring.ring.read_slot import ReadSlot
from gpuring.ring.waiting import UNINTERRUPTED_S, select, select_async

if TYPE_CHECKING:
    from typing_extensions import Self

OneSlot = TypeVar("OneSlot", ReadSlot, "ReadSlot | None")

_MANY = 100  # frames without a tuple, after which there is a warning
_NOT_YET_S = 0.001  # the rest where a frame is ready and its GPU is not, because no bell rings then


class Limits(NamedTuple):
    """The arguments of `align` that were checked."""

    by: str | None
    within: float
    partial: bool
    depth: int
    max_wait_s: float
    timeout: float


@hears_how_it_is_left
class Aligned(Unique, Generic[OneSlot]):
    """What `align` returns: an iterator of tuples of slots, for `for` and `async for`.

    The slots of a tuple are the user's until the next step or `close`, which release those that are
    still open.

    * At the end of a stream the iteration ends when no whole tuple can come any more.  With
      `partial` it ends when every stream is over.  If a producer was killed, it ends with PeerLost
      after everything that could be handed out.  It may be iterated again when a producer has come.
    * The stream of a consumer with `reattach=True` is waited for like one that stalls.  It takes
      part again when it goes on.
    * A value may go back in a stream, as that of a camera that starts again.  That gives a
      RuntimeWarning, once for each stream.  The frame is taken as late, and the frames after it are
      compared by their new values.
    * When 100 frames of all streams together were released without partners since the last tuple,
      there is one RuntimeWarning, which says what RingTimeout says.
    * FrameTorn is raised for frames that were handed out, by a later step or by the consumer's
      `close`.  Iterate again after it.  Frames that turn out torn before they are handed out raise
      nothing.
    * After a Ctrl-C, a cancelled task or RingTimeout nothing is lost.  Iterate again.
    * If a consumer is closed meanwhile, a step raises RingClosed.

    `close`, the end of the `with` block and leaving the loop give back what it holds and has not
    handed out.  The consumers acquire that again.  They are not closed.
    """

    def __init__(self, parts: Sequence[Lookahead], limits: Limits, stream: Any) -> None:
        self._streams = parts
        self._limits = limits
        self._cuda_stream = stream
        self._handed: Sequence[Frame | None] = ()
        """The frames of the tuple that the user has."""
        self._unmatched_before = self.unmatched  # when the last tuple was found
        self._warned = False
        self._patience_s = math.inf  # how long what is held may still wait for others
        self._rested_s = 0.0  # when the event loop last had a chance to run others

    @property
    def unmatched(self) -> tuple[int, ...]:
        """How many frames of each stream were released without having been handed out.

        Frames that a lossy consumer missed are not among them: `slot.lost` counts those.
        """
        return tuple(each.unmatched for each in self._streams)

    def __repr__(self) -> str:
        names = ", ".join(repr(each.consumer.ring.name) for each in self._streams)
        by, within = self._limits.by, self._limits.within
        how = "the newest of each" if by is None else f"by {by!r} within {within}"
        partial = ", partial" if self._limits.partial else ""
        return f"<Aligned of {names}: {how}{partial}, unmatched {self.unmatched}>"

    def __iter__(self) -> Self:
        """Itself.  Each step returns one slot for each consumer, in their order."""
        return self

    def __next__(self) -> tuple[OneSlot, ...]:
        deadline = self._begin()
        try:
            while (slots := self._look()) is None:
                live, seconds = self._waits_for(deadline)
                ready = select(live, seconds)
                if not self._take(ready):
                    self._check_time(deadline)
                    if ready:
                        time.sleep(_NOT_YET_S)
            return slots
        except EndOfStream:
            self._handed = ()
            raise StopIteration from None
        except BaseException:
            self._handed = ()  # nobody got the tuple, so its frames come again
            raise

    def __aiter__(self) -> Self:
        """Itself, for `async for`.  It does what the synchronous loop does, while other tasks
        run."""
        return self

    async def __anext__(self) -> tuple[OneSlot, ...]:
        import asyncio

        loop = asyncio.get_running_loop()
        deadline = self._begin()
        try:
            if loop.time() - self._rested_s > UNINTERRUPTED_S:
                await asyncio.sleep(0)
                self._rested_s = loop.time()
            while (slots := self._look()) is None:
                live, seconds = self._waits_for(deadline)
                ready = await select_async(live, seconds)
                if not self._take(ready):
                    self._check_time(deadline)
                    if ready:
                        await asyncio.sleep(_NOT_YET_S)
                self._rested_s = loop.time()
            return slots
        except EndOfStream:
            self._handed = ()
            raise StopAsyncIteration from None
        except BaseException:
            self._handed = ()
            raise

    # ---- one step ------------------------------------------------------------------------------

    def _begin(self) -> float:
        """Releases what the user had, and returns when this step is to end."""
        deadline = time.monotonic() + self._limits.timeout
        self._move_on()
        for each in self._streams:
            each.begin_step()
        return deadline

    def _move_on(self, kind: type[BaseException] | None = None) -> None:
        for each, frame in zip(self._streams, self._handed, strict=bool(self._handed)):
            if frame is not None:
                each.let_go(frame, kind)
        self._handed = ()

    def _look(self) -> tuple[Any, ...] | None:
        """The next tuple, or None if it has to wait.  Raises EndOfStream or PeerLost at the end."""
        while True:
            wanted = [each.consumer for each in self._streams if each.wanted]
            if wanted:
                self._take(select(wanted, 0))
            self._check_end()
            heads = [each.head for each in self._streams]
            first = min(filter(None, heads), key=itemgetter(0), default=None)
            if first is None:
                self._patience_s = math.inf
                return None
            limit = first.key + self._limits.within
            # A frame whose value is not a number has the key -inf, and fits no other.
            group = [
                head if head and (head is first or -math.inf < head.key <= limit) else None
                for head in heads
            ]
            if None in group:
                if any(each.may_bring(limit) for each in self._streams) and self._may_wait(group):
                    return None
                if not self._limits.partial:
                    self._streams[heads.index(first)].drop(first)
                    self._warn_of_no_match()
                    continue
            self._order(group)
            self._unmatched_before = self.unmatched
            self._handed = group
            return tuple(frame and frame.slot for frame in group)

    def _take(self, ready: list[Consumer]) -> bool:
        """Takes frames of the consumers that are ready.  Returns whether anything came."""
        came = [each.take() for each in self._streams if each.consumer in ready]
        return any(came)

    def _check_end(self) -> None:
        over = [each for each in self._streams if each.end is not None and not each.held]
        if not over or (self._limits.partial and len(over) < len(self._streams)):
            return
        ends = [each.end for each in over]
        for each in self._streams:
            each.end = None  # somebody may have joined when it is iterated again
            each.give_back()
        raise next((end for end in ends if isinstance(end, PeerLost)), None) or EndOfStream()

    def _may_wait(self, group: Iterable[Frame | None]) -> bool:
        """Whether these frames may still wait for others.  Sets how long."""
        limits, self._patience_s = self._limits, math.inf
        if limits.by is None and not limits.partial:
            return True  # because newer ones take their places
        if any(len(each.held) + each.passed >= limits.depth for each in self._streams):
            return False
        published_ns = min(frame.time_ns for frame in group if frame)
        self._patience_s = limits.max_wait_s - (time.monotonic_ns() - published_ns) / 1e9
        return self._patience_s > 0

    def _waits_for(self, deadline: float) -> tuple[list[Consumer], float | None]:
        """The consumers to wait for, at least one, and how many seconds."""
        seconds = min(deadline - time.monotonic(), self._patience_s)
        live = [each.consumer for each in self._streams if each.is_live]
        return live, None if seconds == math.inf else max(0, seconds)

    def _check_time(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            first = f"no frames that belong together within {self._limits.timeout} s"
            before: list[int] = [each.unmatched_before for each in self._streams]
            raise RingTimeout("; ".join([first, *passed_over(self._streams, before)]))

    def _warn_of_no_match(self) -> None:
        """Once, when so many frames were released since the last tuple that something is wrong."""
        if self._warned or sum(self.unmatched) - sum(self._unmatched_before) < _MANY:
            return
        self._warned = True
        by, within = self._limits.by, self._limits.within
        first = f"no frames that belong together by {by!r} within {within}, of {_MANY} that came"
        told = "; ".join([first, *passed_over(self._streams, self._unmatched_before)])
        hint = "Is within= in the units of the field, and do all streams count from one moment?"
        caller.warn(f"{told}. {hint}", RuntimeWarning)

    def _order(self, group: Iterable[Frame | None]) -> None:
        """Orders frames that waited here, on a GPU.  They were acquired for the stream that was
        current then."""
        if self._cuda_stream is not None:
            return
        for frame in group:
            if frame is not None and frame.slot._device is not None:
                now = frame.slot._device.current_stream()
                if now != frame.slot._stream:
                    frame.slot._import_on(now)

    # ---- its end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Releases what was handed out, gives back what was not, and leaves the consumers open.

        May be called twice, and the iteration may go on afterwards.
        """
        self._end(None)

    def _end(self, kind: type[BaseException] | None) -> None:
        if self._streams[0].consumer.ring._header.forked:
            return
        self._move_on(kind)
        for each in self._streams:
            each.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)

    def _left(self, kind: type[BaseException] | None) -> None:
        if getattr(self, "_streams", None) is not None:  # an interrupt may have come before
            with contextlib.suppress(Exception):
                self._end(kind)

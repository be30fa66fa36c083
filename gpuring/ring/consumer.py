"""The consumer, which acquires a frame, reads it and releases it; and loops over its frames."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuring import native
from gpuring.errors import EndOfStream, FrameTorn, PeerLost, RingError, raise_first
from gpuring.native.signals import begun_elsewhere
from gpuring.registry import diagnosis
from gpuring.registry.new_names import Arrivals
from gpuring.registry.subscriptions import is_unnamed, text_of
from gpuring.ring import verbs, waiting
from gpuring.ring.batch import ReadBatch
from gpuring.ring.endpoint import Endpoint, Gate, JoinedRing
from gpuring.ring.not_copyable import Unique
from gpuring.ring.slot import ReadSlot

if TYPE_CHECKING:
    from gpuring.native import Notifier, Peer


class Consumer(verbs.ConsumerVerbs, Endpoint):
    """Reads frames from a ring.  `Ring.consumer()` makes it.  One thread at a time uses it."""

    _slots: list[ReadSlot]
    _slot_type = ReadSlot
    _role = "consumer"
    _batch = ReadBatch
    _takes = ("acquire", "latest", "acquire_many")

    if TYPE_CHECKING:  # of _verbs.ConsumerVerbs, which has their docstrings

        def acquire(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot: ...

        def latest(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot: ...

        def acquire_many(
            self, n: int, timeout: float | None = None, *, stream: Any = None
        ) -> ReadBatch: ...

    def __init__(
        self,
        ring: JoinedRing,
        peer: Peer,
        lossless: bool,
        options: tuple[Gate | None, bool, float | None],
        reattach: bool,
    ) -> None:
        self._lossless = lossless
        self._options = options
        """(gate, redeliver, spin), for a join after a restart."""
        self._reattach = reattach
        self._moved = False  # whether to a ring that we attached to ourselves, and so have to close
        self._home = ring
        """The ring whose close closes this consumer, also after it has moved."""
        self._restarted = False  # whether the next frame is the first one after a restart
        self._untold = []
        self._at_end: Notifier | None = None
        """It wakes up a loop that waits for the stream to go on.  None while no loop does."""
        super().__init__(ring, peer)

    @property
    def subscription(self) -> str:
        """The name of the subscription.  Consumers that share it share its frames."""
        return text_of(self._peer.header.subscription_name(self._peer.subscription))

    @property
    def lossless(self) -> bool:
        """Whether producers wait for the subscription.  Otherwise they may pass it."""
        return self._lossless

    def _described(self) -> str:
        return f" of {self.subscription!r}, {'lossless' if self._lossless else 'lossy'}"

    def _not_lossy(self) -> TypeError:
        return TypeError(
            f"ring {self._ring.name!r}: latest() skips frames, so it needs a lossy consumer: "
            "ring.consumer(lossless=False)"
        )

    def _tell(self) -> None:
        """Raises FrameTorn for the torn frames that no call has raised yet."""
        seqs, self._untold = sorted(self._untold), []
        if seqs:
            raise diagnosis.torn(self._ring.name, seqs, released=True)

    def __iter__(self) -> Iterator[ReadSlot]:
        """Every frame until the end of the stream.  Each is released when the loop moves on.

        With reattach=True the loop does not end with the stream: it waits for a new producer or a
        new ring.  A FrameTorn (see `acquire`) ends the loop and not the consumer, so iterate again.
        """
        loop = _Loop(self)
        try:
            while True:
                try:
                    loop.slot = self.acquire()
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

    def _move(self, successor: JoinedRing) -> bool:
        """Joins the same subscription of another ring, and then leaves this one.  Returns False if
        the other ring refuses."""
        subscription = None if is_unnamed(self.subscription) else self.subscription
        try:
            peer = successor._join(subscription, self._lossless, "oldest", *self._options)
        except RingError:  # it was closed or is full, and there may be another one soon
            successor.close()
            return False
        peer.count_before()
        self._count_on(peer, successor)
        try:
            self._leave()
        except BaseException:
            successor.close()
            raise
        self._moved = True
        self._settle_in(successor, peer)
        self._home._endpoints[id(self)] = weakref.ref(self)
        if self._home.closed:  # it was closed while we moved
            self.close()
        return True

    def _count_on(self, peer: Peer, successor: JoinedRing) -> None:
        """What was lost on the way into another ring counts from our last frame, for its `peer`."""
        begun = successor.spec.lost_before or 0
        counts_on = begun >= self._ring._header.link()[2]
        peer.count_on_from(self._peer, None if counts_on else begun)

    def _leave(self) -> None:
        try:
            super().close()
        finally:
            if self._closed:
                if not self._ring._header.forked and self._peer.look_at_released():
                    self._untold += self._peer.take_torn()
                self._home._forget(self)
                if self._moved:
                    self._moved = False
                    self._ring.close()

    def close(self) -> None:
        """Leaves the ring in order, as a producer does (`Producer.close`).

        Also raises FrameTorn, when it has left, if frames that were released before turned out torn
        since.
        """
        errors: list[Exception] = []
        if not self._closed:
            try:
                self._leave()
            except Exception as error:
                if not self._closed:
                    raise
                errors.append(error)
        try:
            self._tell()
        except FrameTorn as torn:
            errors.append(torn)
        if errors:
            raise_first(errors)

    def _dropped(self) -> None:
        try:
            super()._dropped()
        finally:
            if hasattr(self, "_home"):  # a Ctrl-C may have cut `close` short before it said so
                self._home._forget(self)

    def _leave_ring(self) -> list[Exception]:
        try:
            return super()._leave_ring()
        finally:
            if self._at_end is not None:
                self._at_end.set()  # a loop of another thread finds us closed

    def _give_back(self, index: int) -> None:
        if self._slots[index]._seen:  # so work on it may be enqueued
            try:
                self._slots[index]._end()
            except FrameTorn as torn:  # the caller may be another endpoint; raised later
                self._untold += torn.seqs
        else:
            self._put_back(index)

    def _finish(self) -> list[Exception]:
        errors = super()._finish()
        for error in errors:
            if isinstance(error, FrameTorn):
                self._untold += error.seqs
        return [error for error in errors if not isinstance(error, FrameTorn)]

    # ---- in an event loop ----------------------------------------------------------------------

    async def acquire_async(self, timeout: float | None = None, *, stream: Any = None) -> ReadSlot:
        """`acquire` for asyncio: other tasks run while this one waits.

        A task that is cancelled meanwhile holds nothing.  One task at a time may wait.  Without
        `stream` it takes the stream that is current when the frame is acquired.  Raises what
        acquire raises.
        """
        return await waiting.answer(
            self, lambda: self.acquire(0, stream=stream), "acquire", timeout
        )

    def __aiter__(self) -> AsyncFrames:
        """Every frame until the end of the stream, as in the synchronous loop."""
        return AsyncFrames(self)

    def _answers_at_once(self) -> bool:
        return self._answers_nothing() or bool(self._untold)


# ---- loops ---------------------------------------------------------------------------------------


class _Loop:
    """What a loop over a consumer does next.  It neither acquires nor waits: `Consumer.__iter__`
    and `AsyncFrames` do, which use it."""

    __slots__ = ("_consumer", "slot")

    def __init__(self, consumer: Consumer) -> None:
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
        if self.slot is not None and self.slot._open and not self.slot._seen:
            self._consumer._put_back(self.slot.index)
        self.give_back()

    def leave(self) -> None:
        """After the loop was left, where nothing can be raised.  The next acquire, or close, raises
        FrameTorn for a torn frame."""
        try:
            self.give_back()
        except FrameTorn as torn:
            self._consumer._untold += torn.seqs

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
            consumer._at_end.arm_at_end(consumer._peer)  # before the look
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

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._loop = _Loop(consumer)

    def __aiter__(self) -> AsyncFrames:
        return self

    __anext__ = begun_elsewhere(_next_frame)

    def __del__(self) -> None:
        """After the loop was left, by break or by an error."""
        if loop := getattr(self, "_loop", None):  # an interrupt may have come before there was one
            loop.leave()

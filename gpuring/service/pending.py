"""A call as its client sees it: the request that is written, the call in flight, and the answer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpuring._signals import Attempt, Ended
from gpuring.consumer import Consumer
from gpuring.errors import RingError, RingTimeout
from gpuring.producer import Producer
from gpuring.service.calls import Sleepers, Turn
from gpuring.service.tasks import Receiver, Tasks
from gpuring.service.whose import nobody_has
from gpuring.service.wire import Enveloped
from gpuring.slot import ReadSlot, WriteSlot
from gpuring.unique import Unique

if TYPE_CHECKING:
    from typing_extensions import Self


class RequestSlot(Ended, WriteSlot):
    """Where a request is written.

    As a context manager it sends the request at the end of the block, unless the block raises.
    """

    _call: weakref.ref[PendingCall] | None = None
    """The reference is weak, because the slot is used again.  Others decide whether the call is
    still needed."""

    @property
    def call(self) -> PendingCall:
        """The call that this request makes.  Take it before the request is sent.  Nothing else
        keeps the call, and a call that nobody has is given up."""
        call = self._pending()
        if call is None:
            raise RingError(f"ring {self._ring!r}: the call of slot {self.index} is over")
        return call

    def _pending(self) -> PendingCall | None:
        return None if self._call is None else self._call()

    def _end(self) -> None:
        super().abandon()
        self._over()

    def _over(self) -> None:
        """Ends the call, because its request was not sent."""
        call = self._pending()
        if call is not None and call._seq == self._seq:  # a Ctrl-C may have left none
            error = RingError(f"{call._label()}: its request was not sent")
            call._mailbox.calls.end(call, error)

    def publish(self) -> None:
        """Sends the request, in stream order."""
        self._check_open()
        call = self.call
        call._sent_at = time.monotonic()
        try:
            super().publish()
        except BaseException:
            if not self._open:  # an open slot can still be sent when its stream can be used again
                call._mailbox.calls.end(call)
            raise

    def abandon(self) -> None:
        """Does not send the request.  There is no call then."""
        self._check_open()
        try:
            super().abandon()
        finally:
            if not self._open:
                self._over()

    def _done(self, well: bool) -> None:
        """Called at the end of the `with` block, which raised nothing if `well`."""
        (self.publish if well else self.abandon)()


class RequestWriter(Enveloped, Producer):
    """A client's producer in the request ring."""

    if TYPE_CHECKING:

        def claim(
            self,
            timeout: float | None = None,
            *,
            stream: Any = None,
            shape: Sequence[int] | None = None,
        ) -> RequestSlot: ...

    _slot_type = RequestSlot


class Answer(Ended, ReadSlot):
    """An answer.  As a context manager it releases its slot at the end of the block."""

    _call: weakref.ref[PendingCall] | None = None

    def release(self) -> None:
        """Releases the slot, as ReadSlot.release does, and makes room for another call."""
        self._check_open()
        self._end()

    def _end(self) -> None:
        call = None if self._call is None else self._call()
        try:
            super().release()
        finally:
            if call is not None and not self._open:
                call._mailbox.calls.end(call)
                call._answer = None

    def _done(self, _: bool) -> None:
        """Called at the end of the `with` block."""
        self.release()


class AnswerReader(Enveloped, Consumer):
    """A client's consumer in its own ring."""

    _slot_type = Answer


class Receives(Receiver, Protocol):
    """The methods of Mailbox that a call uses."""

    def tasks(self) -> Tasks: ...
    def wait(self, call: PendingCall, timeout: float | None, stream: Any = None) -> bool: ...
    def order(self, answer: Answer, stream: Any) -> None: ...


class PendingCall(Unique):
    """A call in flight.  Take its `result` or `cancel` it; until then it needs room for its answer.

    As a context manager it is cancelled at the end of the block, or its answer is released.
    """

    __slots__ = (
        "__weakref__",
        "_answer",
        "_answer_seq",
        "_answered_below",
        "_error",
        "_expires",
        "_mailbox",
        "_number",
        "_releasing",
        "_sent_at",
        "_seq",
        "_sleepers",
        "_thread",
    )

    def __init__(self, mailbox: Receives, number: int, seq: int, expires: float | None) -> None:
        self._mailbox = mailbox
        self._number = number
        self._seq = seq  # of the request
        self._expires = expires  # time.monotonic()
        self._sent_at: float | None = None
        self._answer: Answer | None = None
        self._answer_seq = 0
        self._answered_below: int | None = None  # set when no engine has the request any more
        self._error: RingError | None = None
        self._releasing = Turn()  # to release the answer of a cancelled call
        self._thread = threading.get_ident()
        self._sleepers: Sleepers = {}  # who waits for this call

    @property
    def number(self) -> int:
        """The number of the call among those of its client; the engine sees it as `call.number`."""
        return self._number

    @property
    def done(self) -> bool:
        """Whether the answer or the failure has come.  It does not wait."""
        return self._mailbox.wait(self, 0)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the answer or the failure.  Returns False if none has come within `timeout`
        seconds.  It may still come."""
        return self._mailbox.wait(self, timeout)

    def result(self, timeout: float | None = None, *, stream: Any = None) -> Answer:
        """Waits for the answer: `with call.result() as slot: slot.array`.  Its release makes room
        for another call.

        On a GPU `stream` (default: CuPy's current one) waits until the answer is written.  It
        raises one of these, and the call is over then:

        * CallFailed: the engine failed the call.
        * PeerLost: the engine died with the call and there is no other engine.  Or an engine died
          before its GPU had written the answer.
        * RingClosed: the service or this client was closed.
        * RingTimeout: `timeout` seconds have passed.  An answer that comes later is discarded.  Or
          the call had expired when an engine came to it.

        It raises FrameTorn, as Consumer.acquire does, if answers that were released earlier are
        torn.  After a FrameTorn or a Ctrl-C the call is still in flight.
        """
        return self._outcome(self._mailbox.wait(self, timeout, stream), timeout, stream)

    async def result_async(self, timeout: float | None = None, *, stream: Any = None) -> Answer:
        """`result` for asyncio: other tasks run while this one waits, and any number may wait.

        A task that is cancelled while it waits cancels the call.  Raises what result raises.
        `await call` is the same without a time-out.
        """
        import asyncio

        deadline = None if timeout is None else time.monotonic() + timeout
        tasks = self._mailbox.tasks()
        try:
            done = await tasks.until(self._is_done, deadline, self._sleepers, stream)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._outcome(done, timeout, stream)

    def __await__(self) -> Generator[Any, None, Answer]:
        return self.result_async().__await__()

    def _outcome(self, done: bool, timeout: float | None, stream: Any) -> Answer:
        if not done:
            late = RingTimeout(f"{self._label()}: no answer within {timeout or 0:g} s; given up")
            self._mailbox.calls.end(self, late, gone=False)
        if self._error is not None:
            raise self._error
        answer = self._answer
        if answer is None or not self._has_answer():
            raise RingError(f"{self._label()}: its answer was released")
        self._mailbox.order(answer, stream)
        return answer

    def cancel(self) -> None:
        """Gives the call up.  Its answer is discarded, now or when it comes."""
        calls = self._mailbox.calls
        calls.end(self, RingError(f"{self._label()} was cancelled"), gone=False)
        with Attempt(self._releasing) as mine:  # several threads may cancel it, and one releases
            answer = self._answer
            if mine and answer is not None and self._has_answer():
                answer.release()

    def _is_done(self) -> bool:
        return self._answer_seq != 0 or self._error is not None

    def _has_answer(self) -> bool:
        """Whether the answer is here and not released."""
        answer = self._answer
        return answer is not None and answer._open and answer._seq == self._answer_seq

    def _answer_is_lost(self) -> bool:
        """Whether nobody outside of this object has its answer."""
        answer = self._answer
        return answer is None or nobody_has(answer, 1)

    def _label(self) -> str:
        return f"call {self._number} to service {self._mailbox.service!r}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"<{self._label()}, {'done' if self._is_done() else 'in flight'}>"

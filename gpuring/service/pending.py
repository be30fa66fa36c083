"""A call as users of a client have it: the request they write, `result`, `cancel`, the answer."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from gpuring import native
from gpuring.deadlines import deadline_of
from gpuring.errors import CallFailed, PeerLost, RingClosed, RingError, RingTimeout
from gpuring.native import seconds
from gpuring.native.snapshot import snapshot
from gpuring.registry.diagnosis import whose
from gpuring.ring import inner
from gpuring.ring.consumer import Consumer
from gpuring.ring.not_copyable import Unique
from gpuring.ring.producer import Producer
from gpuring.ring.whose import nobody_has
from gpuring.service._books import HoldsAnswer
from gpuring.service._calls import InFlight
from gpuring.service._envelopes import call_of
from gpuring.service._sender import SendsRequest
from gpuring.service.streaming import Parts
from gpuring.service.wire import ClientId, Enveloped

if TYPE_CHECKING:
    from typing_extensions import Self


class RequestSlot(SendsRequest):
    """Where a request is written.

    As a context manager it sends the request at the end of the block, unless the block raises.
    """

    if TYPE_CHECKING:  # of _sender.SendsRequest, which has its docstring

        @property
        def call(self) -> PendingCall: ...

    def publish(self) -> None:
        """Sends the request, in stream order."""
        self._done(True)

    def abandon(self) -> None:
        """Does not send the request.  There is no call then."""
        self._done(False)


class RequestWriter(Producer, Enveloped):
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

    def held_call(self, me: int) -> str:
        """In words, for a refusal: which call it is whose request holds this one up.  `me` is the
        number of the client."""
        peer = inner.peer(self)
        reason, _, _, seq, _ = peer.culprit
        if reason != native.BY_HOLDER:
            return ""
        if (call := call_of(peer.header, seq)) is None:
            return ""
        client, number, given_up = call
        whose = "this client" if client == me else f"client {ClientId(client)}"
        told = f", which is call {number} of {whose}"
        return f"{told}. It was given up: its engine has to end it" if given_up else told

    def engine_of(self, seq: int) -> str:
        """In words, for a time-out: which engine has the call with this request, and since when."""
        header = inner.peer(self).header
        engines = snapshot(header)["subscriptions"].get(0)
        if engines is None:
            return ". There is no engine"
        take = engines["takes"][seq % len(engines["takes"])]
        if take["seq"] < seq or take["phase"] == "open":
            return ". No engine has taken it"
        if take["seq"] > seq or take["phase"] == "done":
            return ""
        engine = take["member"]
        who = whose(header.label(engine), header.peer_pid(engine))
        had_s = (time.monotonic_ns() - take["since_ns"]) / 1e9
        stopped = ", and is stopped" if header.is_stopped(engine) else ""
        return f". Its engine ({who}) has had it for {had_s:.3f} s{stopped}"


class Answer(HoldsAnswer):
    """An answer.  As a context manager it releases its slot at the end of the block."""

    def release(self) -> None:
        """Releases the slot, as ReadSlot.release does, and makes room for another call."""
        self._done(True)


class AnswerReader(Consumer, Enveloped):
    """A client's consumer in its own ring."""

    _slot_type = Answer


class PendingCall(InFlight, Unique):
    """A call in flight.  Take its `result` or `cancel` it; until then it needs room for its answer.

    As a context manager it is cancelled at the end of the block, or its answer is released.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def _outcome_of(self, done: bool, timeout: float | None, stream: Any) -> Answer: ...
        def result(self, timeout: float | None = None, *, stream: Any = None) -> Answer: ...
        def _check_sent(self, timeout: float | None) -> int: ...

    @property
    def number(self) -> int:
        """The number of the call among those of its client; the engine sees it as `call.number`."""
        return self._number

    @property
    def done(self) -> bool:
        """Whether the answer, a part of it that nobody takes, or the failure has come.  It does not
        wait."""
        return self._mailbox.wait(self, 0)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the answer, a part of it that nobody takes, or the failure.  Returns False if
        none has come within `timeout` seconds.  It may still come.  Raises RingError in the block
        of its request."""
        self._check_sent(timeout)
        return self._mailbox.wait(self, timeout)

    async def result_async(self, timeout: float | None = None, *, stream: Any = None) -> Answer:
        """`result` for asyncio: other tasks run while this one waits, and any number may wait.

        A task that is cancelled while it waits cancels the call.  Raises what result raises.
        `await call` is the same without a time-out.
        """
        return await self._result_by(deadline_of(timeout), timeout, stream)

    if TYPE_CHECKING:  # of _calls.InFlight

        async def _result_by(
            self, deadline: float | None, timeout: float | None, stream: Any
        ) -> Answer: ...
        def __await__(self) -> Generator[Any, None, Answer]: ...

    def parts(self, timeout: float | None = None, *, stream: Any = None) -> Parts:
        """The parts of the answer, in order, in a `for` or an `async for`:

            for part in call.parts(timeout=5):
                print(part.array)

        Each part is released when the loop moves on, and the engine may then send another one.  If
        the engine gives the answer as a whole, this is the only part.  If the loop is left before
        the end, the call is cancelled.

        * `timeout`: how many seconds each part may take.  None waits for ever.
        * `stream`: waits for each part on a GPU, as for `result`.

        The loop raises what result() raises, and the call is over then.  PeerLost also means that
        the engine died, or left, when parts of its answer had been taken.  Parts that have come
        before are handed out first.  If no part had been taken, another engine gives the answer
        from its beginning.
        """
        return Parts(self, timeout, stream)

    def cancel(self) -> None:
        """Gives the call up.  Its answer is discarded, now or when it comes.  The engine sees that
        as `call.cancelled`.  A request that is still being written is not sent."""
        self._give_up(RingError(f"{self._label()} was cancelled"))

    def _late(self, what: str, timeout: float | None) -> RingTimeout:
        """The error for an answer, or a part of it, that has not come in time."""
        late = f"{self._label()}: no {what} within {seconds(timeout, 'timeout'):g} s; given up"
        mailbox: Any = self._mailbox  # a Mailbox, whose module imports this one
        return RingTimeout(f"{late}{mailbox.writer.engine_of(self._seq)}")

    def _answer_is_lost(self) -> bool:
        """Whether nobody outside of this object has its answer."""
        return self._answer is None or nobody_has([self._answer], 0, 2)  # the endpoint's, and ours

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        if self._error is not None:
            lost = "lost" if isinstance(self._error, (PeerLost, RingClosed)) else "given up"
            state = "failed" if isinstance(self._error, CallFailed) else lost
        elif self._is_done():
            state = "answered" if self._has_answer() else "answered and released"
        else:
            state = "in flight" if self._sent_at >= 0 else "not sent yet"
        return f"<{self._label()}, {state}>"

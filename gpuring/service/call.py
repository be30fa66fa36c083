"""A call as an engine sees it: the request that it holds, and the answer that it has to give.

This module has what a user calls.  _taken.pyx takes and sends the slots of the answer.
streaming.py has answers in parts, and delivery.py says where answers go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuring.ring import inner
from gpuring.ring.not_copyable import Unique
from gpuring.ring.whose import nobody_has
from gpuring.service._envelopes import FAILED
from gpuring.service._reach import Answering
from gpuring.service._taken import SendsAnswer, exit_calls, unanswered
from gpuring.service.assigning import assign
from gpuring.service.streaming import InParts
from gpuring.service.wire import ClientId, Enveloped

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring.native import Peer
    from gpuring.ring.read_slot import ReadSlot
    from gpuring.ring.ring import Ring
    from gpuring.service.metrics import Measures


class AnswerSlot(SendsAnswer):
    """Where an answer is written.

    As a context manager it sends the answer at the end of the block.  If the block raises, nothing
    is sent, and the call is not answered yet.
    """

    def publish(self) -> None:
        """Sends the answer, in stream order, and gives the request's slot back."""
        self._done(True)

    def abandon(self) -> None:
        """Does not send the answer.  The call is not answered yet."""
        self._done(False)


class AnswerWriter(Answering, Enveloped):
    """An engine's producer in the ring of one client."""

    _slots: list[AnswerSlot]
    _slot_type = AnswerSlot
    begun: list[AnswerSlot]

    def __init__(self, ring: Ring, peer: Peer, *, delivers: bool = True) -> None:
        self.delivers = delivers
        self.begun = []
        super().__init__(ring, peer)

    def begin(
        self, timeout: float, stream: Any = None, shape: Sequence[int] | None = None
    ) -> AnswerSlot:
        """A slot for an answer, as claim returns it."""
        if not self.begun:
            slot = self.claim(timeout, stream=stream, shape=shape)
            assert isinstance(slot, AnswerSlot)
            return slot
        again: AnswerSlot = inner.claim_again(self, self.begun, stream, shape)
        return again

    def answering(self) -> list[Call | None]:
        """The calls whose answers are being written."""
        return [slot._of() for slot in inner.slots(self) if inner.is_open(slot)]

    def void_begun(self) -> None:
        """Gives up the answers that were begun."""
        self.void_until(math.inf)

    def void_until(self, seq: float) -> None:
        """Gives up the answers that were begun in slots up to this sequence.  So nothing that is
        sent from now on comes before it."""
        for slot in [slot for slot in self.begun if slot.seq <= seq]:
            self.begun.remove(slot)
            inner.end(slot)

    def void(self, every: bool) -> bool:
        """Gives up the answers that were begun, and slots that a Ctrl-C left claimed for nobody.
        With `every` it gives up all claimed slots.  Returns whether nothing is claimed any more."""
        if self.closed:
            return True
        self.begun = []  # first, so that nobody takes a slot from it
        empty, slots = True, inner.slots(self)
        for index, _ in inner.peer(self).holding():
            free = nobody_has(slots, index)
            if every or free or not inner.is_open(slots[index]):
                inner.end(slots[index])
            else:
                empty = False
        return empty


class Call(InParts, Unique):
    """One call that this engine has taken and not answered yet.  `Server.take` makes it.

    The request belongs to this engine until the call is answered.  On a GPU the stream of `take`
    already waits for it.  After the answer its accessors raise.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # of _taken.Taken, which has their docstrings

        def _request(self) -> ReadSlot: ...
        @property
        def array(self) -> Any: ...
        def answer(
            self, *, stream: Any = None, shape: Sequence[int] | None = None
        ) -> AnswerSlot: ...

    def __getitem__(self, name: str) -> Any:
        """The array over the field `name` of the request.  Raises KeyError for an unknown field."""
        return self._request()[name]

    @property
    def meta(self) -> Any:
        """The request's metadata (`request_meta` of the service).  Raises TypeError if it has
        none."""
        return self._request().meta

    @property
    def slot(self) -> ReadSlot:
        """The request's slot, for `torch.from_dlpack(call.slot)` or for its age.  Do not release
        it."""
        return self._request()

    @property
    def client(self) -> ClientId:
        """The number of the client that sent the call; the same for all its calls.  It is an int
        that is shown as hexadecimal digits, as in the name of the ring of its answers."""
        return ClientId(self._client)

    @property
    def number(self) -> int:
        """The number of the call among those of its client.  It rises by one."""
        return self._number

    @property
    def time_left(self) -> float | None:
        """How many seconds are left until the call expires (`expires_s` of the request), and 0.0
        after that.  None if it does not expire."""
        left_s: float | None = self._server._requests.left_s(self._request())
        return left_s

    @property
    def redelivered(self) -> bool:
        """Whether another engine died with this call, and perhaps because of it."""
        return self._redelivered

    @property
    def answered(self) -> bool:
        """Whether its answer or its failure was sent.  The request is no longer this engine's
        then."""
        return self._answered

    def reply(self, value: Any) -> None:
        """Answers with `value`, which is put into the array of the answer.  Raises ValueError if it
        has another shape, and TypeError if it is None or cannot be cast to the array's dtype
        (NumPy's "same_kind").  It has answered nothing then."""
        if value is None:
            raise TypeError("reply() takes what is assigned to the answer's array, not None")
        with self.answer() as slot:
            assign(slot, value, "the answer")

    def fail(self, text: str) -> None:
        """Answers with a failure.  The client's `result()` raises CallFailed with `text`, of which
        the first 240 bytes are sent.  Raises TypeError if that is not a str."""
        self._request()
        _check_text(text)
        with self._server._claim_answer(self, None, None, FAILED, text):
            pass

    def __repr__(self) -> str:
        state = "answered" if self._answered else "open"
        return f"<Call {self._number} of {self.client} to {self._server.name!r}, {state}>"


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"fail() takes the text that the client gets, not {text!r}")


class Batch(Unique, list[Call]):
    """Calls that were taken together.

    As a context manager it fails the calls that are not answered at the end of the block, with the
    block's exception if it raised one.  SystemExit and Ctrl-C do not fail them.  The calls then
    stay with this engine until it answers them, or gives them back when it closes.  To answer
    calls later, take them without a block.
    """

    _measures: Measures | None = None
    """Where the end of its block is counted, once."""
    _taken_ns: int

    @property
    def server(self) -> Any:
        """The Server that they were taken from.  All calls of a batch are of one service."""
        return self[0]._server

    def fail(self, text: str) -> None:
        """Fails each call that is not answered yet with `text`, as Call.fail does."""
        _check_text(text)
        for call in unanswered(self):
            call.fail(text)

    def __enter__(self) -> Self:
        return self

    __exit__ = exit_calls

    def _leave(self, error: BaseException | None) -> None:
        """The end of the block, if there is anything to do."""
        if self._measures is not None:
            compute_s = (time.monotonic_ns() - self._taken_ns) / 1e9
            self._measures.ended([call.client for call in self], compute_s)
            self._measures = None
        if not unanswered(self):
            return
        if error is None:
            self.fail("the engine left it unanswered")
        elif isinstance(error, Exception):
            self.fail(f"{type(error).__name__}: {error}")

"""A call as an engine sees it: the request that it holds, and the answer that it has to give."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpuring._signals import Ended
from gpuring.errors import RingError
from gpuring.producer import Producer
from gpuring.service.whose import nobody_has
from gpuring.service.wire import FAILED, OK, Enveloped
from gpuring.slot import ReadSlot, WriteSlot
from gpuring.unique import Unique

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring._core import Peer
    from gpuring.ring import Ring


class AnswerSlot(Ended, WriteSlot):
    """Where an answer is written.

    As a context manager it sends the answer at the end of the block.  If the block raises, nothing
    is sent, and the call is not answered yet.
    """

    _writer: AnswerWriter
    _call: weakref.ref[Call] | None = None
    """The reference is weak, because this slot and the request's are used again.  Others decide
    whether the call is still needed."""
    _ending: str
    """Which of Counts it adds to.  "undelivered" means that nobody can read it: it goes nowhere."""

    def _of(self) -> Call | None:
        """The call that it answers; None if nobody has that call any more."""
        return None if self._call is None else self._call()

    def publish(self) -> None:
        """Sends the answer, in stream order, and gives the request's slot back."""
        self._check_open()
        call = self._of()
        if self._ending == "undelivered":
            super().abandon()
        else:
            super().publish()
        # Only now: if an engine is killed before this line, another one gets the request.
        if call is not None and not call.answered:
            call._end(self._ending)

    def abandon(self) -> None:
        """Does not send the answer.  The call is not answered yet."""
        self._check_open()
        if self._ending == "undelivered":
            super().abandon()
        else:
            self._open = False
            self._writer.begun.append(self)

    def _end(self) -> None:
        super().abandon()

    def _done(self, well: bool) -> None:
        """Called at the end of the `with` block, which raised nothing if `well`."""
        (self.publish if well else self.abandon)()


class AnswerWriter(Enveloped, Producer):
    """An engine's producer in the ring of one client."""

    _slots: list[AnswerSlot]  # type: ignore[assignment]
    _slot_type = AnswerSlot

    def __init__(self, ring: Ring, peer: Peer) -> None:
        self.begun: list[AnswerSlot] = []
        """Slots that were claimed for answers that were not sent.  They are not open.  The next
        answers use them, or the next batch makes them void.  A client has room for one answer to
        each call; if there were more, it could lose one."""
        super().__init__(ring, peer)

    def begin(
        self, timeout: float, stream: Any = None, shape: Sequence[int] | None = None
    ) -> AnswerSlot:
        """A slot for an answer, as claim returns it."""
        if not self.begun:
            slot = self.claim(timeout, stream=stream, shape=shape)
            assert isinstance(slot, AnswerSlot)
            return slot
        extents = None if shape is None else self._smaller(shape)
        on = None if self._device is None and stream is None else self._handle(stream)
        slot = self.begun.pop(0)
        slot._open = True
        slot._reshape(extents)
        if on is not None:
            try:
                slot._import_on(on)  # behind the work of the answer that was begun
            except BaseException:
                slot._end()
                raise
            slot._stream = on
        if self._watch is not None:
            self._watch.took((slot,))
        return slot

    def answering(self) -> list[Call | None]:
        """The calls whose answers are being written."""
        return [slot._of() for slot in self._slots if slot._open]

    def void(self, every: bool) -> bool:
        """Gives up the answers that were begun, and slots that a Ctrl-C left claimed for nobody.
        With `every` it gives up all claimed slots.  Returns whether nothing is claimed any more."""
        if self.closed:
            return True
        self.begun = []  # first, so that nobody takes a slot from it
        empty = True
        for index, _ in self._peer.holding():
            slot = self._slots[index]
            if every or not slot._open or nobody_has(slot):
                slot._open = True
                slot._end()
            else:
                empty = False
        return empty


class Engine(Protocol):
    """The methods of Server that a call uses."""

    @property
    def name(self) -> str: ...
    def _claim_answer(
        self, call: Call, stream: Any, shape: Sequence[int] | None, status: int = OK, text: str = ""
    ) -> AnswerSlot: ...
    def _end(self, call: Call, ending: str) -> None: ...


class Call(Unique):
    """One call that this engine has taken and not answered yet.  `Server.take` makes it.

    The request belongs to this engine until the call is answered.  On a GPU the stream of `take`
    already waits for it.  After the answer its accessors raise.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "_client",
        "_number",
        "_redelivered",
        "_server",
        "_slot",
    )

    def __init__(self, server: Engine, slot: ReadSlot, client: int, number: int) -> None:
        self._server = server
        self._slot = slot
        self._client = client
        self._number = number
        self._redelivered = slot.redelivered
        self._answered = False

    @property
    def array(self) -> Any:
        """The request, as an array over its slot.  If it has several fields, use `call[name]`."""
        return self._request().array

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
    def client(self) -> int:
        """The number of the client that sent the call; the same for all its calls."""
        return self._client

    @property
    def number(self) -> int:
        """The number of the call among those of its client.  It rises by one."""
        return self._number

    @property
    def redelivered(self) -> bool:
        """Whether another engine died with this call, and perhaps because of it."""
        return self._redelivered

    @property
    def answered(self) -> bool:
        """Whether its answer or its failure was sent.  The request is no longer this engine's
        then."""
        return self._answered

    def answer(self, *, stream: Any = None, shape: Sequence[int] | None = None) -> AnswerSlot:
        """Returns a slot for the answer.  As a context manager it sends the answer at the end of
        the block.  `stream` and `shape` are as for Producer.claim.

        It does not wait for the client, which has room for the answers to all its calls.  If the
        client has left meanwhile, the answer goes nowhere.  A client gets its answers in the order
        in which they were claimed, so claim the slot when you have something to write.

        Raises RingError if the call is answered already, and DeviceError.
        """
        self._request()
        return self._server._claim_answer(self, stream, shape)

    def reply(self, value: Any) -> None:
        """Answers with `value`, which is assigned to the array: `slot.array[...] = value`."""
        with self.answer() as slot:
            slot.array[...] = value

    def fail(self, text: str) -> None:
        """Answers with a failure.  The client's `result()` raises CallFailed with `text`, of which
        the first 240 bytes are sent."""
        self._request()
        with self._server._claim_answer(self, None, None, FAILED, text):
            pass

    def _request(self) -> ReadSlot:
        if self._answered:
            raise RingError(
                f"service {self._server.name!r}: call {self._number} of client {self._client:x} "
                "was answered; its request is no longer yours"
            )
        return self._slot

    def _end(self, ending: str) -> None:
        self._answered = True
        self._server._end(self, ending)

    def __repr__(self) -> str:
        state = "answered" if self._answered else "open"
        return f"<Call {self._number} of {self._client:x} to {self._server.name!r}, {state}>"


class Batch(Unique, list[Call]):
    """Calls that were taken together.

    As a context manager it fails the calls that are not answered at the end of the block, with the
    block's exception if it raised one.  SystemExit and Ctrl-C do not fail them.  The calls then
    stay with this engine until it answers them, or gives them back when it closes.
    """

    def fail(self, text: str) -> None:
        """Fails each call that is not answered yet with `text`, as Call.fail does."""
        for call in self:
            if not call.answered:
                call.fail(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is None:
            self.fail("the engine left it unanswered")
        elif isinstance(error, Exception):
            self.fail(f"{type(error).__name__}: {error}")

"""A call as an engine sees it: the request it holds, and the answer it owes."""

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
    """Where an answer is written.  As a context manager it is sent; if the block raises, it is not,
    and the call is still to be answered."""

    _writer: AnswerWriter
    _call: weakref.ref[Call] | None = None
    """Weak, because the slot is used again, and so is the request's: whether anybody has the call
    still is up to others."""
    _ending: str
    """Which of Counts it adds to.  "undelivered": nobody is there to read it, it goes nowhere."""

    def _of(self) -> Call | None:
        """Whose answer it is, if anybody has that call still."""
        return None if self._call is None else self._call()

    def publish(self) -> None:
        """Sends the answer, in stream order, and gives the request's slot back."""
        self._check_open()
        call = self._of()
        if self._ending == "undelivered":
            super().abandon()
        else:
            super().publish()
        # Only now: an engine that is killed before this line leaves the request to another one.
        if call is not None and not call.answered:
            call._end(self._ending)

    def abandon(self) -> None:
        """Does not send it: the call is still to be answered."""
        self._check_open()
        if self._ending == "undelivered":
            super().abandon()
        else:
            self._open = False
            self._writer.begun.append(self)

    def _end(self) -> None:
        super().abandon()

    def _done(self, well: bool) -> None:
        """The block of its `with` is."""
        (self.publish if well else self.abandon)()


class AnswerWriter(Enveloped, Producer):
    """An engine in one client's ring."""

    _slots: list[AnswerSlot]  # type: ignore[assignment]
    _slot_type = AnswerSlot

    def __init__(self, ring: Ring, peer: Peer) -> None:
        self.begun: list[AnswerSlot] = []
        """Claimed for answers that were not sent, and not open.  The next answers take them, or the
        next batch makes them void: a client has room for one answer to each call, and may lose one
        of more."""
        super().__init__(ring, peer)

    def begin(
        self, timeout: float, stream: Any = None, shape: Sequence[int] | None = None
    ) -> AnswerSlot:
        """A slot for an answer, as from claim."""
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
                slot._import_on(on)  # behind what was begun
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
        """Gives up what was begun, and what a Ctrl-C has left claimed for nobody; with `every` all.
        Whether nothing is claimed any more."""
        if self.closed:
            return True
        self.begun = []  # first: what is not in it, nobody takes
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
    """What a call needs of the Server that has taken it."""

    @property
    def name(self) -> str: ...
    def _claim_answer(
        self, call: Call, stream: Any, shape: Sequence[int] | None, status: int = OK, text: str = ""
    ) -> AnswerSlot: ...
    def _end(self, call: Call, ending: str) -> None: ...


class Call(Unique):
    """One call that this engine has taken and not answered yet.  Made by `Server.take`.

    The request is this engine's until it is answered: on a GPU the stream of `take` already waits
    for it.  Afterwards its accessors raise.
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
        """The request, as an array over its slot; `call[name]` if it has several."""
        return self._request().array

    def __getitem__(self, name: str) -> Any:
        """The array over the field `name` of the request.  KeyError if there is no such field."""
        return self._request()[name]

    @property
    def meta(self) -> Any:
        """The request's metadata (`request_meta` of the service); None if it has none."""
        return self._request().meta

    @property
    def slot(self) -> ReadSlot:
        """The request's slot, for `torch.from_dlpack(call.slot)`, its age.  Do not release it."""
        return self._request()

    @property
    def client(self) -> int:
        """Whose call it is: the same number for all calls of one client."""
        return self._client

    @property
    def number(self) -> int:
        """Which of its client's calls it is; rises by one."""
        return self._number

    @property
    def redelivered(self) -> bool:
        """Whether another engine died with this call: perhaps of it."""
        return self._redelivered

    @property
    def answered(self) -> bool:
        """Whether its answer, or its failure, is on its way; the request is no longer ours then."""
        return self._answered

    def answer(self, *, stream: Any = None, shape: Sequence[int] | None = None) -> AnswerSlot:
        """A slot for the answer; leaving it as a context manager sends the answer.  `stream` and
        `shape` as for Producer.claim.

        Does not wait for the client: each has room for the answers to all its calls.  If the client
        is gone meanwhile, the slot goes nowhere.  Claim it when there is something to write: a
        client gets its answers in the order in which they were claimed.  Raises RingError if the
        call is answered, DeviceError.
        """
        self._request()
        return self._server._claim_answer(self, stream, shape)

    def reply(self, value: Any) -> None:
        """Answers with `value`, assigned to the whole array: `slot.array[...] = value`."""
        with self.answer() as slot:
            slot.array[...] = value

    def fail(self, text: str) -> None:
        """Answers with a failure: `result()` raises CallFailed with the text, cut to 240 bytes."""
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
    """Calls taken together.  As a context manager it owes each an answer: those without one when
    the block ends fail, with the exception if it raised one.  (SystemExit and Ctrl-C are no fault
    of theirs: then they stay this engine's until it answers, or closes and gives them back.)"""

    def fail(self, text: str) -> None:
        """Fails those that are not answered yet, each with `text` as Call.fail does."""
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

"""The engine's side: take calls, answer them, let go of the dead."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gpuring import directory
from gpuring.consumer import Consumer
from gpuring.errors import (
    FrameTorn,
    RingClosed,
    RingError,
    RingFull,
    RingIncompatible,
    RingTimeout,
)
from gpuring.ring import attach
from gpuring.service.call import AnswerSlot, AnswerWriter, Batch, Call
from gpuring.service.wire import (
    ENGINES,
    FAILED,
    OK,
    TEXT_NBYTES,
    Enveloped,
    Terms,
    answers_name,
    make_answer_ring,
    names_answers,
)
from gpuring.unique import Unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from gpuring.ring import Ring
    from gpuring.slot import ReadSlot
    from gpuring.stats import RingStats

_SLICE_S = 0.25  # how long a wait for calls goes without a look at who has died
_TIDY_S = 1.0
_ROOM_S = 0.1  # for a dead engine's answer to be cleared, where it stands in the way
_GPU_ROOM_S = 2.0  # with the host gate also for the client's GPU to have read an earlier answer


_ENDINGS = {OK: "answered", FAILED: "failed"}


@dataclass
class Counts:
    """What an engine has done so far."""

    taken: int = 0
    """Calls that `take` has handed out."""
    answered: int = 0
    """Answers sent."""
    failed: int = 0
    """Failures sent: by `fail`, or because a block left a call unanswered."""
    expired: int = 0
    """Calls that nobody waited for any more when they were taken."""
    dropped: int = 0
    """Calls of clients that were dead or gone when they were taken."""
    undelivered: int = 0
    """Answers that found their client gone, or no slot in its ring."""
    redelivered: int = 0
    """Calls taken that another engine had died with, or given back."""


class RequestReader(Enveloped, Consumer):
    """An engine in the request ring."""


class Server(Unique):
    """An engine of a service, or who holds it open.  Made by `serve`; one thread at a time."""

    def __init__(self, ring: Ring, *, engine: bool) -> None:
        self._ring = ring
        self._clients: dict[int, AnswerWriter | None] = {}  # None: cannot be reached
        self._sinks: list[AnswerWriter] = []
        self._calls: set[Call] = set()
        self._engine = engine
        self._tidied = time.monotonic()
        self.counts = Counts()
        """What this engine has done so far."""
        try:
            self._terms = Terms.of(ring)
            redeliver = self._terms.redeliver
            # A producer that never claims: requests have no end while clients come and go.
            self._presence = ring.producer()
            peer = ring._join(ENGINES, True, "next", None, redeliver)
            self._requests = RequestReader(ring, peer, True, (None, redeliver, None), False)
        except BaseException:
            ring.close()
            raise
        if not engine:
            ring.watch()
        self._sweep()

    @property
    def name(self) -> str:
        """The name of the service that this is an engine of."""
        return self._ring.name

    @property
    def ring(self) -> Ring:
        """The ring that requests go through, shared by all clients and engines."""
        return self._ring

    @property
    def closed(self) -> bool:
        """Whether this engine has left."""
        return self._ring.closed

    def stats(self) -> RingStats:
        """A look at the request ring; `counts` says what this engine has done."""
        return self._ring.stats()

    # ---- taking --------------------------------------------------------------------------------

    def take(
        self,
        max_batch: int = 1,
        max_wait_s: float = 0.0,
        timeout: float | None = None,
        *,
        stream: Any = None,
    ) -> Batch:
        """At least one call, at most `max_batch`, in the order in which clients claimed them.

        Waits up to `timeout` seconds for the first one (None: for ever, 0: not), then up to
        `max_wait_s` more for the batch to fill.  On a GPU `stream` (default: CuPy's current one)
        waits for the requests.  Calls of dead clients and expired ones are passed over.

        Raises RingTimeout, EndOfStream when the service was closed and everything is answered or in
        other hands, DeviceError.  A call that raises has taken nothing.
        """
        if not self._engine:
            raise RingError(f"service {self.name!r}: this handle only holds it open (engine=False)")
        if max_batch < 1:
            raise ValueError(f"max_batch is at least 1, not {max_batch!r}")
        deadline = None if timeout is None else time.monotonic() + timeout
        self._void_begun()
        batch = Batch()
        try:
            while not batch:
                self._tidy()
                left = _SLICE_S
                if deadline is not None:
                    left = min(left, max(0.0, deadline - time.monotonic()))
                self._fill(batch, max_batch, left, stream)
                if not batch and deadline is not None and time.monotonic() >= deadline:
                    raise RingTimeout(f"service {self.name!r}: no call within {timeout:g} s")
            until = time.monotonic() + max_wait_s
            while len(batch) < max_batch and (left := until - time.monotonic()) > 0:
                if self._ring._header.closed:  # what is there already will do
                    break
                self._fill(batch, max_batch - len(batch), min(_SLICE_S, left), stream)
        except BaseException:
            self._calls.difference_update(batch)
            self._give_back_all()
            raise
        return batch

    def _fill(self, batch: Batch, n: int, timeout: float, stream: Any) -> None:
        """Adds up to n calls; none if there is none within `timeout` seconds."""
        try:
            slots: Sequence[ReadSlot] = self._requests.acquire_many(n, timeout, stream=stream)
        except RingTimeout:
            return
        except FrameTorn:  # requests that we have answered, of a client that died: nobody's loss
            return
        envelope = self._requests.envelope
        now_ns = time.monotonic_ns()
        for slot in slots:
            index = slot.index
            client = int(envelope["client"][index])
            if envelope["until_ns"][index] < now_ns:
                self.counts.expired += 1
                self._release_slot(slot)
            elif self._reach(client) is None:
                self.counts.dropped += 1
                self._release_slot(slot)
            else:
                call = Call(self, slot, client, int(envelope["call"][index]))
                self.counts.taken += 1
                self.counts.redelivered += call.redelivered
                self._calls.add(call)
                batch.append(call)

    def _give_back_all(self) -> None:
        """Gives back every request that is in nobody's hands: to another engine, or to us again."""
        ours = {call._slot.index for call in self._calls}
        peer = self._requests._peer
        for index, _ in sorted(peer.holding(), key=itemgetter(1), reverse=True):
            if index not in ours:
                slot = self._requests._slots[index]
                slot._open = False
                peer.settle(index)  # somebody else may release it before our GPU has read it
                peer.put_back(index)

    def _end(self, call: Call, ending: str) -> None:
        """The answer is on its way, or nobody is there to get it."""
        setattr(self.counts, ending, getattr(self.counts, ending) + 1)
        self._calls.discard(call)
        if call._slot._open:
            self._release_slot(call._slot)

    def _release_slot(self, slot: ReadSlot) -> None:
        with contextlib.suppress(FrameTorn):  # its client died
            slot.release()

    # ---- answering -----------------------------------------------------------------------------

    def _reach(self, client: int) -> AnswerWriter | None:
        """Our end of a client's ring; None if it is dead or gone."""
        try:
            writer = self._clients[client]
        except KeyError:
            writer = self._clients[client] = self._meet(client)
        if writer is not None and self._is_gone(writer):
            return None
        return writer

    def _meet(self, client: int) -> AnswerWriter | None:
        try:
            ring = attach(answers_name(self.name, client))
        except (RingError, PermissionError):
            return None
        try:
            if ring.spec != self._terms.response:
                raise RingIncompatible(f"ring {ring.name!r} holds no answers of {self.name!r}")
            return AnswerWriter(ring, ring._join_producer())
        except RingError:
            ring.close()
            return None

    @staticmethod
    def _is_gone(writer: AnswerWriter) -> bool:
        header = writer.ring._header
        return header.closed or not header.creator_alive

    def _claim_answer(
        self, call: Call, stream: Any, shape: Sequence[int] | None, status: int = OK, text: str = ""
    ) -> AnswerSlot:
        """A slot in the client's ring, or one that goes nowhere."""
        writer, slot = self._reach(call.client), None
        if writer is not None:
            with contextlib.suppress(RingClosed, RingFull):
                patience_s = _GPU_ROOM_S if writer._peer.gate_host else _ROOM_S
                slot = writer.begin(patience_s, stream, shape)
        ending = _ENDINGS[status]
        if writer is None or slot is None:
            ending = "undelivered"
            writer, slot = self._claim_sink(stream, shape)
        slot._writer, slot._call, slot._ending = writer, call, ending
        writer.envelope["call"][slot.index] = call.number
        writer.envelope["status"][slot.index] = status
        writer.envelope["text"][slot.index] = text.encode(errors="replace")[:TEXT_NBYTES]
        return slot

    def _claim_sink(
        self, stream: Any, shape: Sequence[int] | None
    ) -> tuple[AnswerWriter, AnswerSlot]:
        """A slot that nobody reads.  Its ring is named as a client's, and so swept up like one."""
        for sink in self._sinks:
            with contextlib.suppress(RingFull):
                return sink, sink.begin(0, stream, shape)
        ring = make_answer_ring(self._ring, self._terms, secrets.randbits(64), 1)
        self._sinks.append(AnswerWriter(ring, ring._join_producer()))
        return self._sinks[-1], self._sinks[-1].begin(0, stream, shape)

    def _void_begun(self) -> None:
        """What was begun and not sent in the batch before: later answers need not wait for it."""
        for writer in self._clients.values():
            if writer is not None:
                with contextlib.suppress(RingError):
                    writer.void_begun()

    # ---- the dead ------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Now and then: lets go of clients that are gone, removes what dead ones left behind."""
        now = time.monotonic()
        if now - self._tidied < _TIDY_S:
            return
        self._tidied = now
        for client, writer in list(self._clients.items()):
            if writer is None or self._is_gone(writer):
                del self._clients[client]
                if writer is not None:
                    self._leave(writer)
        self._sweep()

    @staticmethod
    def _leave(writer: AnswerWriter) -> None:
        with contextlib.suppress(RingError):
            writer.ring.close()

    def _sweep(self) -> None:
        with contextlib.suppress(OSError):
            directory.tidy(names_answers(self.name))

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves.  Calls that this engine has not answered go to another one, or are lost (if the
        service does not redeliver, they fail).

        The creator's close also ends the service: other engines get EndOfStream once everything is
        taken, clients RingClosed.  May be called twice.
        """
        if self._ring.closed:
            return
        if self._terms.redeliver:
            self._calls.clear()
            self._give_back_all()
        else:
            self._fail_all("the engine closed before it had answered")
        for writer in [*self._clients.values(), *self._sinks]:
            if writer is not None:
                self._leave(writer)
        self._clients.clear()
        with contextlib.suppress(FrameTorn):
            self._requests.close()
        owned = self._ring._created or self._ring._header.creator_alive
        self._ring.close()
        if not owned:
            directory.remove_dead(self.name)  # we may have been the last one
        self._sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, Exception):  # SystemExit and Ctrl-C are no fault of the calls
            self._fail_all(f"{type(error).__name__}: {error}")
        self.close()

    def _fail_all(self, text: str) -> None:
        for call in list(self._calls):
            with contextlib.suppress(RingError):
                call.fail(text)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.counts.answered} calls answered"
        return f"<Server of {self.name!r}: {state}>"

"""The engine's side: it takes calls, answers them, and clears what dead clients left."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gpuring.errors import EndOfStream, FrameTorn, RingClosed, RingError, raise_first
from gpuring.printable import counted
from gpuring.ring import inner
from gpuring.ring.caller import Whole
from gpuring.ring.consumer import Consumer
from gpuring.ring.not_copyable import Unique
from gpuring.ring.whose import references
from gpuring.service._envelopes import NEVER
from gpuring.service.call import Batch, Call
from gpuring.service.delivery import Delivery
from gpuring.service.engine import Engine
from gpuring.service.wire import ENGINES, Enveloped, Terms

if TYPE_CHECKING:
    from collections.abc import Collection

    from typing_extensions import Self

    from gpuring.native import Peer
    from gpuring.registry.stats import RingStats
    from gpuring.ring.read_slot import ReadSlot
    from gpuring.ring.ring import Ring
    from gpuring.service.metrics import Measures


@dataclass
class Counts:
    """What an engine has done so far."""

    taken: int = 0
    """Calls that `take` has returned."""
    answered: int = 0
    """Answers sent."""
    failed: int = 0
    """Failures sent, by `fail` or because a block left a call unanswered."""
    expired: int = 0
    """Calls that had expired when they were taken."""
    cancelled: int = 0
    """Calls that their client had given up when they were taken, or before they had all their
    parts."""
    dropped: int = 0
    """Calls whose client was dead or had left when they were taken."""
    undelivered: int = 0
    """Answers whose client had left, or had no slot in its ring."""
    redelivered: int = 0
    """Calls taken that another engine had when it died."""
    waited_s: float = 0.0
    """How long `take` has waited for batches to fill, in all."""
    max_wait_s: float = 0.0
    """How long `take` waits at most now for a batch to fill, as it has learned."""


class RequestReader(Consumer, Enveloped):
    """An engine's consumer in the request ring."""

    def __init__(self, ring: Ring, peer: Peer, redeliver: bool, delivery: Delivery) -> None:
        self._redeliver = redeliver
        self._delivery = delivery
        delivery.engine = peer
        super().__init__(ring, peer, lossless=True)

    def _metas(self) -> list[Any]:
        self._until_ns = self._envelopes()["until_ns"]
        return super()._metas()

    def left_s(self, slot: ReadSlot) -> float | None:
        """How many seconds are left until the call of a request expires; None if it does not."""
        inner.check_slot(slot)
        until_ns = int(self._until_ns[slot.index])
        return None if until_ns == NEVER else max(0.0, (until_ns - time.monotonic_ns()) / 1e9)

    def _give_back(self, index: int) -> None:
        """Called by whoever finds it.  Another waiter of this process may be faster than this
        engine."""
        if self._redeliver:
            inner.undo(self, index)
        else:
            super()._give_back(index)

    def give_back(self, keep: Collection[int] = ()) -> list[Exception]:
        """Gives back every request except those in the slots `keep`.  Another engine gets it, or
        this one again.  Returns the errors."""
        errors: list[Exception] = []
        for index, _ in sorted(inner.peer(self).holding(), key=itemgetter(1), reverse=True):
            if index not in keep:
                try:
                    inner.undo(self, index)
                except Exception as error:  # the others are given back all the same
                    errors.append(error)
        return errors

    def _finish(self) -> list[Exception]:
        """Called by whoever closes the ring, also at the end of the interpreter.  Another engine
        gets the calls that are not answered, as after this engine's death.  Answers that this
        engine has begun are given up first, because the other engine's answers would wait behind
        them."""
        if not self._redeliver:
            return super()._finish()
        return [*self._delivery.void(every=True), *self.give_back()]


class Server(Engine, Unique):
    """An engine of a service, or a keeper that holds it open.  `serve` makes it.  One thread at a
    time may use it."""

    _requests: RequestReader
    _delivery: Delivery
    counts: Counts
    """What this engine has done so far."""

    def __new__(cls, *_: object, **made: object) -> Self:
        if not made:
            raise TypeError("a Server comes from gpuring.serve()")
        return super().__new__(cls)

    def __init__(self, ring: Ring, *, engine: bool, label: str | None) -> None:
        whole = Whole(f"service {ring.name!r}: a server", "it leaves the service")
        inner.belongs_to(ring, whole)
        try:
            self._terms = Terms.of(ring)
            delivery = Delivery(ring, self._terms, whole, label)
            super().__init__(ring, delivery, Counts(), Call, Batch, engine)
            redeliver = self._terms.redeliver
            # A producer that never claims.  With it the stream of requests has no end while clients
            # come and go.
            self._presence = ring.producer(label=label)
            peer = inner.join_consumer(
                ring, ENGINES, lossless=True, redeliver=redeliver, label=label
            )
            self._open(RequestReader(ring, peer, redeliver, self._delivery))
        except BaseException:
            ring.close()
            raise
        if not engine:
            ring.watch()
        self._delivery.sweep()

    @property
    def ring(self) -> Ring:
        """The ring that requests go through, shared by all clients and engines."""
        return self._ring

    @property
    def closed(self) -> bool:
        """Whether this engine has left."""
        return self._ring.closed

    def stats(self) -> RingStats:
        """Statistics of the request ring.  `counts` says what this engine has done."""
        return self._ring.stats()

    # ---- taking --------------------------------------------------------------------------------

    def _ended(self, error: RingError) -> RingError:
        """What `take` raises for the end of its ring."""
        if isinstance(error, RingClosed) and self.closed:
            return RingClosed(f"service {self.name!r}: this server was closed")
        if isinstance(error, EndOfStream) and inner.header(self._ring).closed:
            return EndOfStream(f"service {self.name!r} was closed, and no call is left to take")
        return error

    def _measure(self, batch: Batch, measures: Measures) -> None:
        now, peer = time.monotonic_ns(), inner.peer(self._requests)
        waits = [(call.client, (now - peer.time_ns(call._slot.index)) / 1e9) for call in batch]
        measures.took(waits, self._delivery.writers)
        batch._measures, batch._taken_ns = measures, now

    def _settle(self) -> None:
        """Ends what an interrupt has left: answered calls whose request is still held, requests
        that nobody has, and calls that nobody can answer any more."""
        calls = list(self._calls)
        known = 3  # references: of _calls, of `calls` and of `call`
        for k in range(len(calls)):
            call = calls[k]
            if call._answered:
                self._let_go(call)
            elif references(calls, k) == known and call not in self._delivery.answering():
                if not self._terms.redeliver:
                    with contextlib.suppress(RingError):
                        call.fail("its engine has let go of it, and not answered")
                self._calls.discard(call)
        self._give_back()

    def _give_back(self) -> None:
        errors = self._requests.give_back([call._slot.index for call in self._calls])
        if errors:
            raise_first(errors)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the service.  Another engine gets the calls that this one has not answered.  If
        the service does not redeliver, these calls fail.

        If the creator closes, the service ends.  Other engines then get EndOfStream when all calls
        are taken.  Clients get PeerLost for calls that no engine takes any more, and `request`
        waits for the next service of this name.  You may call it twice.
        """
        self._work = None  # it has arrays over the slots, which hold the memory
        if self._ring.closed:  # by another user of the ring, or by a close that was interrupted
            self._delivery.leave()
            return
        if self._terms.redeliver:
            self._calls.clear()  # another engine gets them when the ring is closed
        else:
            self._fail_all("the engine closed before it had answered")
        with contextlib.suppress(FrameTorn):
            self._requests.close()
        self._delivery.leave()
        self._ring.close()
        self._delivery.sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, Exception):  # SystemExit and Ctrl-C do not fail the calls
            self._fail_all(f"{type(error).__name__}: {error}")
        self.close()

    def _fail_all(self, text: str) -> None:
        for call in list(self._calls):
            with contextlib.suppress(RingError):
                call.fail(text)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{counted(self.counts.answered, 'call')} answered"
        return f"<Server of {self.name!r}: {state}>"

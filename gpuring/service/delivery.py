"""Where an engine's answers go: into the rings of its clients, or nowhere if a client has left."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING, Any

from gpuring.errors import RingClosed, RingError, RingFull, RingIncompatible
from gpuring.registry import leftovers
from gpuring.ring import inner
from gpuring.ring.attaching import attach
from gpuring.service._reach import Reach, is_gone
from gpuring.service.call import AnswerSlot, AnswerWriter, Call
from gpuring.service.wire import Terms, answers_name, make_sink, names_answers, without_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuring.native import Peer
    from gpuring.ring.caller import Whole
    from gpuring.ring.ring import Ring

_LOOK_S = 0.001  # how long one look at names takes; a call may be waiting meanwhile
_ROOM_S = 0.1  # how long to wait for the answer of a dead engine to be cleared
_GPU_ROOM_S = 2.0  # with the host gate also until the client's GPU has read an earlier answer
_OUR_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Delivery(Reach):
    """An engine's producers in the rings of its clients."""

    def __init__(
        self, requests: Ring, terms: Terms, whole: Whole, label: str | None = None
    ) -> None:
        super().__init__()
        self._ring, self._whole = requests, whole
        self._terms, self._label = terms, label
        self._sinks: list[AnswerWriter] = []
        self._names_answers = names_answers(requests.name)
        self._swept = ""  # the last name that `sweep` looked at
        self.engine: Peer | None = None
        """The engine's own peer in the ring of requests."""

    def _meet(self, client: int) -> AnswerWriter | None:
        name = answers_name(self._ring.name, client)
        try:
            ring = attach(name)
        except (RingError, ValueError):  # what has this name now is not the ring of a client
            return None
        except OSError as error:
            if error.errno in _OUR_LIMITS:
                raise
            return None
        inner.belongs_to(ring, self._whole)
        try:
            if ring.spec != self._terms.response:
                raise RingIncompatible(f"ring {name!r} holds no answers of {self._ring.name!r}")
            return AnswerWriter(ring, inner.join_producer(ring, self._label))
        except RingError:
            ring.close()
            return None
        except BaseException:
            ring.close()
            raise

    def begin(
        self, writer: AnswerWriter | None, stream: Any, shape: Sequence[int] | None
    ) -> AnswerSlot:
        """Returns a slot of the writer, or one that goes nowhere if that has none."""
        if writer is not None:
            with contextlib.suppress(RingClosed, RingFull):
                patience_s = _GPU_ROOM_S if inner.peer(writer).gate_host else _ROOM_S
                return writer.begin(patience_s, stream, shape)
        for sink in self._sinks:
            self._used[sink] = None
            with contextlib.suppress(RingFull):
                return sink.begin(0, stream, shape)
        ring = make_sink(self._ring, self._terms)
        inner.belongs_to(ring, self._whole)
        self._sinks.append(
            AnswerWriter(ring, inner.join_producer(ring, self._label), delivers=False)
        )
        self._used[self._sinks[-1]] = None
        return self._sinks[-1].begin(0, stream, shape)

    def void(self, every: bool = False) -> list[RingError]:
        """Gives up answers that were begun and not sent, and slots that nobody has, so that later
        answers do not wait for them.  With `every` it also gives up answers that are being written.
        Returns the errors."""
        errors: list[RingError] = []
        for writer in list(self._used):
            try:
                if writer.void(every):
                    del self._used[writer]
            except RingError as error:
                errors.append(error)
        return errors

    def answering(self) -> list[Call | None]:
        """The calls whose answers are being written."""
        return [call for writer in self._used for call in writer.answering()]

    # ---- the dead ------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Called once in a while.  It leaves the rings of clients that have left, and removes what
        dead clients left behind.

        It takes no longer than _LOOK_S.  What it cannot do in this time it does the next time.
        """
        self._tidied = time.monotonic()
        if self.engine is not None:
            self.engine.ask()  # a wait for calls goes on
        for client, writer in list(self.writers.items()):
            if writer is None or is_gone(writer):
                if writer is not None:
                    _leave(writer)
                self.writers.pop(client, None)
        self.sweep(_LOOK_S)

    def sweep(self, seconds: float = float("inf")) -> None:
        """Removes the rings of dead clients.  It stops after `seconds`, and begins there the next
        time.  Without a limit it looks at all names."""
        if seconds == float("inf"):
            self._swept = ""
        until, before = time.monotonic() + seconds, self._swept
        names_answers, stopped = self._names_answers, False

        def wanted(name: str) -> bool:
            nonlocal stopped
            if stopped or name <= self._swept or not names_answers(name):
                return False
            stopped = self._swept > before and time.monotonic() >= until
            if not stopped:
                self._swept = name
            return not stopped

        without_fail(lambda: leftovers.tidy(wanted))
        if not stopped and self._swept == before:
            self._swept = ""  # that was the last name: begin again

    def leave(self) -> None:
        for writer in [*self.writers.values(), *self._sinks]:
            if writer is not None:
                _leave(writer)
        self.writers.clear()
        self._sinks.clear()
        self._used.clear()


def _leave(writer: AnswerWriter) -> None:
    without_fail(writer.ring.close)

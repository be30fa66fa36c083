"""Where an engine's answers go: into the rings of its clients, or nowhere if a client has left."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING, Any

from gpuring import directory
from gpuring.errors import RingClosed, RingError, RingFull, RingIncompatible
from gpuring.ring import attach
from gpuring.service.call import AnswerSlot, AnswerWriter, Call
from gpuring.service.wire import Terms, answers_name, make_sink, names_answers, without_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuring.ring import Ring

_TIDY_S = 1.0
_LOOK_S = 0.001  # how long one look at names takes; a call may be waiting meanwhile
_ROOM_S = 0.1  # how long to wait for the answer of a dead engine to be cleared
_GPU_ROOM_S = 2.0  # with the host gate also until the client's GPU has read an earlier answer
_OUR_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Delivery:
    """An engine's producers in the rings of its clients."""

    def __init__(self, requests: Ring, terms: Terms) -> None:
        self._ring = requests
        self._terms = terms
        self.writers: dict[int, AnswerWriter | None] = {}  # None: cannot be reached
        self._sinks: list[AnswerWriter] = []
        self._used: dict[AnswerWriter, None] = {}  # those that may have claimed slots
        self._tidied = time.monotonic()
        self._names_answers = names_answers(requests.name)
        self._swept = ""  # the last name that `sweep` looked at

    def reach(self, client: int) -> AnswerWriter | None:
        """Returns this engine's producer in a client's ring; None if the client is dead or has
        left.  Raises OSError if this process has too few descriptors or too little memory to open
        the ring."""
        try:
            writer = self.writers[client]
        except KeyError:
            writer = self.writers[client] = self._meet(client)
        if writer is not None and _is_gone(writer):
            return None
        return writer

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
        try:
            if ring.spec != self._terms.response:
                raise RingIncompatible(f"ring {name!r} holds no answers of {self._ring.name!r}")
            return AnswerWriter(ring, ring._join_producer())
        except RingError:
            ring.close()
            return None
        except BaseException:
            ring.close()
            raise

    def claim(
        self, client: int, stream: Any, shape: Sequence[int] | None
    ) -> tuple[AnswerWriter, AnswerSlot, bool]:
        """Returns a writer, its slot, and whether it is a slot in the client's ring.  If it is not,
        the answer goes nowhere."""
        writer = self.reach(client)
        if writer is not None:
            with contextlib.suppress(RingClosed, RingFull):
                patience_s = _GPU_ROOM_S if writer._peer.gate_host else _ROOM_S
                return writer, self._begin(writer, patience_s, stream, shape), True
        for sink in self._sinks:
            with contextlib.suppress(RingFull):
                return sink, self._begin(sink, 0, stream, shape), False
        ring = make_sink(self._ring, self._terms)
        self._sinks.append(AnswerWriter(ring, ring._join_producer()))
        return self._sinks[-1], self._begin(self._sinks[-1], 0, stream, shape), False

    def _begin(
        self, writer: AnswerWriter, timeout: float, stream: Any, shape: Sequence[int] | None
    ) -> AnswerSlot:
        self._used[writer] = None
        return writer.begin(timeout, stream, shape)

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
        """Once in a while: leaves the rings of clients that have left, and removes what dead
        clients left behind.

        It takes no longer than _LOOK_S.  What it cannot do in this time it does the next time.
        """
        now = time.monotonic()
        if now - self._tidied < _TIDY_S:
            return
        self._tidied = now
        for client, writer in list(self.writers.items()):
            if writer is None or _is_gone(writer):
                if writer is not None:
                    _leave(writer)
                self.writers.pop(client, None)
        self.sweep(_LOOK_S)

    def sweep(self, seconds: float = float("inf")) -> None:
        """Removes the rings of dead clients.  It begins where it stopped the last time, and stops
        again after `seconds`."""
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

        without_fail(lambda: directory.tidy(wanted))
        if not stopped and self._swept == before:
            self._swept = ""  # that was the last name: begin again

    def leave(self) -> None:
        for writer in [*self.writers.values(), *self._sinks]:
            if writer is not None:
                _leave(writer)
        self.writers.clear()
        self._sinks.clear()
        self._used.clear()


def _is_gone(writer: AnswerWriter) -> bool:
    header = writer.ring._header
    return header.closed or not header.creator_alive


def _leave(writer: AnswerWriter) -> None:
    without_fail(writer.ring.close)

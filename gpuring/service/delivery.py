"""Where an engine's answers go: into its clients' rings, or nowhere if a client is gone."""

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
_LOOK_S = 0.001  # how long names are looked at in one go, with a call waiting perhaps
_ROOM_S = 0.1  # for a dead engine's answer to be cleared, where it stands in the way
_GPU_ROOM_S = 2.0  # with the host gate also for the client's GPU to have read an earlier answer
_OUR_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Delivery:
    """An engine's ends of its clients' rings."""

    def __init__(self, requests: Ring, terms: Terms) -> None:
        self._ring = requests
        self._terms = terms
        self.writers: dict[int, AnswerWriter | None] = {}  # None: cannot be reached
        self._sinks: list[AnswerWriter] = []
        self._used: dict[AnswerWriter, None] = {}  # since nothing was claimed by them
        self._tidied = time.monotonic()
        self._names_answers = names_answers(requests.name)
        self._swept = ""  # the last name that was looked at

    def reach(self, client: int) -> AnswerWriter | None:
        """Our end of a client's ring; None if it is dead or gone.  Raises OSError if this process
        has too few descriptors, or too little memory, to open it."""
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
        except (RingError, ValueError):  # whatever stands there now, it is no client's ring
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
        """A slot in the client's ring, whose writer that is, and whether it is the client's; else
        it is one that goes nowhere."""
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
        """Gives up what was begun and not sent, and what nobody has: later answers need not wait
        for it.  With `every` also what is being written.  What went wrong."""
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
        """Now and then: lets go of clients that are gone, removes what dead ones left behind.

        It takes no longer than a look, and what it cannot do is left to the next time.
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
        """Removes the rings of dead clients, where it stopped the last time; after `seconds` it
        stops again."""
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
            self._swept = ""  # that was the last one: begin anew

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

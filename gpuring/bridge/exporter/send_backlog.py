"""What ZeroMQ was given for one connection and has not sent yet.

ZeroMQ keeps any number of messages for a peer that does not read them.  An importer that keeps to
the protocol has at most as many frames on their way as the near ring has slots.  But a hostile one
may acknowledge frames that it never read, and ask for more again and again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

_MARK_NBYTES = 2 << 20
"""After how many bytes it is asked for again how far ZeroMQ is.  That costs some tens of µs."""


class Backlog:
    """The backlog of one connection."""

    def __init__(self) -> None:
        self._given = self._gone = 0
        """How many bytes were given to ZeroMQ, and how many of them it is known to be done with."""
        self._marks: deque[tuple[Any, int]] = deque()
        """For messages that say when they were sent: what says so, and how much was given then."""

    @property
    def wants_mark(self) -> bool:
        """Whether the next message should say when it was sent."""
        last = self._marks[-1][1] if self._marks else self._gone
        return self._given - last >= _MARK_NBYTES

    def add(self, nbytes: int, mark: Any) -> None:
        """A message was given to ZeroMQ.  `mark`: what says when it was sent, if there is one."""
        self._given += nbytes
        if mark is not None:
            self._marks.append((mark, self._given))
            self._look()

    @property
    def is_sending(self) -> bool:
        """Whether ZeroMQ still sends from memory that it was given and has not copied."""
        self._look()
        return bool(self._marks)

    @property
    def nbytes(self) -> int:
        """How much there is.  Some that was sent lately may count as well."""
        self._look()
        return self._given - self._gone

    def _look(self) -> None:
        while self._marks and self._marks[0][0].done:
            self._gone = self._marks.popleft()[1]

"""The queue that an iterator takes from, such that an interrupt while it waits loses nothing.

torch's queue waits and takes in one call.  If a Ctrl-C comes in it, nobody knows whether something
was taken, and an iterator that goes on may wait for that for ever.
"""

from __future__ import annotations

import queue
import select
from typing import Any


class _Source:
    """What both have."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.waits = False
        """Whether all that has happened since it was set to False is a wait."""

    def get(self, timeout: float) -> Any:
        """As of a queue."""
        self.waits = True
        there = self._wait(timeout)
        self.waits = False
        if not there:
            raise queue.Empty
        return self._source.get()

    def _wait(self, timeout: float) -> bool:
        """Whether there is something to take.  Nobody else takes from the queue."""
        raise NotImplementedError


class FromWorkers(_Source):
    """A queue of multiprocessing."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._poll = select.poll()
        self._poll.register(source._reader.fileno(), select.POLLIN)

    def _wait(self, timeout: float) -> bool:
        return bool(self._poll.poll(1e3 * timeout))


class FromThread(_Source):
    """The queue of torch's thread for pinned memory."""

    def _wait(self, timeout: float) -> bool:
        with self._source.not_empty:
            there: bool = self._source.not_empty.wait_for(self._source._qsize, timeout)
        return there

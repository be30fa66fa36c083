"""Turns of clients that note in which order threads take them (gpuring/service/_books.pyx)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from gpuring.service import _books, client

SENDING, RECEIVING = range(2)
"""The order in which a thread may take them."""


class Watch:
    """Notes which turns of clients the threads of this process take, and in which order."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.taken = 0
        self._local = threading.local()

    @property
    def held(self) -> list[int]:
        """The ranks of the turns that this thread has."""
        return self._local.__dict__.setdefault("held", [])

    def take(self, rank: int) -> None:
        if self.held and self.held[-1] >= rank:
            self.wrong.append(f"{rank} is taken, and {self.held} were")
        self.taken += 1


class Watched:
    """A turn that reports to a watch."""

    def __init__(self, watch: Watch, rank: int) -> None:
        self._watch, self._rank = watch, rank
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._watch.take(self._rank)
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._watch.held.append(self._rank)
        return taken

    def release(self) -> None:
        self._watch.held.remove(self._rank)
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Clients that are made meanwhile are watched."""
    watch = Watch()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client, "Turn", lambda: Watched(watch, SENDING))
        patched.setattr(_books, "Turn", lambda: Watched(watch, RECEIVING))
        yield watch

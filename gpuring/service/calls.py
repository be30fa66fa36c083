"""A client's calls, and who waits for them: what its threads and its event loops share.

What is used by more than one of them, and what keeps it whole:

* which calls there are, how each has ended, whose turn it is to receive, and who sleeps until one
  of these changes: the lock of `Calls`.  There is no other lock in this folder.
* the client's end of its answer ring (mailbox.py): the turn to receive, `Calls.turn`.
* its end of the request ring (client.py): the turn to send, `Client._sending`.
* the answer of a call that is cancelled (pending.py): the turn to release it, of each call its own.
* the tasks of an event loop (tasks.py) and an engine (server.py): the one thread that runs them.

A lock is held for some lines, a turn as long as a thread waits in a verb.  Under the lock there are
only assignments: no verb, no wait, no callback, and nothing that is dropped there dies there.  Who
is to be woken is noted under the lock and woken after it.  A turn is taken before the lock and
never under it, the turn to send before the turn to receive.  Whoever has the turn to receive takes
no other one; an event loop waits for neither, it tries.  For the turn to release nobody waits.

The lock is reentrant because of what nobody can keep away: a signal handler, or a destructor that
the garbage collector calls, runs between any two lines and may close the client.  So each line
under the lock leaves behind what the next user may find.  In a forked child nobody has a turn that
a thread of the parent had; the rings refuse every verb there, and close waits for nobody.

A handler may also raise there, and whatever was to come next does not happen.  So turns are taken
by `with`, of a lock or of an Attempt, between which and its block no handler runs.  Who was to be
woken and was not looks again by itself: a thread after SLICE_S, a task after LOOK_S.  What was to
be ended and was not is found by Client._settle, which believes what the rings and Python's own
references say, and not these books.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from gpuring.errors import RingError

Lock = threading.RLock
Turn = threading.RLock
"""Reentrant, for a signal handler that closes the client while its thread waits with the turn."""


class Sleeper(Protocol):
    """A thread or a task that sleeps, or an event loop that listens."""

    def wake(self) -> None:
        """From any thread, not under the lock.  May come too often, and too late."""


Sleepers = dict[Sleeper, None]
"""In the order in which they came."""


class InFlight(Protocol):
    """A PendingCall, as far as it matters here."""

    _number: int
    _sleepers: Sleepers
    _error: RingError | None
    _answer: Any
    _answer_seq: int

    def _is_done(self) -> bool: ...


Call = TypeVar("Call", bound=InFlight)


class Calls(Generic[Call]):
    """The calls of one client."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = Lock()
        self.live: dict[int, Call] = {}
        """Calls that are claimed, and neither released, failed nor known to be gone.  One of them
        that has an error was given up: its answer may still come, and needs its room."""
        self.closed = False
        self.turn = Turn()
        """To receive."""
        self.for_room: Sleepers = {}
        self._heirs: Sleepers = {}  # woken when nobody receives: all, for none relies on another

    def all(self) -> list[Call]:
        """Those that are live now: other threads send, and release, meanwhile."""
        with self.lock:
            return list(self.live.values())

    def has_room(self) -> bool:
        return len(self.live) < self.limit

    # ---- how a call goes -----------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        with self.lock:
            self.live[call._number] = call

    def arrive(self, call: Call, answer: Any) -> bool:
        """Whether the call still wants its answer, and has it now."""
        with self.lock:
            if call._is_done():
                return False
            call._answer, answer._call = answer, weakref.ref(call)
            call._answer_seq = answer._seq
            woken = [*call._sleepers]
        wake(woken)
        return True

    def end(self, call: Call, error: RingError | None = None, *, gone: bool = True) -> None:
        """The call is over, with the error unless it is over already.  If no answer can come any
        more, or it was released, it is gone, and needs no room."""
        with self.lock:
            woken: list[Sleeper] = []
            if error is not None and not call._is_done():
                call._error = error
                woken += call._sleepers
            if gone and self.live.get(call._number) is call:
                del self.live[call._number]
                woken += self.for_room
                self.for_room.clear()  # who still waits comes again
        wake(woken)

    def close(self, error: Callable[[Call], RingError]) -> None:
        """Every call is over."""
        with self.lock:
            self.closed = True
            woken = [*self.for_room]
        wake(woken)
        for call in self.all():
            self.end(call, error(call), gone=False)

    # ---- sleeping ------------------------------------------------------------------------------

    def enter(self, sleeper: Sleeper, sleepers: Sleepers, ready: Callable[[], bool]) -> bool:
        """Adds it to those that whoever makes `ready` true wakes.  False: it need not sleep."""
        with self.lock:
            if self.closed or ready():
                return False
            sleepers[sleeper] = None
            return True

    def leave(self, sleeper: Sleeper, sleepers: Sleepers) -> None:
        with self.lock:
            sleepers.pop(sleeper, None)

    # ---- the turn to receive -------------------------------------------------------------------

    def inherit(self, heir: Sleeper) -> None:
        """It is woken when nobody receives.  Before it looks whether that is so already."""
        with self.lock:
            self._heirs[heir] = None

    def pass_turn(self) -> None:
        """It was given up."""
        with self.lock:
            if not self._heirs:
                return
            woken = [*self._heirs]
            self._heirs.clear()
        wake(woken)


class Thread:
    """A thread that sleeps."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._asleep.release()

    def sleep(self, timeout: float) -> None:
        self._asleep.acquire(timeout=timeout)


def wake(sleepers: Iterable[Sleeper]) -> None:
    for each in sleepers:
        each.wake()

"""The calls of a client, which its threads and its event loops share.

More than one thread or loop uses each of these.  Behind each stands what protects it:

* which calls there are, how each has ended, whose turn it is to receive, and who sleeps until one
  of these changes: the lock of `Calls`.  There is no other lock in this folder.
* the client's end of its answer ring (mailbox.py): the turn to receive, `Calls.turn`.
* its end of the request ring (client.py): the turn to send, `Client._sending`.
* the answer of a call that is cancelled (pending.py): the turn to release it, one for each call.
* the tasks of an event loop (tasks.py) and an engine (server.py): the one thread that runs them.

A thread holds a lock for some lines, and a turn for as long as it waits in a verb.  These rules
hold:

* Under the lock there are only assignments.  No verb, no wait and no callback runs there, and no
  object is destroyed there.
* Sleepers to be woken are noted under the lock, and woken after it.
* A turn is taken before the lock, and never under it.
* The turn to send is taken before the turn to receive.  Whoever has the turn to receive takes no
  other turn.
* An event loop waits for neither turn.  It only tries to take them.
* Nobody waits for the turn to release.

The lock is reentrant, because a signal handler, or a destructor that the garbage collector calls,
may run between any two lines and close the client.  So after each line under the lock the books are
in a state that another user may find.  In a forked child nobody has a turn that a thread of the
parent had.  The rings refuse every verb there, and close waits for nobody.

A handler may also raise there, and the lines that should follow do not run.  So turns are taken by
`with`, of a lock or of an Attempt; no handler runs between these and their block.  A sleeper that
was not woken looks again by itself: a thread after SLICE_S, a task after _LOOKS slices.
Client._settle finds the calls that should have ended and did not.  It relies on the rings and on
Python's references, and not on these books.
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
"""It is reentrant, because a signal handler may close the client while its thread has the turn."""


class Sleeper(Protocol):
    """A thread or a task that sleeps, or an event loop that listens."""

    def wake(self) -> None:
        """Called by any thread, not under the lock.  It may be called too often and too late."""


Sleepers = dict[Sleeper, None]
"""In the order in which they came."""


class InFlight(Protocol):
    """The parts of a PendingCall that are used here."""

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
        """Calls that are claimed, and neither released, failed nor known to be gone.  A call in it
        that has an error was given up.  Its answer may still come, and needs its room."""
        self.closed = False
        self.turn = Turn()
        """The turn to receive."""
        self.for_room: Sleepers = {}
        self._heirs: Sleepers = {}  # all are woken when nobody receives: none relies on another

    def all(self) -> list[Call]:
        """The calls that are live now.  Other threads may send and release calls meanwhile."""
        with self.lock:
            return list(self.live.values())

    def has_room(self) -> bool:
        return len(self.live) < self.limit

    # ---- how a call goes -----------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        with self.lock:
            self.live[call._number] = call

    def arrive(self, call: Call, answer: Any) -> bool:
        """Gives the answer to the call.  False: the call does not want it any more."""
        with self.lock:
            if call._is_done():
                return False
            call._answer, answer._call = answer, weakref.ref(call)
            call._answer_seq = answer._seq
            woken = [*call._sleepers]
        wake(woken)
        return True

    def end(self, call: Call, error: RingError | None = None, *, gone: bool = True) -> None:
        """Ends the call with the error, unless it has ended already.  `gone` says that no answer
        can come any more, or that it was released.  The call then needs no room."""
        with self.lock:
            woken: list[Sleeper] = []
            if error is not None and not call._is_done():
                call._error = error
                woken += call._sleepers
            if gone and self.live.get(call._number) is call:
                del self.live[call._number]
                woken += self.for_room
                self.for_room.clear()  # those that still have to wait enter again
        wake(woken)

    def close(self, error: Callable[[Call], RingError]) -> None:
        """Ends every call."""
        with self.lock:
            self.closed = True
            woken = [*self.for_room]
        wake(woken)
        for call in self.all():
            self.end(call, error(call), gone=False)

    # ---- sleeping ------------------------------------------------------------------------------

    def enter(self, sleeper: Sleeper, sleepers: Sleepers, ready: Callable[[], bool]) -> bool:
        """Adds a sleeper to `sleepers`.  Whoever makes `ready` true wakes them.  False: it need not
        sleep."""
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
        """Has `heir` woken when nobody receives.  Call it before you try to take the turn."""
        with self.lock:
            self._heirs[heir] = None

    def pass_turn(self) -> None:
        """Called when the turn was given up.  Wakes the heirs."""
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

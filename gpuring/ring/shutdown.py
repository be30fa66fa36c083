"""The open rings of a process.  They are closed when the process ends.  If a wait is blocked by
this process itself, they are searched for lost slots."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from gpuring import native
from gpuring.errors import RingClosed
from gpuring.native import signals
from gpuring.registry import diagnosis
from gpuring.ring import caller, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuring.native import Peer
    from gpuring.ring.endpoint import JoinedRing


T = TypeVar("T")

_open: weakref.WeakValueDictionary[int, JoinedRing] = weakref.WeakValueDictionary()
"""The open rings by id()."""


class _Process:
    ended = False
    """Whether the interpreter, or the child of multiprocessing, is ending.  No ring is opened
    then."""
    hook: Callable[[Any], None] | None = None
    """The sys.unraisablehook that exit_on_sigterm has set."""
    finalized_pid = 0
    """The pid of the child in which multiprocessing will call close_all."""


def check() -> None:
    """Before a ring is opened.  Raises RingClosed if the process is about to end."""
    if _Process.ended:
        raise RingClosed("this process is about to end: no ring can be opened any more")


def finish_dropped() -> None:
    """Rings, producers and consumers that were dropped leave now, if Ctrl-C has kept them from it.

    Called when a ring is opened or closed, when a wait is blocked by this process itself, and when
    the process ends.
    """
    with contextlib.suppress(Exception):  # nobody is there to be told
        signals.finish_dropped()


def add(ring: JoinedRing) -> None:
    """Notes that a ring is open from now on."""
    check()
    finish_dropped()
    _open[id(ring)] = ring
    _close_at_the_end_of_a_child()


def remove(ring: JoinedRing) -> None:
    """Notes that a ring was closed."""
    _open.pop(id(ring), None)


def all_of(known: Iterable[weakref.ref[T]]) -> list[T]:
    """Returns those that still exist.  The list is made in one step, because other threads open and
    close rings, producers and consumers meanwhile."""
    return [found for each in list(known) if (found := each()) is not None]


@atexit.register
def close_all() -> None:
    """Leaves all rings when the process ends cleanly.  A process that is killed is reaped by
    others.

    Threads that wait in a verb get RingClosed.
    """
    _Process.ended = True
    finish_dropped()
    for ring in all_of(_open.valuerefs()):
        with contextlib.suppress(Exception):
            ring.close()


def exit_on_sigterm() -> None:
    """From now on SIGTERM ends this process cleanly: it raises SystemExit in the main thread, with
    status 143, wherever that is.  Rings are then left as at any other end of a program.

    Without it SIGTERM kills the process, or does nothing if it is process 1 of a container.  Call
    it once, at the beginning of a program and of each child process that works with rings, but
    behind the imports: NumPy's drop what a handler raises, or make an ImportError of it.  It takes
    the place of any handler that was there.  A wait is interrupted as by Ctrl-C.  Python drops what
    a handler raises in `__del__` and the like: SystemExit is raised behind it.  If the signal comes
    again meanwhile, it raises again, but rings that are being left are still left.  A thread that
    is not a daemon has to end by itself, as with `sys.exit()`.

    Does not wait.  Raises RuntimeError in another thread than the main one, because Python handles
    signals in that one only.
    """
    try:
        signal.signal(signal.SIGTERM, _ended)
    except ValueError:
        raise RuntimeError(
            "gpuring.exit_on_sigterm() was called in another thread than the main one of Python, "
            "which alone handles signals: call it at the beginning of the program"
        ) from None
    if sys.unraisablehook is not _Process.hook:
        _Process.hook = signals.raises_again(signal.SIGTERM, sys.unraisablehook)
        sys.unraisablehook = _Process.hook


def _ended(number: int, _frame: object) -> None:
    program.ending = True
    if not _Process.ended:  # else a ring that is being closed would stay
        sys.exit(128 + number)


def _close_at_the_end_of_a_child() -> None:
    """Children that multiprocessing has forked end by os._exit, without atexit.  But they call the
    finalizers of multiprocessing.  Ours comes last, when the program's own are done."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None or _Process.finalized_pid == os.getpid():
        return
    _Process.finalized_pid = os.getpid()
    # A child begins by forgetting all finalizers.  If this is its parent, or a child that unpickles
    # what it was given and has not begun yet, it is to remember ours then.
    util.register_after_fork(_Process, _finalize)
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        _finalize(_Process)


def _finalize(_: object) -> None:
    util: Any = sys.modules["multiprocessing.util"]
    util.Finalize(None, _close_all_after_threads, exitpriority=-1000)


def _close_all_after_threads() -> None:
    """Closes all rings when the threads have ended.  A child waits for its threads, except daemons,
    as every interpreter does, but only after its finalizers.  The threads may still work with our
    rings then."""
    try:
        shutdown: Callable[[], None] | None = getattr(threading, "_shutdown", None)
        if shutdown is not None:  # it is called next anyway, and a second call does nothing
            shutdown()
    finally:
        close_all()


class _Blocked:
    """What a wait of this process asks when it is blocked (native/blocked.pyx)."""

    def give_back_lost(self) -> None:
        """Gives back the slots of this process that nobody has.  They may block a wait in this
        process, and no other process can know.

        The wait does not get errors of other endpoints.  Their own next verb, or close, raises
        them.
        """
        finish_dropped()
        for ring in all_of(_open.valuerefs()):
            for endpoint in all_of(ring._endpoints.values()):
                with contextlib.suppress(Exception):
                    endpoint._give_back_lost()

    def waits_for_itself(self, peer: Peer) -> bool:
        return diagnosis.waits_for_itself(peer)

    def warn_of_itself(self, peer: Peer) -> None:
        """What `peer` waits for, without a time-out, is in the hands of its own thread alone."""
        names = [ring.name for ring in all_of(_open.valuerefs()) if ring._header is peer.header]
        caller.warn(diagnosis.waiting_for_itself(names[0] if names else "?", peer), RuntimeWarning)


native.on_blocked(_Blocked())
diagnosis.ONLY_END.append(_ended)

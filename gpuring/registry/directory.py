"""The rings of this host by their names: look at a header, wait for it, take its name away.

A look never maps anything.  It reads a copy, so another user's file cannot harm it.  The C library
decides which ring gets a name, and which one makes way (native/host/taking.c, replacing.c).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import TypeVar

from gpuring import native
from gpuring.deadlines import deadline_of
from gpuring.errors import RingError, RingNotFound
from gpuring.native import File, Header, Missing
from gpuring.registry import segment
from gpuring.registry.new_names import Arrivals

T = TypeVar("T")
_MAX_LISTED = 10
"""How many names a message lists."""


def when_there(name: str, deadline: float, call: Callable[[], T]) -> T:
    """What `call` returns.  While it finds no ring, it is called again whenever a name has come.

    At the deadline, which is on the clock of time.monotonic, it raises RingNotFound, or the cause
    of segment.Dead.
    """
    arrivals, began_s = Arrivals(), None
    while True:
        try:
            return call()
        except Missing as missing:
            rest_s, going = deadline - time.monotonic(), str(missing) != ""
            if rest_s <= 0:
                if isinstance(missing, segment.Dead) and missing.__cause__ is not None:
                    raise missing.__cause__ from None
                waited_s = 0.0 if began_s is None else time.monotonic() - began_s
                raise not_found(name, str(missing), waited_s) from None
        began_s = time.monotonic() if began_s is None else began_s
        arrivals.wait(rest_s, going)


# ---- looking -----------------------------------------------------------------------------------


def look(name: str, timeout_s: float | None = 0.0) -> Header:
    """A copy of a header, whoever owns it.  Waits up to `timeout_s` for the ring to appear.

    Raises RingNotFound, RingIncompatible, PermissionError.
    """
    return when_there(name, deadline_of(timeout_s), lambda: read(name))


def read(name: str) -> Header:
    with native.find(name) as named, named.open() as file:
        return native.read_header(name, file.fd)


def open_to_trace(name: str) -> File:
    """The file of a ring's header, to read and to write, without being in the ring.  It must be of
    our own user or of root, because its owner can end this process.  Raises Missing,
    RingIncompatible, PermissionError, OSError."""
    with native.find(name) as named:
        if named.uid not in {0, os.geteuid()}:
            raise PermissionError(
                f"ring {name!r} belongs to {named.owner}. Only rings of your own user or of root "
                f"can be traced. As root: {segment.as_user(named.uid, 'trace …')}"
            )
        file = named.open(os.O_RDWR)
        native.read_header(name, file.fd)
        return file


# ---- subscriptions go --------------------------------------------------------------------------


def unsubscribe(name: str, epoch: bytes, header: Header, subscription: bytes) -> tuple[int, bool]:
    """0 or a negative result, and whether the ring has the subscription.  It goes with its last
    member.  What earlier rings owe it is forgotten.  Raises OSError."""
    owed = native.may_owe(header)
    result, found = native.unsubscribe(header, subscription)
    if not result:
        if owed:
            native.forget(name, header, subscription)
        if header.closed:  # its name was kept for this
            native.remove_own(name, epoch, header)
    return result, found


def unsubscribe_closed(name: str, subscription: bytes) -> bool:
    """The same in a ring that was closed and keeps its name.  It must belong to our own user,
    because its owner could kill this process (SIGBUS).

    False if the name is not that of such a ring, or if it has no such subscription.  Raises
    Missing, RingIncompatible, OSError.
    """
    with native.find(name) as named:
        if not named.is_ours:
            return False
        with named.open(os.O_RDWR) as file:
            header = Header.attach(file.fd)
    try:
        if not header.closed:
            return False
        result, found = unsubscribe(name, header.epoch, header, subscription)
        return found and not result
    finally:
        header.disown()


# ---- names go ----------------------------------------------------------------------------------


def remove(name: str) -> bool:
    """Closes and removes the ring of this name, whoever uses it.  False if there was none.

    Raises RingIncompatible (no file), PermissionError (another user's), OSError.
    """
    return native.remove_name(name, close=True)


def unlink(name: str) -> None:
    """Removes the name of a ring.  Its peers go on, and nobody else finds it any more.

    Raises RingNotFound, PermissionError (another user's ring), RingIncompatible (no file).
    """
    if not native.remove_name(segment.check_name(name), close=False):
        raise not_found(name)


# ---- what to say -------------------------------------------------------------------------------


def not_found(name: str, detail: str = "", waited_s: float = 0.0) -> RingNotFound:
    """`detail`: what is in the way of a ring whose name is there."""
    if detail:
        when = f"after {waited_s:.3g} s" if waited_s else "now"
        return RingNotFound(
            f"ring {name!r} is not there {when}: {detail}. If nobody is removing or replacing it, "
            f"`gpuring clean {name}` takes away what is left, once its processes are gone"
        )
    came = f" came within {waited_s:.3g} s" if waited_s else ""
    return RingNotFound(
        f"No ring or service named {name!r}{came}: {_others(name)}. Processes see each other's "
        f"rings only if they share {segment.SHM} (in containers: --ipc)"
    )


def _others(name: str) -> str:
    """Which rings there are beside one that is not there."""
    try:
        there = {name, *segment.names()}
    except PermissionError:
        return f"{segment.SHM} may not be listed"
    known = iter(
        sorted(
            each
            for each in there - {name}
            if not ((of := segment.ANSWERS.fullmatch(each)) and of[1] in there)
        )
    )
    listed = ", ".join(itertools.islice(itertools.filterfalse(_is_closed, known), _MAX_LISTED))
    more = sum(1 for _ in known)
    return f"this host has {listed or 'no rings'}{f' and {more} more' if more else ''}"


def _is_closed(name: str) -> bool:
    """Whether it keeps its name only for durable subscriptions."""
    try:
        return read(name).closed
    except (Missing, RingError, OSError):
        return False

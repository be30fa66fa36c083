"""The rings of this host by their names: look at a header, open it, give a name and take it away.

A look never maps anything.  It reads a copy, so a stranger's file cannot harm it.  A process that
takes a name away looks first, and does both under a lock on that file (locks.NAME_BYTE).  Slots
get their name before their header does, and lose it before.  So what a killed process leaves is
always found (leftovers.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TypeVar

from gpuring import native
from gpuring.deadlines import deadline_of
from gpuring.errors import RingExists
from gpuring.native import File, Header, Missing, Named
from gpuring.registry import earlier, leftovers, locks, segment, sockets
from gpuring.registry.new_names import Arrivals

T = TypeVar("T")

_PATIENCE_S = 2.0
"""How long to wait for the lock of a name.  Only a process that was stopped has it for so long."""


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
                raise segment.not_found(name, str(missing), waited_s) from None
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
                f"ring {name!r} belongs to {named.owner}. Only that user or root can trace it"
            )
        file = named.open(os.O_RDWR)
        native.read_header(name, file.fd)
        return file


def _taken(name: str) -> RingExists:
    """The error for a name that is taken.  It says what has the name and what can be done."""
    step = "attach to it, or pass replace=True, which closes it for all who use it"
    try:
        with segment.look(segment.header_name(name)) as named:
            if named.odd:
                what, step = str(segment.no_ring(named)), "or remove that"
            elif not named.is_ours:
                what = f"ring {name!r} exists and belongs to {named.owner}"
                step = "or ask that user to remove it"
            else:
                with named.open() as file:
                    what = _state(name, Header.read(file.fd))
    except (FileNotFoundError, native.Retired):
        what, step = f"ring {name!r} existed a moment ago", "or try again"
    except native.Damaged as error:
        what = f"ring {name!r} is in use, and it is none of this gpuring: {error}"
        step = "or end the processes that use it"
    except OSError as error:
        what = f"ring {name!r} exists and cannot be read: {error}"
    return RingExists(f"{what}. Choose another name, {step}")


def _state(name: str, header: Header) -> str:
    live = len(header.live_peers())
    return (
        f"ring {name!r} exists: created by pid {header.creator_pid} "
        f"({'alive' if header.creator_alive else 'dead'}), {live} living peer{'s'[: live != 1]}"
    )


# ---- names come --------------------------------------------------------------------------------


def make_way(name: str, replace: bool | None) -> None:
    """Checks, before anything is made, that the name is free or may be taken.  Removes what nobody
    uses any more, first of all because its memory may be needed.

    `replace` is that of create().  Raises RingExists, PermissionError, RingIncompatible, OSError.
    """
    try:
        with segment.look(segment.header_name(name)) as named:
            _may_replace(name, named, replace)
            if replace is None:
                with named.open() as file:
                    if not _is_abandoned(file):
                        raise _taken(name)
    except FileNotFoundError:
        return earlier.remove_strays(name)
    leftovers.make_room(name)
    return None


def give_name(
    name: str, file: File, replace: bool | None, closed: Callable[[Header], object]
) -> None:
    """Gives the name to the whole header in `file`.  Calls `closed` with the header of each ring
    that makes way, when that is closed.  Raises what make_way() raises."""
    try:
        return segment.give_name(file, segment.header_name(name))
    except FileExistsError:
        pass
    with segment.spare_name(name, file) as spare:  # before anything is closed: there may be no room
        while not (_take_away(name, closed, replace, spare) or segment.rename_if_free(spare, name)):
            pass
    return None


def _may_replace(name: str, named: Named, replace: bool | None) -> None:
    """Returns if `replace`, that of create(), may allow it.  Raises RingExists, PermissionError,
    RingIncompatible."""
    if not replace:
        if named.odd or not named.is_ours or (replace is False and not _was_closed(named)):
            raise _taken(name)
    elif not named.is_ours:
        if named.odd:
            raise segment.no_ring(named)
        raise PermissionError(
            f"ring {name!r} belongs to {named.owner}: only that user can replace or remove it"
        )


def _was_closed(named: Named) -> bool:
    """Whether what has the name is a ring that its creator has closed."""
    with contextlib.suppress(native.Damaged), named.open() as file:
        return Header.read(file.fd).closed
    return False


def _is_abandoned(file: File) -> bool:
    """Whether the ring's creator is dead, or has closed it.  If the header does not say who that
    is, because it is damaged or of another version, the question is whether no process uses the
    ring."""
    try:
        return not leftovers.is_kept(Header.read(file.fd))
    except native.Retired:  # nobody can attach any more, and somebody was removing its name
        return True
    except native.Damaged:
        return not locks.in_use(file.fd)


# ---- names go ----------------------------------------------------------------------------------


def remove(name: str) -> bool:
    """Closes and removes the ring of this name, whoever uses it.  False if there was none.

    Raises RingIncompatible (no file), PermissionError (another user's), OSError.
    """
    return _take_away(name, lambda _: None)


def unlink(name: str) -> None:
    """Removes the name of a ring.  Its peers go on, and nobody else finds it any more.

    Raises RingNotFound, PermissionError (another user's ring), RingIncompatible (no file).
    """
    if not _take_away(segment.check_name(name), None):
        raise segment.not_found(name)


def _take_away(
    name: str,
    closed: Callable[[Header], object] | None,
    replace: bool | None = True,
    spare: str = "",
) -> bool:
    """Takes the name from its ring.  Unless `closed` is None it closes the ring, and calls that
    with its header; it answers whether that has to stay findable (earlier.py).  `replace` says
    which ring may be taken away, as in create().  The header that is called `spare` has the ring's
    name from then on, without a moment in which nobody has it: another one that is made meanwhile
    finds this one.  Without it nobody attaches any more.  Returns False if there was no ring."""
    while True:
        try:
            named = segment.look(segment.header_name(name))
        except FileNotFoundError:
            return False
        with named:
            _may_replace(name, named, replace)
            with named.open(os.O_RDWR) as file:
                locked = locks.lock_name(file.fd, _PATIENCE_S)  # False if its holder was stopped
                if not named.has_name:
                    continue
                # Under the lock, so that of two processes that start at once one finds the other's.
                if replace is None and not (locked and _is_abandoned(file)):
                    raise _taken(name)
                epoch, keep = (None, False) if named.odd else _end(file, closed)
                if epoch is not None and not spare:
                    _retire(file)
                _remove_slots(name, epoch)
                # If we were stopped, another process may have gone on, or tidied up.
                if spare and not (named.has_name and segment.rename(spare, name, keep)):
                    continue
                if epoch is not None and spare and not keep:  # the next one could read it so far
                    with contextlib.suppress(OSError):  # it is closed, so nobody attaches anyway
                        _retire(file)
                if named.has_name and not spare:
                    earlier.remove(name)  # first: so they never outlive it
                    segment.unlink(segment.header_name(name))
                return True


def _end(file: File, closed: Callable[[Header], object] | None) -> tuple[bytes | None, bool]:
    """Closes the ring, unless `closed` is None, and calls that.  Who is killed then leaves it to
    the next one.  Returns the ring's epoch, or None if it cannot be read, and whether its header is
    to stay findable."""
    try:
        header = Header.attach(file.fd)
    except native.Damaged:
        return None, False
    if closed is None:
        return header.epoch, False
    header.close_ring()
    return header.epoch, bool(closed(header))


def _retire(file: File) -> None:
    """Makes sure that nobody attaches any more."""
    with contextlib.suppress(native.Damaged):
        Header.attach(file.fd).retire()


def _remove_slots(name: str, epoch: bytes | None) -> None:
    """Removes the slots of this epoch, and its sockets.  If it is not known, removes all slots of
    the name except those that somebody is making just now."""
    if epoch is not None:
        segment.remove_slots(segment.slots_name(name, epoch))
        sockets.remove_stale(epoch)
        return
    for slots in segment.listing().get(name, ()):
        if segment.is_left(slots):
            segment.remove_slots(slots)


def remove_own(name: str, epoch: bytes, header: Header) -> None:
    """Removes the names of a ring that is ours and closed.  Its name may be a later ring's by now.
    If it has durable subscriptions, the next ring of the name takes its header's.

    It needs no descriptor, so it works where there is none left.
    """
    native.remove_own(name, epoch, header)

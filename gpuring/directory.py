"""The rings of this host: open a header by name, list, unlink, clean up."""

from __future__ import annotations

import contextlib
import os

from gpuring import _core, segment, stats
from gpuring._core import Header
from gpuring.errors import RingError, RingIncompatible, RingNotFound


class BeingCreated(RingIncompatible):
    """Its magic number is not there yet; waiting may help."""


ANYBODY = -1
"""An owner= for tools that only look: a ring of whatever user."""


def open_header(name: str, *, owner: int | None = ANYBODY) -> Header:
    """The checked header of a ring that belongs to user `owner` (None: to us, or to root).

    Raises RingNotFound, RingIncompatible, PermissionError.
    """
    try:
        fd = segment.open_fd(segment.header_name(name))
    except FileNotFoundError:
        raise segment.not_found(name) from None
    try:
        uid = os.fstat(fd).st_uid
        if owner != ANYBODY and uid not in ({owner} if owner is not None else {0, os.geteuid()}):
            raise PermissionError(
                f"ring {name!r} belongs to user {uid}, not to "
                f"{os.geteuid() if owner is None else owner}: who made it "
                f"can write every slot. If you trust that user, attach with owner={uid}"
            )
        return Header.attach(fd)
    except _core.Damaged as error:
        unfinished = "being created" in str(error) or os.fstat(fd).st_size == 0
        kind = BeingCreated if unfinished else RingIncompatible
        raise kind(
            f"{segment.SHM}{segment.header_name(name)} is no ring of this gpuring: {error}. If no "
            "process uses it, `gpuring clean` removes it"
        ) from None
    finally:
        os.close(fd)


def who_has(name: str) -> str:
    """Of a ring that stands in the way: who made it, and whether anybody lives in it."""
    try:
        header = open_header(name)
    except (RingError, PermissionError) as error:
        return str(error)
    live = header.live_peers()
    state = "alive" if header.creator_alive else "dead"
    return f"created by pid {header.creator_pid} ({state}), {len(live)} living peers"


def remove(name: str) -> bool:
    """Closes and unlinks the ring of this name, whoever uses it.  False: there was none.

    Under segment.names_locked(), so that what is removed is what was looked at.
    """
    with contextlib.suppress(RingError):
        header = open_header(name)
        header.close_ring()
        header.retire()
    found = segment.unlink(segment.header_name(name))
    segment.unlink_slots(name)
    return found


def unlink(name: str) -> None:
    """Removes the name.  Those who are inside go on; nobody else finds the ring.  RingNotFound."""
    segment.check_name(name)
    with segment.names_locked():
        with contextlib.suppress(RingError):
            open_header(name).retire()
        found = segment.unlink(segment.header_name(name))
        segment.unlink_slots(name)
    if not found:
        raise segment.not_found(name)


def ls() -> list[stats.RingStats]:
    """Every readable ring of this host, sorted by name.  Reads headers only and needs no GPU."""
    return survey()[0]


def survey() -> tuple[list[stats.RingStats], dict[str, str]]:
    """What ls() tells, and of the names that cannot be read: why not.

    A ring that goes away while we look is in neither.
    """
    found, unreadable = [], {}
    for name in segment.names():
        try:
            found.append(stats.collect(name, open_header(name)))
        except RingNotFound:
            continue
        except (RingError, PermissionError) as error:
            unreadable[name] = str(error)
    return found, unreadable


def clean() -> list[str]:
    """Removes the rings whose creator and peers are all dead, and says which.

    Also what a process that was killed while it created a ring has left behind.  Rings of other
    users are left alone.
    """
    removed = [name for name in segment.names() if remove_dead(name)]
    with segment.names_locked():
        for path in segment.orphans():
            with contextlib.suppress(PermissionError):
                segment.unlink(path)
                removed.append(path.lstrip("/"))
    return removed


def remove_dead(name: str) -> bool:
    """Removes the ring of this name if its creator and its peers are all dead."""
    with segment.names_locked(), contextlib.suppress(RingNotFound, PermissionError):
        return _is_dead(name) and remove(name)
    return False


def _is_dead(name: str) -> bool:
    try:
        header = open_header(name)
    except RingIncompatible:  # damaged, foreign, or half made
        return not segment.in_use(segment.header_name(name))
    return not header.creator_alive and not header.live_peers()

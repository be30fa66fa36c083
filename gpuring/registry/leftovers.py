"""What the dead have left in /dev/shm: rings in which nobody is, slots without a ring, sockets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from gpuring import native
from gpuring.native import Header, Named
from gpuring.registry import earlier, locks, segment, sockets
from gpuring.registry.segment import look


def clean() -> list[str]:
    """Removes the rings whose creator and peers are all dead.  Returns what it removed.

    It also removes slots without a ring, which a process leaves that is killed while it creates
    one, and sockets that the dead have left.  It leaves alone what belongs to another user, also if
    root calls it.  Raises OSError.
    """
    return tidy(lambda _: True) + sockets.remove_stale()


def remove_dead(name: str, epoch: bytes | None = None) -> bool:
    """Removes the ring of this name if its creator and its peers are all dead, and if it has this
    `epoch` (None: any).  Does not wait."""
    return name in _removed(name, segment.listing().get(name, []), epoch)


def make_room(name: str) -> None:
    """remove_dead for whoever makes a ring of this name.  The header of a ring with durable
    subscriptions stays: the next ring takes them from there."""
    _removed(name, segment.listing().get(name, []), keep_durable=True)


def tidy(wanted: Callable[[str], object]) -> list[str]:
    """clean() for the names that are wanted.  Does not wait."""
    removed: list[str] = []
    for name, slots in sorted(segment.listing().items()):
        # The second condition saves work: strangers may have put ten thousand names there.
        if wanted(name) and (slots or segment.owner(segment.header_name(name)) == os.geteuid()):
            removed += _removed(name, slots)
    return removed


def _removed(
    name: str, slots: list[str], wanted: bytes | None = None, keep_durable: bool = False
) -> list[str]:
    """Removes what is left of one ring, or slots without one.  Returns what it removed."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # it changed meanwhile
        return _remove_left(name, slots, wanted, keep_durable)
    return []


def _remove_left(
    name: str, slots: list[str], wanted: bytes | None, keep_durable: bool
) -> list[str]:
    # This look must come before the one at the header.
    strays = [each for each in slots if segment.is_left(each) and not earlier.is_kept(name, each)]
    own = ""
    with contextlib.suppress(FileNotFoundError), look(segment.header_name(name)) as named:
        if named.is_ours:
            epoch, alive = _life(named)
            if wanted is not None and epoch != wanted:
                return []
            if epoch is not None:
                own = segment.slots_name(name, epoch)
            if not alive:
                removed = _remove_dead(name, named, epoch, {*strays, own} - {""}, keep_durable)
                if removed and epoch is not None:
                    sockets.remove_stale(epoch)
                return removed
            if epoch is None:  # it lives, and is of another version: which slots are its is unknown
                return []
    return [each[1:] for each in strays if each != own and segment.remove_slots(each)]


def _remove_dead(
    name: str, named: Named, epoch: bytes | None, slots: set[str], keep_durable: bool
) -> list[str]:
    with named.open(os.O_RDWR) as file:
        # Whoever has attached since the first look is seen by this one; see attach_header.
        if not locks.lock_name(file.fd) or not named.has_name or _life(named) != (epoch, False):
            return []
        for each in slots:
            segment.remove_slots(each)
        if keep_durable and epoch is not None and has_durable(Header.read(file.fd)):
            return []
        earlier.remove(name)  # first: so they never outlive it
        segment.unlink(segment.header_name(name))
    return [name]


def _life(named: Named) -> tuple[bytes | None, bool]:
    """The ring's epoch, if it can be read, and whether any process is in it."""
    with named.open() as file:
        try:
            header = Header.read(file.fd)
        except native.Damaged:
            return None, locks.in_use(file.fd)
    # Nobody can join a GPU ring whose creator is dead, so a handle without a peer does not count.
    attached = header.on_host and header.attached
    return header.epoch, is_kept(header) or attached or bool(header.live_peers())


def is_kept(header: Header) -> bool:
    """Whether the ring is open, and its creator alive."""
    return header.creator_alive and not header.closed


def has_durable(header: Header) -> bool:
    """Whether a ring has subscriptions that go over to the next ring of its name."""
    return native.has_durable(header)


def go_with_the_last(name: str, header: Header) -> bool:
    """Whether the names of this ring go when the last process leaves it, because its creator is
    dead.  The caller leaves the ring and then calls remove_dead, which looks who else is there.

    Two keep their names.  The importer of a bridge, when it is started again, goes on with its
    ring.  Durable subscriptions go over to the next ring of the name.
    """
    try:
        ours = os.fstat(header.lock_fd)
        named = segment.has_name(segment.path_of(segment.header_name(name)), ours)
    except OSError:  # it was left before
        return False
    if not named or is_kept(header) or header.link()[0] or has_durable(header):
        return False
    # remove_dead counts the peers of a GPU ring, but not those who could still join it.
    return header.on_host or not header.attached

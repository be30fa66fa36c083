"""Rings that were replaced while somebody lived who read a durable subscription of theirs.

Such a reader may still read all that is left there, or be killed before it has.  Only the take
words of that ring know.  So its header stays findable, under a name of its own
(segment.aside_name), until nobody reads there any more.  Then what it owes is owed by the ring that
has the name by then: whoever joins a durable subscription calls `settle` first.

No frame is counted twice, and none is forgotten, whoever is killed in between.  The ring in which
it is counted notes in one store that it has counted and which ring that was.  The earlier ring
forgets the subscription after that.  native/core/earlier.c has the steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gpuring import native
from gpuring.errors import RingTimeout
from gpuring.native import File, Header
from gpuring.registry import locks, segment
from gpuring.registry.segment import look

_PATIENCE_S = 0.5
"""How long to wait for who is settling.  Only a process that was stopped takes so long, and who
joins after it settles."""


def number(header: Header) -> int:
    """What says in a later ring which one this is: above 1, and a part of its epoch."""
    return int.from_bytes(header.epoch[:8], "little") | 2


def durable(header: Header) -> list[int]:
    """The numbers of the durable subscriptions."""
    return [u for u in range(header.max_subscriptions) if header.patience(u) is not None]


def may_owe(header: Header) -> bool:
    """Whether earlier rings may owe this one anything."""
    return any(native.earlier(header, u) for u in durable(header))


def settle(name: str, header: Header) -> None:
    """Has this ring owe its durable subscriptions what earlier rings of its name owe them in which
    nobody reads any more.  Does next to nothing if there is none.

    Waits for another process that is doing so, and for membership locks.  If it cannot, who joins
    next does it.
    """
    if may_owe(header):
        with contextlib.suppress(OSError), _alone(header) as alone:
            if alone:
                _settle(name, header)


def _settle(name: str, header: Header) -> None:
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(each) for each in _earlier(name, header)]
        if not _forget_settled(rings, header):
            return
        still = {u for each in rings for u in _settle_one(each.header, header)}
        for each in rings:
            _remove_if_done(each)
        for u in durable(header):
            if u not in still and native.earlier(header, u):
                native.all_settled(header, u)


def _settle_one(ring: Header, header: Header) -> Iterator[int]:
    """Settles what this earlier ring owes.  Yields the subscriptions to which it may still owe."""
    own = {header.subscription_name(u): u for u in durable(header) if native.earlier(header, u)}
    for u in durable(ring):
        there = ring.subscription_name(u)
        if there not in own:
            native.unsubscribe(ring, there)
            continue
        owed = native.owed(ring, u)
        if owed is None or native.settle(header, own[there], number(ring), owed):
            yield own[there]
        elif native.unsubscribe(ring, there)[0] or native.settled(header, own[there]):
            yield own[there]  # it was not forgotten there: who comes next does that


def _forget_settled(rings: list[_Earlier], header: Header) -> bool:
    """What was counted when somebody was killed is forgotten where it was owed before.  False: a
    membership lock cannot be taken."""
    for u in durable(header):
        if settled := native.being_settled(header, u):
            there = header.subscription_name(u)
            rings_of_it = [each.header for each in rings if number(each.header) == settled]
            if any(native.unsubscribe(each, there)[0] for each in rings_of_it):
                return False
            if native.settled(header, u):
                return False
    return True


def settle_up(name: str, header: Header) -> None:
    """Has earlier rings forget what was counted in this one, which was closed, for who takes its
    place.  Raises RingTimeout, OSError."""
    if any(native.being_settled(header, u) for u in durable(header)):
        with contextlib.ExitStack() as stack:
            rings = [stack.enter_context(each) for each in _earlier(name, header)]
            if not _forget_settled(rings, header):
                raise RingTimeout(
                    f"ring {name!r}: a membership lock of an earlier ring of that name cannot be "
                    "taken. Its holder was probably stopped"
                )


def forget(name: str, header: Header, subscription: bytes) -> None:
    """Earlier rings owe nothing any more to a subscription that has ended here.  Raises OSError."""
    with contextlib.ExitStack() as stack:
        for each in _earlier(name, header):
            native.unsubscribe(stack.enter_context(each).header, subscription)
            _remove_if_done(each)


def remove(name: str) -> None:
    """Removes what earlier rings have left.  For who removes the ring that has their name."""
    _remove([aside for aside in segment.asides(name) if segment.is_left(aside)])


def remove_strays(name: str) -> None:
    """Removes what earlier rings have left if no ring has their name."""
    left = [aside for aside in segment.asides(name) if segment.is_left(aside)]
    if segment.owner(segment.header_name(name)) < 0:  # the look comes second: so none is later
        _remove(left)


def _remove(asides: list[str]) -> None:
    for aside in asides:
        segment.remove_slots(aside)


def is_kept(name: str, aside: str) -> bool:
    """Whether this is the header of an earlier ring of a ring that is there."""
    if not segment.is_aside(aside) or segment.owner(segment.header_name(name)) < 0:
        return False
    with contextlib.suppress(OSError, native.Damaged), look(aside) as named, named.open() as file:
        header = Header.read(file.fd)
        return header.closed and bool(durable(header))
    return False


def _remove_if_done(ring: _Earlier) -> None:
    if not durable(ring.header):
        segment.remove_slots(ring.aside)


class _Earlier:
    """The header of one, mapped."""

    def __init__(self, aside: str, header: Header) -> None:
        self.aside, self.header = aside, header

    def __enter__(self) -> _Earlier:
        return self

    def __exit__(self, *_: object) -> None:
        self.header.disown()


def _earlier(name: str, header: Header) -> list[_Earlier]:
    """Those that had the name before this ring, which are closed.  Empty if it has lost the name
    itself, because then later ones may be among them.

    Whoever may not open one, or has no descriptor for it, must not take it for settled: raises
    OSError."""
    there = os.fstat(header.lock_fd)
    asides = segment.asides(name)
    if not segment.has_name(segment.path_of(segment.header_name(name)), there):
        return []
    found: list[_Earlier] = []
    for aside in asides:
        with contextlib.suppress(FileNotFoundError, native.Damaged), look(aside) as named:
            # Another user's file could end this process.  One that is not closed is about to get
            # its name, or its maker was killed before it had.
            if named.odd or named.uid != there.st_uid:
                continue
            with named.open(os.O_RDWR) as file:
                each = _Earlier(aside, Header.attach(file.fd))
            if each.header.closed and each.header.epoch != header.epoch:
                found.append(each)
            else:
                each.header.disown()
    return found


@contextlib.contextmanager
def _alone(header: Header) -> Iterator[bool]:
    """False if another process has been settling for too long.  The lock is another descriptor's,
    so that it also keeps out the other threads."""
    with File(f"/proc/self/fd/{header.lock_fd}", os.O_RDWR) as file:
        yield locks.lock(file.fd, locks.SETTLING_BYTE, _PATIENCE_S)

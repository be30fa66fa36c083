"""Rings that were replaced while somebody lived who read a durable subscription of theirs.

Such a reader may still read all that is left there, or be killed before it has.  Only the take
words of that ring know.  So its header stays findable, under a name of its own
(segment.aside_name), until nobody reads there any more.  Then what it owes is owed by the ring that
has the name by then: whoever joins a durable subscription calls `settle` first.

No frame is counted twice, and none is forgotten, whoever is killed in between.  The ring in which
it is counted notes in one store that it has counted and which ring that was.  The earlier ring
forgets the subscription after that.  native/core/subscriptions.c has the steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gpuring import native
from gpuring.native import File, Header
from gpuring.registry import locks, segment
from gpuring.registry.segment import Named

_PATIENCE_S = 0.5
"""How long to wait for who is settling.  Only a process that was stopped takes so long, and who
joins after it settles."""


def number(header: Header) -> int:
    """What says in a later ring which one this is: above 1, and a part of its epoch."""
    return int.from_bytes(header.epoch[:8], "little") | 2


def durable(header: Header) -> list[int]:
    """The numbers of the durable subscriptions."""
    return [u for u in range(header.max_subscriptions) if header.patience(u) is not None]


def is_read(header: Header) -> bool:
    """Whether a member of a durable subscription lives in the ring."""
    return any(native.is_read(header, u) for u in durable(header))


def settle(name: str, header: Header) -> None:
    """Has this ring owe its durable subscriptions what earlier rings of its name owe them in which
    nobody reads any more.  Does next to nothing if there is none.

    Waits for another process that is doing so, and for the membership lock.  If it cannot, who
    joins next does it.
    """
    if any(native.earlier(header, u) for u in durable(header)):
        with contextlib.suppress(OSError), _alone(header) as alone:
            if alone:
                _settle(name, header)


def _settle(name: str, header: Header) -> None:
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(each) for each in _earlier(name, header)]
        _forget_settled(rings, header)
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
        if there in own:
            if native.is_read(ring, u):
                yield own[there]
                continue
            owed = native.owed(ring, u)
            if native.settle(header, own[there], number(ring), owed):
                yield own[there]  # it was closed meanwhile
                continue
        native.unsubscribe(ring, there)
        if there in own:
            native.settled(header, own[there])


@contextlib.contextmanager
def forgets(name: str, header: Header, subscription: bytes) -> Iterator[None]:
    """Earlier rings owe a subscription nothing any more that ends in this block."""
    any_owes = any(native.earlier(header, u) for u in durable(header))
    yield
    if any_owes:
        with contextlib.ExitStack() as stack:
            for each in _earlier(name, header):
                native.unsubscribe(stack.enter_context(each).header, subscription)
                _remove_if_done(each)


def settle_up(name: str, header: Header) -> None:
    """What was settled when somebody was killed is forgotten where it was owed before.  For who
    takes the place of this ring, which is closed."""
    with contextlib.ExitStack() as stack:
        _forget_settled([stack.enter_context(each) for each in _earlier(name, header)], header)


def _forget_settled(rings: list[_Earlier], header: Header) -> None:
    for u in durable(header):
        if settled := native.being_settled(header, u):
            for each in rings:
                if number(each.header) == settled:
                    native.unsubscribe(each.header, header.subscription_name(u))
            native.settled(header, u)


def remove(name: str) -> None:
    """Removes what earlier rings have left.  For who makes a ring of this name when there is
    none."""
    for aside in segment.asides(name):
        if segment.is_left(aside):
            segment.remove_slots(aside)


def is_kept(name: str, aside: str) -> bool:
    """Whether this is the header of an earlier ring of a ring that is there."""
    if not segment.is_aside(aside) or segment.owner(segment.header_name(name)) < 0:
        return False
    with contextlib.suppress(OSError, native.Damaged), Named(aside) as named, named.open() as file:
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


def _earlier(name: str, header: Header) -> Iterator[_Earlier]:
    """Those whose owner is that of the later ring, and which were closed.  Another one is about to
    get its name, or its maker was killed before it had."""
    owner = os.fstat(header.lock_fd).st_uid
    for aside in segment.asides(name):
        with contextlib.suppress(OSError, native.Damaged), Named(aside) as named:
            if named.odd or named.stat.st_uid != owner:
                continue
            with named.open(os.O_RDWR) as file:
                earlier = _Earlier(aside, Header.attach(file.fd))
            if earlier.header.closed and earlier.header.epoch != header.epoch:
                yield earlier
            else:
                earlier.header.disown()


@contextlib.contextmanager
def _alone(header: Header) -> Iterator[bool]:
    """False if another process has been settling for too long.  The lock is another descriptor's,
    so that it also keeps out the other threads."""
    with File(f"/proc/self/fd/{header.lock_fd}", os.O_RDWR) as file:
        yield locks.lock(file.fd, locks.SETTLING_BYTE, _PATIENCE_S)

"""Whether a thread needs the GIL to go on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from gpuring.native import Peer


@contextlib.contextmanager
def one_thread_at_a_time() -> Iterator[None]:
    """A thread of Python that runs keeps the GIL until it waits for something."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def has_slot_without_gil(peer: Peer) -> bool:
    """Whether a thread that sleeps in a verb of this peer gets a slot while the caller keeps the
    GIL.  False if that thread needs the GIL first, because its slice is over."""
    until = time.monotonic() + 0.2
    while not peer.holding():
        if time.monotonic() > until:
            return False
    sum(range(20_000))  # long enough for the thread to wait for the GIL
    return True

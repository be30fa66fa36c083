"""Waiting for file descriptors."""

from __future__ import annotations

import select
from collections.abc import Iterable


def readable(descriptors: Iterable[int], seconds: float | None) -> set[int]:
    """Those that can be read, or are at their end.  Waits for one, for so long at most, and for
    ever if that is None.  They may be larger than select() takes."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {each for each, _ in poll.poll(None if seconds is None else 1000 * seconds)}

"""Waiting for file descriptors."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """The descriptors that can be read, or are at their end.  Waits for one for up to `seconds`;
    math.inf is for ever.  Their numbers may be larger than select() takes."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {each for each, _ in poll.poll(None if seconds == math.inf else 1000 * seconds)}

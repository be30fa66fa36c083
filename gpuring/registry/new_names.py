"""Waiting for a name to come into /dev/shm, without looking for it again and again.

native/host/arrivals.h says when a wait looks.  The waits of this module also wait for another
descriptor, and in event loops.
"""

from __future__ import annotations

import contextlib
import select
import time
from typing import TYPE_CHECKING

from gpuring.native import NameWatch, Pace
from gpuring.registry.segment import SHM

if TYPE_CHECKING:
    import asyncio


class Arrivals:
    """Lets one thread or task wait for names, and for another descriptor.  -1 means none."""

    def __init__(self, other: int = -1) -> None:
        self._other = other
        self._watch: NameWatch | None = None
        self._pace: Pace | None = None

    def wait(self, at_most_s: float, going: bool = False) -> None:
        """Returns when it is time to look again, and after `at_most_s` at the latest.

        The first call returns at once, because a name may have come before the watch was there.
        `going`: what was found is about to go, and nobody reports if it does not.  Ctrl-C
        interrupts.
        """
        pace, begun = self._begin()
        pace.missed(going)
        if begun:
            return
        poll = select.poll()
        for descriptor in self._descriptors():
            poll.register(descriptor, select.POLLIN)
        began = time.monotonic()
        told = poll.poll(1000 * min(at_most_s, pace.look_s))
        waited_s = time.monotonic() - began
        time.sleep(max(0.0, min(pace.rest_s(bool(told), waited_s), at_most_s - waited_s)))
        self._drain()

    async def wait_async(self, at_most_s: float) -> None:
        """`wait` for asyncio."""
        import asyncio

        pace, begun = self._begin()
        if begun:
            return
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        began = loop.time()
        descriptors = self._descriptors()
        for descriptor in descriptors:
            loop.add_reader(descriptor, told.set)
        look_s = min(at_most_s, pace.look_s)
        timer: asyncio.TimerHandle = loop.call_later(look_s, told.set)
        try:
            await told.wait()
        finally:
            timer.cancel()
            if not loop.is_closed():
                for descriptor in descriptors:
                    loop.remove_reader(descriptor)
        waited_s = loop.time() - began
        await asyncio.sleep(min(pace.rest_s(waited_s < look_s, waited_s), at_most_s))
        self._drain()

    def _begin(self) -> tuple[Pace, bool]:
        """The pace, and whether this call begins it."""
        if self._pace is not None:
            return self._pace, False
        with contextlib.suppress(OSError):
            self._watch = NameWatch(SHM)
        self._pace = Pace(self._watch is not None)
        return self._pace, True

    def _descriptors(self) -> list[int]:
        watched = [] if self._watch is None else [self._watch.fd]
        return watched if self._other < 0 else [*watched, self._other]

    def _drain(self) -> None:
        """Empties the watch, before the look.  What comes after this wakes the next wait."""
        if self._watch is not None:
            self._watch.drain()

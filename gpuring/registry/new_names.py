"""Waiting for a name to come into /dev/shm, without looking for it again and again.

The kernel reports every name that comes there (inotify).  A wait sleeps until one comes, and then
looks for its own.  Names of others cost it a look, too, and anybody may make ten thousand of them.
So while they come one after the other, the time between looks grows.

The kernel does not report if this user has as many watches as he may, or if the wait is not for a
new name.  For these cases a wait also looks now and then.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from gpuring.native import NameWatch
from gpuring.registry.segment import SHM

if TYPE_CHECKING:
    import asyncio

_FIRST_LOOK_S = 0.01
LOOK_S = 1.0
"""A wait also looks without a report.  The first look comes after _FIRST_LOOK_S, each later one
after twice the time of the one before, up to this."""
_BLIND_LOOK_S = 0.1
"""The longest time between two looks where the kernel does not report."""
_QUIET_S = 0.1
_REST_S = 0.00002
_MAX_REST_S = 0.064
"""A look less than _QUIET_S after another one first rests for _REST_S.  The rest doubles each time,
up to _MAX_REST_S."""


class Arrivals:
    """Lets one thread or task wait for names, and for another descriptor.  -1 means none."""

    def __init__(self, other: int = -1) -> None:
        self._other = other
        self._watch: NameWatch | None = None
        self._begun = False
        self._look_s = _FIRST_LOOK_S
        self._rest_s = 0.0

    def look_soon(self) -> None:
        """Makes the next looks come fast again.  Something has changed whose end nobody reports."""
        self._look_s = _FIRST_LOOK_S

    def wait(self, at_most_s: float) -> None:
        """Returns when it is time to look again, and after `at_most_s` at the latest.

        The first call returns at once, because a name may have come before the watch was there.
        Ctrl-C interrupts.
        """
        if self._begin():
            return
        poll = select.poll()
        for descriptor in self._descriptors():
            poll.register(descriptor, select.POLLIN)
        began = time.monotonic()
        told = poll.poll(1000 * min(at_most_s, self._look_s))
        waited_s = time.monotonic() - began
        time.sleep(max(0.0, min(self._rest(bool(told), waited_s), at_most_s - waited_s)))
        self._drain()

    async def wait_async(self, at_most_s: float) -> None:
        """`wait` for asyncio."""
        import asyncio

        if self._begin():
            return
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        began = loop.time()
        descriptors = self._descriptors()
        for descriptor in descriptors:
            loop.add_reader(descriptor, told.set)
        look_s = min(at_most_s, self._look_s)
        timer: asyncio.TimerHandle = loop.call_later(look_s, told.set)
        try:
            await told.wait()
        finally:
            timer.cancel()
            if not loop.is_closed():
                for descriptor in descriptors:
                    loop.remove_reader(descriptor)
        waited_s = loop.time() - began
        await asyncio.sleep(min(self._rest(waited_s < look_s, waited_s), at_most_s))
        self._drain()

    def _begin(self) -> bool:
        if self._begun:
            return False
        self._begun = True
        try:
            self._watch = NameWatch(SHM)
        except OSError:
            return False
        return True

    def _descriptors(self) -> list[int]:
        watched = [] if self._watch is None else [self._watch.fd]
        return watched if self._other < 0 else [*watched, self._other]

    def _rest(self, told: bool, waited_s: float) -> float:
        """How many seconds to rest before the look."""
        if not told:
            longest_s = _BLIND_LOOK_S if self._watch is None else LOOK_S
            self._look_s = min(2 * self._look_s, longest_s)
        elif waited_s < _QUIET_S:
            self._rest_s = min(2 * self._rest_s, _MAX_REST_S) or _REST_S
            return self._rest_s
        self._rest_s = 0.0
        return 0.0

    def _drain(self) -> None:
        """Empties the watch, before the look.  What comes after this wakes the next wait."""
        if self._watch is not None:
            self._watch.drain()

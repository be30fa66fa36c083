"""The clock of the near host, as the far side measures it.

The far side asks the near side for the time.  The near side reads its clock somewhere between the
question and the answer.  So the middle between these two moments is right within half of the round
trip, however the round trip divides into its two ways.  Most round trips are long because a message
had to wait behind frames, so the shortest of the last few counts.  An old one is worth less,
because the clocks drift.
"""

from __future__ import annotations

from collections import deque

from gpuring.bridge.network import wire
from gpuring.registry.stats import Clock

ASK_NS = 500_000_000
"""The time between two questions."""
_KEPT = 32
"""How many answers it chooses from."""


class NearClock:
    """What one session has measured.  All times are CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._asked_ns: int | None = None
        self._asks_ns = 0
        """When it asks next."""
        self._measured: deque[Clock] = deque(maxlen=_KEPT)

    def ask(self, now_ns: int) -> wire.AskTime | None:
        """The question, if it is time to ask.  An answer that has not come by then is late."""
        if now_ns < self._asks_ns:
            return None
        self._asked_ns, self._asks_ns = now_ns, now_ns + ASK_NS
        return wire.AskTime(now_ns)

    def heard(self, said: wire.Time, now_ns: int) -> Clock | None:
        """The best measurement that there is.  None: this answers an earlier question, and is of no
        use."""
        if said.asked_ns != self._asked_ns:
            return None
        self._asked_ns = None
        round_trip_ns = now_ns - said.asked_ns
        ahead_ns = said.time_ns - (said.asked_ns + round_trip_ns // 2)
        self._measured.append(Clock(ahead_ns, (round_trip_ns + 1) // 2, now_ns))
        return min(self._measured, key=lambda each: each.error_at(now_ns))

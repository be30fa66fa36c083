"""How often the rings of this host are full, as repeated looks within a second show it.

No word of a header counts for how long producers have waited, so this cannot see earlier waits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import RingError
from gpuring.printable import counted, printable
from gpuring.registry import directory, survey

from .finding import Finding

LOOKS_S = 1.0
_REST_S = 0.01
_MOST = 0.01
"""A ring that is full for a larger part of the time has too few slots, or a reader too slow."""


@dataclass(frozen=True)
class Fullness:
    """What the looks have found."""

    looks: int
    full: dict[str, int]
    """At how many of them a ring was full, by its name.  Others have no entry."""
    why: dict[str, str]
    """Who was in the way then, the last time."""


def look(names: Collection[str], seconds: float = LOOKS_S) -> Fullness:
    """Looks again and again for so many seconds."""
    looks, full, why = 0, Counter[str](), dict[str, str]()
    until = deadline_of(seconds)
    while not looks or left_s(until):
        looks += 1
        for name in names:
            try:
                one = survey.collect(name, directory.look(name))
            except (RingError, OSError):  # it has gone meanwhile
                continue
            if one.in_the_way is not None:
                full[name] += 1
                why[name] = one.in_the_way.why
        time.sleep(min(_REST_S, left_s(until)))
    return Fullness(looks, dict(full), why)


def full_rings(seen: Fullness) -> Finding:
    what = "full rings"
    looks = counted(seen.looks, "look")
    often = {name: n for name, n in seen.full.items() if n > _MOST * seen.looks}
    if not often:
        return Finding("ok", what, f"none was full at any of {looks}")
    found = [
        f"{printable(name)} at {n} of {looks}, the last time because {seen.why[name]}"
        for name, n in sorted(often.items())
    ]
    fix = "a faster or a lossy reader, or more slots: see docs/sizing.md, and `gpuring inspect`"
    return Finding("warn", what, "; ".join(found), fix)

"""Who is to blame, as a plant knows it and as `gpuring why` finds it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gpuring
from gpuring.registry.jams.records import Jam
from gpuring.registry.stats import RingStats
from tests.helpers.processes import Child

Children = Callable[..., Child]


@dataclass(frozen=True)
class Blame:
    reason: str
    pid: int | None = None
    subscription: str | None = None


Plant = Callable[[Children, str], contextlib.AbstractContextManager[Blame]]
PLANTED: dict[str, Plant] = {}


def planted(plant: Callable[[Children, str], Iterator[Blame]]) -> Plant:
    PLANTED[plant.__name__] = contextlib.contextmanager(plant)
    return PLANTED[plant.__name__]


def blamed(jam: Jam) -> Blame:
    first = jam.culprits[0]
    return Blame(first.reason, first.peers[0].pid if first.peers else None, first.subscription)


def look(name: str, *others: str) -> list[RingStats]:
    """The rings whose names begin with this name."""
    return [one for one in gpuring.ls() if one.name.startswith(name) and one.name not in others]

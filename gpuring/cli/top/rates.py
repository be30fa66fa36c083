"""Two looks at the rings of this host, and what happened between them.  Pure, but for `look`."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpuring.cli.owners import owner
from gpuring.cli.services import of_clients
from gpuring.registry import survey
from gpuring.registry.jams import STUCK_S, Jam, jams, of_full_rings
from gpuring.registry.stats import PeerStats, RingStats

NONE = "–"
"""Where nothing is known."""


@dataclass(frozen=True)
class Look:
    """All rings at one moment."""

    at_s: float
    """time.monotonic()"""
    rings: dict[str, RingStats]
    unreadable: dict[str, str]
    """Name -> why."""
    owners: dict[str, str]
    """Name -> the user to whom the ring belongs."""
    clients: int = 0
    """How many rings were left out, in which clients of services get their answers."""
    jams: tuple[Jam, ...] = ()
    """What is stuck on this host, in whichever rings."""
    chains: Mapping[str, Jam] = field(default_factory=dict)
    """For each full ring: what its producers wait for."""


def look(names: Collection[str] = ()) -> Look:
    """The rings of these names, or all except those of clients of services.  Joins nothing and
    keeps nothing open: a header that stays open would keep its creator from freeing GPU memory."""
    found, unreadable = survey.all_rings()
    clients = {} if names else of_clients(found)
    wanted = names or {one.name for one in found} - clients.keys()
    rings = {one.name: one for one in found if one.name in wanted}
    others = {name: why for name, why in unreadable.items() if not names or name in names}
    owners = {name: owner(name) for name in (*rings, *others)}
    return Look(
        time.monotonic(),
        rings,
        others,
        owners,
        len(clients),
        tuple(jams(found, STUCK_S)),
        of_full_rings(found),
    )


def frames_per_s(before: Look | None, now: Look, name: str) -> float | None:
    """Frames a second of the producers that are there; None if the ring was not there before, or
    was another one."""
    old = _ring_before(before, now, name)
    if before is None or old is None:
        return None
    known = {_key(peer): peer.frames for peer in old.producers}
    published = sum(
        max(0, peer.frames - known.get(_key(peer), 0)) for peer in now.rings[name].producers
    )
    return published / _elapsed_s(before, now)


def peer_per_s(
    before: Look | None, now: Look, name: str, peer: PeerStats
) -> tuple[float, float] | None:
    """Frames and lost sequences of a peer a second; None if it was not there before."""
    old_ring = _ring_before(before, now, name)
    if before is None or old_ring is None:
        return None
    elapsed_s = _elapsed_s(before, now)
    old = next((p for p in old_ring.peers if _key(p) == _key(peer)), None)
    if old is None or peer.frames < old.frames or peer.lost < old.lost:
        return None
    return (peer.frames - old.frames) / elapsed_s, (peer.lost - old.lost) / elapsed_s


def drops(before: Look | None, now: Look, name: str) -> bool:
    """Whether producers have dropped frames between the looks."""
    old = _ring_before(before, now, name)
    return old is not None and now.rings[name].dropped > old.dropped


def rate(per_s: float | None) -> str:
    """In few digits."""
    if per_s is None:
        return NONE
    return f"{per_s:.1f}" if per_s < 10 else f"{per_s:.0f}"


def _ring_before(before: Look | None, now: Look, name: str) -> RingStats | None:
    old = before.rings.get(name) if before else None
    return old if old is not None and old.epoch == now.rings[name].epoch else None


def _elapsed_s(before: Look, now: Look) -> float:
    return max(now.at_s - before.at_s, 1e-9)


def _key(peer: PeerStats) -> tuple[object, ...]:
    """Numbers are used again, and pids too."""
    return peer.number, peer.role, peer.pid, peer.joined_ns

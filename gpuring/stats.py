"""What a ring is doing: frozen records made from one look at its header.

The header is read without a lock, so figures of one record may be a few transitions apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuring import _core
from gpuring._core import Header
from gpuring.diagnosis import subscription_label


@dataclass(frozen=True)
class Hold:
    """A slot that a peer has claimed or a frame that it holds."""

    seq: int
    age_s: float
    """For how long, in seconds (to about 4 ms)."""


@dataclass(frozen=True)
class PeerStats:
    """One joined producer or consumer."""

    number: int
    role: str
    subscription: str | None
    pid: int
    alive: bool
    """False: its process died and nobody has cleared its entry yet."""
    age_s: float
    waiting: bool
    """Asleep in claim or acquire."""
    frames: int
    """Published, or acquired."""
    lost: int
    torn: int
    pending: int
    """Slots on which its GPU has not finished what it promised."""
    holding: tuple[Hold, ...]


@dataclass(frozen=True)
class Death:
    """A peer that died, and what was done about it."""

    number: int
    role: str
    pid: int
    age_s: float
    """Seconds since it was cleared."""
    voided: int
    """Claims of it that became void."""
    torn: int
    """Published frames whose GPU work was not finished."""
    reopened: int
    """Frames it held, given to its fellows (or dropped, as its subscription wants)."""
    raised: int
    """Fences raised for it, so that streams that waited go on."""


@dataclass(frozen=True)
class SubscriptionStats:
    """One named reader position."""

    name: str
    lossless: bool
    redeliver: bool
    """Whether a dead member's frames go to another member."""
    start: int
    """The first sequence it covers."""
    lag: int
    """Frames that are published and not yet released by it."""
    lost: int
    """Sequences that its members were made to skip."""
    opened: int
    """Frames that a member gave back or died with, waiting for another."""
    members: tuple[int, ...]
    """Peer numbers."""


@dataclass(frozen=True)
class RingStats:
    """One look at a ring."""

    name: str
    epoch: str
    memory: str
    sync: str
    gate: str
    slots: int
    slot_nbytes: int
    cursor: int
    """The next sequence to be claimed; a ring of N slots begins with N."""
    closed: bool
    creator_pid: int
    creator_alive: bool
    created_ns: int
    """CLOCK_REALTIME, as time.time_ns()."""
    reaps: int
    """Dead peers that were cleared so far."""
    subscriptions: tuple[SubscriptionStats, ...]
    peers: tuple[PeerStats, ...]
    deaths: tuple[Death, ...]
    """The last ones, the latest first."""

    @property
    def producers(self) -> tuple[PeerStats, ...]:
        return tuple(peer for peer in self.peers if peer.role == "producer")


def collect(name: str, header: Header) -> RingStats:
    """The record of an attached ring."""
    seen = header.snapshot()
    now = _core.now_ns()
    labels = {u: subscription_label(sub["name"]) for u, sub in seen["subscriptions"].items()}
    return RingStats(
        name=name,
        epoch=header.epoch.hex(),
        memory=header.memory,
        sync=header.sync,
        gate=header.gate,
        slots=header.slots,
        slot_nbytes=header.slot_nbytes,
        cursor=seen["frontier"],
        closed=seen["closed"],
        creator_pid=header.creator_pid,
        creator_alive=header.creator_alive,
        created_ns=header.created_ns,
        reaps=header.reaps,
        subscriptions=tuple(
            _subscription(u, labels[u], sub, seen) for u, sub in seen["subscriptions"].items()
        ),
        peers=tuple(_peer(p, peer, labels, seen, now) for p, peer in seen["peers"].items()),
        deaths=tuple(
            Death(
                **{key: value for key, value in death.items() if key != "time_ns"},
                age_s=max(0, now - death["time_ns"]) / 1e9,
            )
            for death in seen["deaths"]
        ),
    )


def _subscription(
    u: int, label: str, sub: dict[str, Any], seen: dict[str, Any]
) -> SubscriptionStats:
    frames = [
        (slot, take)
        for slot, take in zip(seen["slots"], sub["takes"], strict=True)
        if slot["phase"] == "ready" and slot["seq"] >= sub["start"]
    ]
    return SubscriptionStats(
        name=label,
        lossless=sub["lossless"],
        redeliver=sub["redeliver"],
        start=sub["start"],
        lag=sum(take["seq"] < slot["seq"] or take["phase"] != "done" for slot, take in frames),
        lost=sub["lost"],
        opened=sum(take["seq"] == slot["seq"] and take["phase"] == "open" for slot, take in frames),
        members=tuple(p for p, peer in seen["peers"].items() if peer["subscription"] == u),
    )


def _peer(
    number: int, peer: dict[str, Any], labels: dict[int, str], seen: dict[str, Any], now: int
) -> PeerStats:
    return PeerStats(
        number=number,
        role=peer["role"],
        subscription=labels.get(peer["subscription"]),
        pid=peer["pid"],
        alive=peer["alive"],
        age_s=(now - peer["joined_ns"]) / 1e9,
        waiting=peer["waiting"],
        frames=peer["frames"],
        lost=peer["lost"],
        torn=peer["torn"],
        pending=peer["pending"],
        holding=tuple(_holds(number, peer, seen, now)),
    )


def _holds(number: int, peer: dict[str, Any], seen: dict[str, Any], now: int) -> Iterator[Hold]:
    if peer["role"] == "producer":
        for slot in seen["slots"]:
            if slot["owner"] == number and slot["phase"] == "writing":
                yield Hold(slot["seq"], max(0, now - slot["since_ns"]) / 1e9)
        return
    subscription = seen["subscriptions"].get(peer["subscription"])
    for take in subscription["takes"] if subscription else ():
        if take["member"] == number and take["phase"] == "held":
            yield Hold(take["seq"], max(0, now - take["since_ns"]) / 1e9)

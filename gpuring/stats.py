"""What a ring is doing: frozen records made from one look at its header.

The header is read without a lock, so figures of one record may be a few transitions apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuring import _core
from gpuring._core import Header
from gpuring._snapshot import snapshot
from gpuring.diagnosis import subscription_label


@dataclass(frozen=True)
class Hold:
    """A slot that a peer has claimed or a frame that it holds."""

    seq: int
    """The frame's sequence."""
    age_s: float
    """For how long, in seconds (to about 4 ms)."""


@dataclass(frozen=True)
class PeerStats:
    """One joined producer or consumer."""

    number: int
    """In the ring's peer table, 0 … 63; used again when it has left."""
    role: str
    """ "producer" or "consumer"."""
    subscription: str | None
    """A consumer's, as SubscriptionStats.name has it; None for a producer."""
    pid: int
    """Of its process, in that process's own pid namespace."""
    alive: bool
    """False: its process died and nobody has cleared its entry yet."""
    age_s: float
    """Seconds since it joined."""
    waiting: bool
    """Asleep in claim or acquire."""
    frames: int
    """Published, or acquired."""
    lost: int
    """Sequences that it was made to skip."""
    torn: int
    """Torn frames that it has passed over."""
    pending: int
    """Slots on which its GPU has not finished what it promised."""
    holding: tuple[Hold, ...]
    """What it has claimed and not published, or acquired and not released."""


@dataclass(frozen=True)
class Death:
    """A peer that died, and what was done about it."""

    number: int
    """That it had in the peer table."""
    role: str
    """ "producer" or "consumer"."""
    pid: int
    """Of its process."""
    age_s: float
    """Seconds since it was cleared."""
    voided: int
    """Claims of it that became void."""
    torn: int
    """Published frames whose GPU work was not finished."""
    reopened: int
    """Frames it held, given to other members (or dropped, as its subscription wants)."""
    raised: int
    """Fences raised for it, so that streams that waited go on."""


@dataclass(frozen=True)
class SubscriptionStats:
    """One named reader position."""

    name: str
    """As it was given to `Ring.consumer`, or "#…" and some digits."""
    lossless: bool
    """Whether producers wait for it."""
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
    """By which others attach."""
    epoch: str
    """128 random bits in hexadecimal: another one for each ring of the same name."""
    memory: str
    """ "cuda" or "host"."""
    sync: str
    """ "timeline", "event" or "host"."""
    gate: str
    """ "stream" or "host"."""
    slots: int
    """How many there are."""
    slot_nbytes: int
    """Distance of two slots in memory, in bytes."""
    cursor: int
    """The next sequence to be claimed; a ring of N slots begins with N."""
    closed: bool
    """Whether it was closed, by its creator or by who replaced it."""
    creator_pid: int
    """Of the process that owns its memory."""
    creator_alive: bool
    """Whether that process lives; without it nobody new can attach to a GPU ring."""
    created_ns: int
    """CLOCK_REALTIME, as time.time_ns()."""
    reaps: int
    """Dead peers that were cleared so far."""
    subscriptions: tuple[SubscriptionStats, ...]
    """Those that there are now."""
    peers: tuple[PeerStats, ...]
    """Those that have joined and not left."""
    deaths: tuple[Death, ...]
    """The last ones, the latest first."""

    @property
    def producers(self) -> tuple[PeerStats, ...]:
        """Those of `peers` that write."""
        return tuple(peer for peer in self.peers if peer.role == "producer")


def collect(name: str, header: Header) -> RingStats:
    """The record of an attached ring."""
    seen = snapshot(header)
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

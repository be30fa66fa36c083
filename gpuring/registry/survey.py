"""Looks at the rings of this host, and the records of stats.py that they make.

A header is read without a lock, so the figures of one record may be a few transitions apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from gpuring import native, slot_layout
from gpuring.errors import RingError
from gpuring.native import Header, Missing
from gpuring.native.snapshot import snapshot
from gpuring.registry import diagnosis, directory, in_the_way, segment, stats
from gpuring.registry.processes import Processes, is_stopped
from gpuring.registry.subscriptions import FOREVER_NS, text_of


def ls() -> stats.Rings:
    """Every readable ring of this host, sorted by name: a list, which an interpreter shows as a
    table.  Reads headers only and needs no GPU.  Raises PermissionError if this user may not list
    /dev/shm."""
    return stats.Rings(all_rings()[0])


def all_rings() -> tuple[list[stats.RingStats], dict[str, str]]:
    """The result of ls(), and the names that cannot be read with the reasons.

    A ring that goes away while we look is in neither.  Raises PermissionError as ls() does.
    """
    found, unreadable, processes = [], {}, Processes()
    for name in segment.names():
        try:
            found.append(collect(name, directory.read(name), processes))
        except Missing as missing:
            if str(missing):
                unreadable[name] = str(missing)
        except (RingError, OSError) as error:
            unreadable[name] = str(error)
    return found, unreadable


def collect(name: str, header: Header, processes: Processes | None = None) -> stats.RingStats:
    """The record of an attached ring."""
    seen = snapshot(header)
    _find_processes(seen["peers"].values(), processes or Processes())
    now = native.now_ns()
    labels = {u: text_of(sub["name"]) for u, sub in seen["subscriptions"].items()}
    published = (slot["time_ns"] for slot in seen["slots"] if slot["phase"] == "ready")
    published_s = min((max(0, now - time_ns) / 1e9 for time_ns in published), default=None)
    return stats.RingStats(
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
        creator_elsewhere=header.creator_elsewhere,
        creator_alive=header.creator_alive,
        created_ns=header.created_ns,
        reaps=header.reaps,
        dropped=seen["dropped"],
        producers_in_all=seen["producers_in_all"],
        producers_left=seen["producers_left"],
        producers_died=seen["producers_died"],
        published_s=published_s,
        in_the_way=_in_the_way(header, seen, now),
        subscriptions=tuple(
            _subscription(u, labels[u], sub, seen, now) for u, sub in seen["subscriptions"].items()
        ),
        peers=tuple(_peer(p, peer, labels, seen, now) for p, peer in seen["peers"].items()),
        deaths=tuple(
            stats.Death(
                **{key: death[key] for key in death.keys() - {"time_ns", "label", "leaving"}},
                label=text_of(death["label"]),
                age_s=max(0, now - death["time_ns"]) / 1e9,
            )
            for death in seen["deaths"]
        ),
        gpu=_uuid(header.device_uuid),
        link=_link(header, published_s, now),
        about=slot_layout.about(header.spec),
    )


def _find_processes(peers: Iterable[dict[str, Any]], processes: Processes) -> None:
    """Says of each peer which pid its process has here.  Of its own pid namespace alone the header
    knows whether it is stopped."""
    for peer in peers:
        pid = peer["pid_here"] = peer["pid"] if not peer["elsewhere"] else None
        if pid is None and peer["alive"]:
            pid = peer["pid_here"] = processes.pid_here(peer["namespace"], peer["pid"])
            peer["stopped"] = pid is not None and is_stopped(pid)


def _in_the_way(header: Header, seen: dict[str, Any], now: int) -> stats.InTheWay | None:
    culprit = in_the_way.of_next_claim(seen)
    if culprit is None:
        return None
    _, peer, subscription, seq, since_ns = culprit
    peers = seen["peers"]
    members = (p for p, each in peers.items() if each["subscription"] == subscription)
    return stats.InTheWay(
        why=diagnosis.in_the_way(header, culprit, lambda p: p in peers and peers[p]["stopped"]),
        way_out=diagnosis.way_out(header, culprit),
        peers=tuple(members) if peer is None else (peer,),
        subscription=None
        if subscription is None
        else text_of(header.subscription_name(subscription)),
        seq=seq,
        age_s=max(0, now - since_ns) / 1e9,
    )


def _uuid(raw: bytes) -> str | None:
    return str(uuid.UUID(bytes=raw)) if any(raw) else None


_STATUS = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    800: "CUDA_ERROR_NOT_PERMITTED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
}
"""What a driver says that does not register host memory (cuda.h).  Here there may be no driver."""


def _status(number: int) -> str:
    return f"{_STATUS.get(number, 'CUresult')} ({number})"


def _link(header: Header, published_s: float | None, now: int) -> stats.Link | None:
    origin = slot_layout.origin(header.spec)
    if origin is None:
        return None
    epoch, seq, lost = header.link()
    its = clock(header)
    signs = [] if its is None else [max(0, now - its.time_ns) / 1e9]
    signs += [] if published_s is None else [published_s]
    heard_s = min(signs, default=None)
    return stats.Link(origin["host"], origin["ring"], epoch.hex(), seq, lost, its, heard_s)


def clock(header: Header) -> stats.Clock | None:
    """The clock of the host that a bridge brings frames from.  None: it was not measured."""
    measured = header.clock()
    return None if measured is None else stats.Clock(*measured)


def _subscription(
    u: int, label: str, sub: dict[str, Any], seen: dict[str, Any], now: int
) -> stats.SubscriptionStats:
    frames = [
        (slot["seq"], take)
        for slot, take in zip(seen["slots"], sub["takes"], strict=True)
        if slot["phase"] == "ready" and slot["seq"] >= sub["start"]
    ]
    opened = [seq for seq, take in frames if take["seq"] == seq and take["phase"] == "open"]
    held = [take["seq"] for take in sub["takes"] if take["phase"] == "held"]
    # A lossy one walks past what it has not taken before its newest frame.
    past = 0 if sub["lossless"] else max(take["seq"] for take in sub["takes"])
    untaken = [seq for seq, take in frames if take["seq"] < seq and seq > past]
    published = {slot["seq"]: slot["time_ns"] for slot in seen["slots"]}
    newest = max(published)
    oldest = min([*opened, *held, *untaken], default=newest + 1)
    patience_ns, unread_ns = sub["patience"] or (0, 0)
    taken_ns = max(
        (take["since_ns"] for take in sub["takes"] if take["seq"] >= max(1, sub["start"])),
        default=0,
    )
    return stats.SubscriptionStats(
        name=label,
        lossless=sub["lossless"],
        redeliver=sub["redeliver"],
        start=sub["start"],
        lag=max(0, newest + 1 - oldest),
        lost=sub["lost"],
        opened=len(opened),
        untaken=len(opened) + len(untaken),
        oldest_s=max((0, *(now - published[seq] for seq in (*opened, *untaken)))) / 1e9,
        taken_s=max(0, now - taken_ns) / 1e9 if taken_ns else None,
        members=tuple(p for p, peer in seen["peers"].items() if peer["subscription"] == u),
        durable=sub["patience"] is not None,
        patience_s=patience_ns / 1e9 if 0 < patience_ns < FOREVER_NS else None,
        unread_s=max(0, now - unread_ns) / 1e9 if unread_ns else None,
        given_up=sub["given_up"],
        far=text_of(sub["far"]),
    )


def _peer(
    number: int, peer: dict[str, Any], labels: dict[int, str], seen: dict[str, Any], now: int
) -> stats.PeerStats:
    return stats.PeerStats(
        number=number,
        role=peer["role"],
        subscription=labels.get(peer["subscription"]),
        pid=peer["pid"],
        label=text_of(peer["label"]),
        elsewhere=peer["elsewhere"],
        namespace=peer["namespace"],
        pid_here=peer["pid_here"],
        alive=peer["alive"],
        stopped=peer["stopped"],
        joined_ns=peer["joined_ns"],
        age_s=max(0, now - peer["joined_ns"]) / 1e9,
        waiting=peer["waiting"],
        frames=peer["frames"],
        lost=peer["lost"],
        torn=peer["torn"],
        dropped=peer["dropped"],
        pending=len(peer["pending"]),
        unfinished=tuple(_unfinished(number, peer, seen, now)),
        asked_s=max(0, now - peer["asked_ns"]) / 1e9 if peer["asked_ns"] else None,
        gpu=_uuid(peer["gpu"]),
        unregistered=_status(peer["unregistered"]) if peer["unregistered"] else None,
        holding=tuple(_holds(number, peer, seen, now)),
    )


def _holds(
    number: int, peer: dict[str, Any], seen: dict[str, Any], now: int
) -> Iterator[stats.Hold]:
    if peer["role"] == "producer":
        for slot in seen["slots"]:
            if slot["owner"] == number and slot["phase"] == "writing":
                yield stats.Hold(slot["seq"], max(0, now - slot["since_ns"]) / 1e9, number)
        return
    for slot, take in _takes(peer, seen):
        if take["member"] == number and take["phase"] == "held":
            yield _taken(slot, take, now)


def _unfinished(
    number: int, peer: dict[str, Any], seen: dict[str, Any], now: int
) -> Iterator[stats.Hold]:
    """What its GPU still writes or reads, as far as the slot words still have it."""
    for index in peer["pending"]:
        slot = seen["slots"][index]
        if (peer["role"], slot["owner"], slot["phase"]) == ("producer", number, "ready"):
            yield stats.Hold(slot["seq"], max(0, now - slot["time_ns"]) / 1e9, number)
    for index, (slot, take) in enumerate(_takes(peer, seen)):
        if take["member"] == number and index in peer["pending"]:
            yield _taken(slot, take, now)


def _takes(
    peer: dict[str, Any], seen: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    subscription = seen["subscriptions"].get(peer["subscription"])
    yield from zip(seen["slots"], subscription["takes"], strict=True) if subscription else ()


def _taken(slot: dict[str, Any], take: dict[str, Any], now: int) -> stats.Hold:
    return stats.Hold(take["seq"], max(0, now - take["since_ns"]) / 1e9, slot["owner"])
